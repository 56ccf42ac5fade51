// Compiled with AVX-512 flags (see BUILD.bazel).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_avx512.h"

namespace baton::kernels::cpu {
namespace avx512 {

constexpr int kTileRows = 8;          // activation rows of an integer tile: 8 sums, 8 of weights, 8 of products
constexpr bool kInt8IsOffset = true;  // DotInt8 sums codes with their +128
constexpr int kTilePanels = 2;  // each activation that is broadcast serves so many panels
constexpr int kSumRows = 4;      // rows whose integer sums are in registers at once
constexpr bool kExpandsNibbles = true;
constexpr int kFloatAccumulators = 16;
constexpr int kScoreRows = 6;  // queries, times vectors of keys, whose scores are registers
constexpr int kScoreVectors = 4;
constexpr int kValueRows = 6;  // the same for outputs
constexpr int kValueVectors = 4;

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

}  // namespace avx512

const KernelTable& Avx512Kernels() {
  static const KernelTable table = avx512::MakeTable("avx512");
  return table;
}

}  // namespace baton::kernels::cpu
