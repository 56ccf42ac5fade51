// Compiled with AVX2, FMA and F16C flags (see BUILD.bazel).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_avx2.h"

namespace baton::kernels::cpu {
namespace avx2 {

constexpr int kTileRows = 4;           // activation rows of an integer tile; a sum is two of the 16 registers
constexpr bool kInt8IsOffset = false;  // DotInt8 sums signed values
constexpr int kTilePanels = 1;
constexpr int kSumRows = 4;
constexpr bool kExpandsNibbles = false;  // vpmaddubsw takes 4-bit codes more cheaply
constexpr int kFloatAccumulators = 4;
constexpr int kScoreRows = 3;  // queries, times vectors of keys, whose scores are registers
constexpr int kScoreVectors = 2;
constexpr int kValueRows = 3;  // the same for outputs
constexpr int kValueVectors = 2;

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

}  // namespace avx2

const KernelTable& Avx2Kernels() {
  static const KernelTable table = avx2::MakeTable("avx2");
  return table;
}

}  // namespace baton::kernels::cpu
