// The AVX-512 kernels with integer products of many rows by AMX tiles. Compiled with AMX flags (see BUILD.bazel).
//
// A tile multiplication gives the integer sums of 16 rows and 16 outputs over one group of 32 (16 for q6_k); they go
// through a buffer in the first-level cache to the same f32 steps, in the same order, as everywhere.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_avx512.h"

namespace baton::kernels::cpu {
namespace amx {

using namespace avx512;  // the abstract vector machine

// clang-format off
#include "kernels/cpu/store_tile_impl.h"
#include "kernels/cpu/panel_impl.h"
// clang-format on

// Tile registers: sums, activations and codes of a whole group, and of half a group.
#define BATON_RESULT 0
#define BATON_HALF_RESULT 1
#define BATON_ACTIVATIONS 4
#define BATON_CODES 5
#define BATON_HALF_ACTIVATIONS 6
#define BATON_HALF_CODES 7

// What LDTILECFG reads (Intel's Software Developer's Manual, at that instruction). A constant, and not
// built on the stack: under the address sanitizer, with its own stack for use-after-return, such a copy ended in SIGSEGV.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileConfig() {
    Shape(BATON_RESULT, 16, 64);
    Shape(BATON_HALF_RESULT, 16, 64);
    Shape(BATON_ACTIVATIONS, 16, 32);
    Shape(BATON_CODES, 8, 64);
    Shape(BATON_HALF_ACTIVATIONS, 16, 16);
    Shape(BATON_HALF_CODES, 4, 64);
  }
  constexpr void Shape(int tile, uint8_t num_rows, uint16_t num_bytes) {
    rows[tile] = num_rows;
    row_bytes[tile] = num_bytes;
  }
};
static_assert(sizeof(TileConfig) == 64);
alignas(64) constexpr TileConfig kTileConfig;

// Configures this thread's tiles while it lives.
class TileScope {
 public:
  TileScope() {
    asm volatile("ldtilecfg %0" ::"m"(kTileConfig) : "memory");
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

BATON_INLINE void Multiply(const uint8_t* q, const uint8_t* codes, int32_t* sums) {
  _tile_zero(BATON_RESULT);
  _tile_loadd(BATON_ACTIVATIONS, q, 32);
  _tile_loadd(BATON_CODES, codes, 64);
  _tile_dpbssd(BATON_RESULT, BATON_ACTIVATIONS, BATON_CODES);
  _tile_stored(BATON_RESULT, sums, 64);
}

BATON_INLINE void MultiplyHalf(const uint8_t* q, const uint8_t* codes, int32_t* sums) {
  _tile_zero(BATON_HALF_RESULT);
  _tile_loadd(BATON_HALF_ACTIVATIONS, q, 32);
  _tile_loadd(BATON_HALF_CODES, codes, 64);
  _tile_dpbssd(BATON_HALF_RESULT, BATON_HALF_ACTIVATIONS, BATON_HALF_CODES);
  _tile_stored(BATON_HALF_RESULT, sums, 64);
}

BATON_INLINE void Scale(const int32_t* sums, VF scale, const float* d, VF* acc) {
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) acc[r] = Fma(ToFloat(LoadI(sums + r * 16)), Mul(scale, Set1(d[r])), acc[r]);
}

// 16 rows of one panel with signed codes. A last block of fewer rows computes with whatever follows its activations in
// the rows that it lacks (QuantizedRows has room for that) and drops the results. Asks for ahead_bytes from `ahead` on a
// pair of groups.
//
// A tile's store is not forwarded to loads of it, so sums are scaled a pair of groups after they were stored.
template <ScaleKind kScale>
BATON_INLINE void Block(const MatMulArgs& a, const uint8_t* panel_at, int64_t panel, int64_t row, const uint8_t* ahead,
                        int64_t ahead_bytes) {
  constexpr int kScaleBytes = ScaleBytes(kScale), kPairBytes = 2 * (kScaleBytes + 512);
  constexpr int kSums = kScale == ScaleKind::kPair ? 512 : 256;
  const int64_t groups = a.cols / 32;
  const int64_t left = a.quantized.rows - row;
  const int64_t rows = left < 16 ? left : 16;
  const int64_t cell_bytes = rows * kActivationCellBytes;
  const uint8_t* cell = a.quantized.cells + row * groups * kActivationCellBytes;
  alignas(64) int32_t sums[4][kSums];
  const auto multiply = [&](int64_t g) {
    if (g >= groups) return;
    const uint8_t* codes = panel_at + g / 2 * kPairBytes + 2 * kScaleBytes + g % 2 * 512;
    const uint8_t* q = cell + g * cell_bytes;
    int32_t* const to = sums[g % 4];
    if constexpr (kScale == ScaleKind::kPair) {
      MultiplyHalf(q, codes, to);
      MultiplyHalf(q + 16, codes + 256, to + 256);
    } else {
      Multiply(q, codes, to);
    }
  };
  VF acc[16];
  for (int r = 0; r < 16; ++r) acc[r] = Zero();
  multiply(0);
  multiply(1);
  for (int64_t g = 0; g < groups; ++g) {
    if (g % 2 == 0) {
      multiply(g + 2);
      multiply(g + 3);
      for (int64_t byte = 0; byte < ahead_bytes; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
      ahead += ahead_bytes;
    }
    const int32_t* const from = sums[g % 4];
    const uint8_t* const scales = panel_at + g / 2 * kPairBytes + g % 2 * kScaleBytes;
    const float* d = reinterpret_cast<const float*>(cell + g * cell_bytes + rows * 32);
    if constexpr (kScale == ScaleKind::kPair) {
      Scale(from, Load(reinterpret_cast<const float*>(scales)), d, acc);
      Scale(from + 256, Load(reinterpret_cast<const float*>(scales + 64)), d, acc);
    } else if constexpr (kScale == ScaleKind::kFloatMin) {
      Scale(from, Load(reinterpret_cast<const float*>(scales)), d, acc);
    } else {
      Scale(from, LoadHalf(scales), d, acc);
    }
    if constexpr (HasMin(kScale)) {
      const VF minimum =
          kScale == ScaleKind::kHalfMin ? LoadHalf(scales + 32) : Load(reinterpret_cast<const float*>(scales + 64));
      const float* const s = d + rows;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) acc[r] = Fma(minimum, Set1(s[r]), acc[r]);
    }
  }
  StoreTile(a, panel, row, static_cast<int>(rows), acc);
}

// A panel with 8-bit codes as one with signed codes.
template <ScaleKind kScale>
BATON_INLINE void SignPanel(const uint8_t* from, int64_t pairs, uint8_t* to) {
  const VI flip = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    memcpy(to, from, 2 * ScaleBytes(kScale));
    from += 2 * ScaleBytes(kScale);
    to += 2 * ScaleBytes(kScale);
    for (int i = 0; i < 1024; i += 64) StoreI(to + i, _mm512_xor_si512(LoadI(from + i), flip));
    from += 1024;
    to += 1024;
  }
}

template <int kBits, ScaleKind kScale>
static void TileMatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  constexpr int kUnit = kActivationBlockRows;
  int64_t block_rows = (512 << 10) / (a.cols * kActivationCellBytes / 32 + 1) / kUnit * kUnit;
  if (block_rows < kUnit) block_rows = kUnit;
  const int64_t pairs = (a.cols / 32 + 1) / 2;
  const TileScope scope;
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const uint8_t* const at = a.panels + panel * a.panel_bytes;
      if constexpr (kBits == 4) {
        ExpandPanels<kScale>(at, pairs, kScale == ScaleKind::kHalf ? -8 : 0, a.scratch);
      } else {
        SignPanel<kScale>(at, pairs, a.scratch);
      }
      asm volatile("" ::: "memory");  // tile loads read what was written
      // The next panel comes from memory while this one is computed.
      int64_t ahead_bytes = panel + 1 < panel_end ? static_cast<int64_t>(a.panel_bytes) / pairs : 0;
      for (int64_t row = begin; row < end; row += kUnit) {
        Block<kScale>(a, a.scratch, panel, row, at + a.panel_bytes, ahead_bytes);
        ahead_bytes = 0;
      }
    }
  }
}

// With fewer rows, memory is the limit and changing the sign of the codes is work on top of it.
constexpr int kTileMinRows = 16;

template <int kLayout, int kBits, ScaleKind kScale>
static void MatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  if (a.m < kTileMinRows) {
    Avx512Kernels().matmul[kLayout](a, panel_begin, panel_end);
  } else {
    TileMatMul<kBits, kScale>(a, panel_begin, panel_end);
  }
}

}  // namespace amx

const KernelTable& AmxKernels() {
  static const KernelTable table = [] {
    KernelTable t = Avx512Kernels();
    t.name = "amx";
    t.matmul[3] = amx::MatMul<3, 4, amx::ScaleKind::kHalf>;
    t.matmul[4] = amx::MatMul<4, 4, amx::ScaleKind::kHalfMin>;
    t.matmul[5] = amx::MatMul<5, 4, amx::ScaleKind::kFloatMin>;
    t.matmul[6] = amx::MatMul<6, 8, amx::ScaleKind::kHalf>;
    t.matmul[7] = amx::MatMul<7, 8, amx::ScaleKind::kHalfMin>;
    t.matmul[8] = amx::MatMul<8, 8, amx::ScaleKind::kFloatMin>;
    t.matmul[9] = amx::MatMul<9, 8, amx::ScaleKind::kPair>;
    return t;
  }();
  return table;
}

}  // namespace baton::kernels::cpu
