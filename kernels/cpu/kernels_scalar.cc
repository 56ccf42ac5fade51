// The reference: no instructions beyond the compiler's default.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_scalar.h"

namespace baton::kernels::cpu {
namespace scalar {

constexpr int kTileRows = 4;          // activation rows of an integer tile
constexpr bool kInt8IsOffset = true;  // DotInt8 sums codes with their +128
constexpr int kTilePanels = 1;
constexpr int kSumRows = 4;
constexpr bool kExpandsNibbles = true;
constexpr int kFloatAccumulators = 4;
constexpr int kScoreRows = 1;  // queries, times vectors of keys, whose scores are registers
constexpr int kScoreVectors = 1;
constexpr int kValueRows = 1;  // the same for outputs
constexpr int kValueVectors = 1;

// Each needs the one before.
// clang-format off
#include "kernels/cpu/quantize_impl.h"
#include "kernels/cpu/store_tile_impl.h"
#include "kernels/cpu/panel_impl.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/bf16_fma_impl.h"
#include "kernels/cpu/bf16_impl.h"
#include "kernels/cpu/elementwise_impl.h"
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/kernel_table_impl.h"
// clang-format on

}  // namespace scalar

const KernelTable& ScalarKernels() {
  static const KernelTable table = scalar::MakeTable("scalar");
  return table;
}

}  // namespace baton::kernels::cpu
