// The AVX-512 kernels with integer products of many rows by AMX tiles. Compiled with AMX flags (see BUILD.bazel).
//
// A tile multiplication gives the integer sums of 16 rows and 16 outputs over one group of 32 (16 for q6_k); they go
// through a buffer in the first-level cache to the same f32 steps, in the same order, as everywhere. Multiplying and scaling
// are loops of their own: behind a tile instruction vectors of 512 bits run at half the rate for some sixty cycles
// (kernels/README.md).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_avx512.h"

namespace baton::kernels::cpu {
namespace amx {

using namespace avx512;  // the abstract vector machine

// clang-format off
#include "kernels/cpu/store_tile_impl.h"
#include "kernels/cpu/panel_impl.h"
// clang-format on

// A step is what one tile product per panel adds up: the inputs that share a scale, a group of 32, or for q6_k half of one.
constexpr int StepInputs(ScaleKind kind) { return kind == ScaleKind::kPair ? 16 : 32; }

// Tile registers 0 to 3 are for sums of 16 rows and 16 outputs; from these on, two each, what is multiplied.
constexpr int kSumTiles = 4;
constexpr int kActivations = 4;  // 16 rows of a step's inputs
constexpr int kCodes = 6;        // a step of a panel: four inputs of 16 outputs in each row

// What LDTILECFG reads (Intel's Software Developer's Manual, at that instruction). A constant, and not
// built on the stack: under the address sanitizer, with its own stack for use-after-return, such a copy ended in SIGSEGV.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit constexpr TileConfig(int step_inputs) {
    for (int tile = 0; tile < kSumTiles; ++tile) Shape(tile, 16, 64);
    for (int i = 0; i < 2; ++i) {
      Shape(kActivations + i, 16, step_inputs);
      Shape(kCodes + i, step_inputs / 4, 64);
    }
  }
  constexpr void Shape(int tile, int num_rows, int num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);
template <ScaleKind kScale>
alignas(64) constexpr TileConfig kTileConfig(StepInputs(kScale));

// Configures this thread's tiles while it lives.
template <ScaleKind kScale>
class TileScope {
 public:
  TileScope() {
    asm volatile("ldtilecfg %0" ::"m"(kTileConfig<kScale>) : "memory");
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// The compiler's own are macros that take no template's constant.
template <int kTile>
BATON_INLINE void TileZero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
BATON_INLINE void TileLoad(const uint8_t* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile));
}
template <int kTile>
BATON_INLINE void TileStore(int32_t* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(kTile) : "memory");
}
template <int kSums, int kSigned, int kSignedCodes>
BATON_INLINE void TileMultiply() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kSigned), "i"(kSignedCodes));
}

// call(std::integral_constant<int, 0>) to n - 1: loops whose index names a register.
template <int... kIndex, typename Call>
BATON_INLINE void Each(std::integer_sequence<int, kIndex...>, const Call& call) {
  (call(std::integral_constant<int, kIndex>()), ...);
}
template <int kCount, typename Call>
BATON_INLINE void Each(const Call& call) {
  Each(std::make_integer_sequence<int, kCount>(), call);
}

constexpr int64_t kTileActivationBytes = 1 << 20;  // instead of kActivationCacheBytes: half of a second-level cache
constexpr int kTileElements = 256;                 // of sums
constexpr int kGroupCodes = 512;                   // bytes of a panel's group, signed

// Some blocks of 16 rows by some panels, some steps (a turn) at a time: sums, results so far, activations and codes have to
// leave room in the first-level cache (kernels/README.md). A last block of fewer rows computes with whatever follows its
// activations in the rows that it lacks (QuantizedRows has room for that) and drops the results.
template <int kBits, ScaleKind kScale, int kRowBlocks, int kPanels>
class Block {
  static constexpr int kScaleBytes = ScaleBytes(kScale), kStepsOfGroup = 32 / StepInputs(kScale);
  static constexpr int kSteps = kRowBlocks * kPanels == 4 ? 2 : 4, kGroups = kSteps / kStepsOfGroup;
  static constexpr int64_t kPairBytes = 2 * (kScaleBytes + 64 * kBits);
  static_assert(kGroups % 2 == 0, "turns begin with a pair of groups");

 public:
  Block(const MatMulArgs& a, int64_t row, int64_t panel)
      : a_(a), panel_bytes_(static_cast<int64_t>(a.panel_bytes)), row_(row), panel_(panel) {
    for (int b = 0; b < kRowBlocks; ++b) {
      const int64_t left = a.quantized.rows - row - b * 16;
      rows_[b] = left < 16 ? left : 16;
    }
  }

  // Asks for next_bytes from the last of these panels on, meanwhile.
  void Run(int64_t next_bytes) {
    const int64_t groups = a_.cols / 32, scalings = (groups + kGroups - 1) / kGroups * kPanels * kRowBlocks;
    Ahead ahead = {a_.panels + (panel_ + kPanels) * panel_bytes_, (next_bytes / 64 + scalings - 1) / scalings};
    At at;
    at.pair = a_.panels + panel_ * panel_bytes_;
    at.codes = codes_[0];
    for (int b = 0; b < kRowBlocks; ++b) at.cells[b] = a_.quantized.cells + (row_ + b * 16) * groups * kActivationCellBytes;
    int64_t left = groups;
    WriteCodes(at, left);
    while (left > 0) {
      At next = at;
      next.pair += kGroups / 2 * kPairBytes;
      next.codes = at.codes == codes_[0] ? codes_[1] : codes_[0];
      for (int b = 0; b < kRowBlocks; ++b) next.cells[b] += kGroups * rows_[b] * kActivationCellBytes;
      if (left >= kGroups) {
        Multiply<kSteps>(at);
        WriteCodes(next, left - kGroups);  // a turn before they are read: a store is not forwarded to a tile's load
        Scale<kSteps>(at, left == groups, &ahead);
      } else {
        Each<kGroups - 1>([&](auto i) {
          if (left != i + 1) return;
          this->template Multiply<(i + 1) * kStepsOfGroup>(at);
          this->template Scale<(i + 1) * kStepsOfGroup>(at, left == groups, &ahead);
        });
      }
      at = next;
      left -= kGroups;
    }
    for (int b = 0; b < kRowBlocks; ++b) {
      for (int p = 0; p < kPanels; ++p) {
        VF results[16];
        for (int r = 0; r < 16; ++r) results[r] = Load(results_[b][p] + r * 16);
        StoreTile(a_, panel_ + p, row_ + b * 16, static_cast<int>(rows_[b]), results);
      }
    }
  }

 private:
  // Where a turn's first group is.
  struct At {
    const uint8_t* pair = nullptr;  // of the first panel
    const uint8_t* cells[kRowBlocks] = {};
    uint8_t (*codes)[kPanels][kGroupCodes] = nullptr;  // [group][panel], signed
  };

  // Memory that is read next.
  struct Ahead {
    const uint8_t* from = nullptr;
    int64_t lines = 0;  // cache lines for each block of rows, panel and turn
  };

  [[gnu::always_inline]] static void WriteGroup(const uint8_t* from, uint8_t* to) {
    if constexpr (kBits == 4) {
      ExpandNibbles(from, kScale == ScaleKind::kHalf ? -8 : 0, to);
    } else {
      const VI flip = _mm512_set1_epi8(static_cast<char>(0x80));
      Each<kGroupCodes / 64>([&](auto i) { StoreI(to + i * 64, _mm512_xor_si512(LoadI(from + i * 64), flip)); });
    }
  }

  // Signed codes of the next kGroups groups, or how many are left.
  [[gnu::always_inline]] void WriteCodes(const At& at, int64_t left) {
    const int groups = left < kGroups ? static_cast<int>(left) : kGroups;
    const uint8_t* panel = at.pair + 2 * kScaleBytes;
    for (int p = 0; p < kPanels; ++p, panel += panel_bytes_) {
      for (int g = 0; g < groups; ++g) WriteGroup(panel + g / 2 * kPairBytes + g % 2 * 64 * kBits, at.codes[g][p]);
    }
    asm volatile("" ::: "memory");  // tile loads read what was written
  }

  // The sums of kCount steps. A product's sums are stored when their register is needed again: by then they are there, and
  // storing goes on beside multiplying.
  template <int kCount>
  [[gnu::always_inline]] void Multiply(const At& at) {
    constexpr int kProducts = kCount * kPanels * kRowBlocks, kLeft = kProducts < kSumTiles ? kProducts : kSumTiles;
    Each<kProducts>([this, &at](auto product) {
      constexpr int kProduct = product, kStep = kProduct / (kPanels * kRowBlocks), kPanel = kProduct / kRowBlocks % kPanels;
      constexpr int kRows = kProduct % kRowBlocks, kGroup = kStep / kStepsOfGroup, kPart = kStep % kStepsOfGroup;
      constexpr int kTile = kProduct % kSumTiles, kActivationsTile = kActivations + (kRowBlocks == 1 ? kStep % 2 : kRows);
      constexpr int kCodesTile = kCodes + kProduct / kRowBlocks % 2;
      if constexpr (kPanel == 0) {
        TileLoad<kActivationsTile>(this->Cell(at, kRows, kGroup) + kPart * StepInputs(kScale), 32);
      }
      if constexpr (kRows == 0) TileLoad<kCodesTile>(at.codes[kGroup][kPanel] + kPart * (kGroupCodes / 2), 64);
      if constexpr (kProduct >= kSumTiles) this->template Store<kProduct - kSumTiles>();
      TileZero<kTile>();
      TileMultiply<kTile, kActivationsTile, kCodesTile>();
    });
    Each<kLeft>([this](auto i) { this->template Store<kProducts - kLeft + i>(); });
  }

  // Adds up what kCount steps have given.
  template <int kCount>
  [[gnu::always_inline]] void Scale(const At& at, bool first, Ahead* ahead) {
    const uint8_t* panel = at.pair;
    for (int p = 0; p < kPanels; ++p, panel += panel_bytes_) {
      Each<kRowBlocks>([&](auto b) {
        for (int64_t line = 0; line < ahead->lines; ++line) __builtin_prefetch(ahead->from + line * 64, 0, 2);
        ahead->from += ahead->lines * 64;
        float* const held = this->results_[b][p];
        VF acc[16];
        if (first) {
          Each<16>([&](auto r) { acc[r] = Zero(); });
        } else {
          Each<16>([&](auto r) { acc[r] = Load(held + r * 16); });
        }
        Each<kCount>([&](auto s) {
          constexpr int kGroup = s / kStepsOfGroup, kPart = s % kStepsOfGroup;
          const uint8_t* const scales = panel + kGroup / 2 * kPairBytes + kGroup % 2 * kScaleBytes;
          const float* const d = reinterpret_cast<const float*>(this->Cell(at, b, kGroup) + this->rows_[b] * 32);
          const int32_t* const sums = this->sums_[(s * kPanels + p) * kRowBlocks + b];
          constexpr bool kIsFloat = kScale == ScaleKind::kPair || kScale == ScaleKind::kFloatMin;
          const VF scale = kIsFloat ? Load(reinterpret_cast<const float*>(scales + kPart * 64)) : LoadHalf(scales);
          Each<16>([&](auto r) { acc[r] = Fma(ToFloat(LoadI(sums + r * 16)), Mul(scale, Set1(d[r])), acc[r]); });
          if constexpr (HasMin(kScale)) {
            const VF minimum = kIsFloat ? Load(reinterpret_cast<const float*>(scales + 64)) : LoadHalf(scales + 32);
            const float* const sums_of_x = d + this->rows_[b];
            Each<16>([&](auto r) { acc[r] = Fma(minimum, Set1(sums_of_x[r]), acc[r]); });
          }
        });
        Each<16>([&](auto r) { avx512::Store(held + r * 16, acc[r]); });
      });
    }
  }

  const uint8_t* Cell(const At& at, int block, int group) const {
    return at.cells[block] + group * rows_[block] * kActivationCellBytes;
  }
  template <int kProduct>
  [[gnu::always_inline]] void Store() {
    TileStore<kProduct % kSumTiles>(sums_[kProduct]);
  }

  const MatMulArgs& a_;
  const int64_t panel_bytes_, row_, panel_;
  int64_t rows_[kRowBlocks];
  alignas(64) int32_t sums_[kSteps * kPanels * kRowBlocks][kTileElements];
  alignas(64) float results_[kRowBlocks][kPanels][kTileElements];  // 16 outputs for each row
  alignas(64) uint8_t codes_[2][kGroups][kPanels][kGroupCodes];
};

// Rows [begin, end) of kPanels panels; `next_panels` follow, which come from memory while these are computed.
template <int kBits, ScaleKind kScale, int kPanels>
static void MultiplyPanels(const MatMulArgs& a, int64_t panel, int64_t begin, int64_t end, int64_t next_panels) {
  const int64_t next_bytes = (next_panels < kPanels ? next_panels : kPanels) * static_cast<int64_t>(a.panel_bytes);
  int64_t row = begin;
  if constexpr (kScale != ScaleKind::kPair) {
    using Blocks = Block<kBits, kScale, 2, kPanels>;
    for (; row + kActivationBlockRows < end; row += 2 * kActivationBlockRows) {
      Blocks(a, row, panel).Run(row == begin ? next_bytes : 0);
    }
  }
  for (; row < end; row += kActivationBlockRows) {
    Block<kBits, kScale, 1, kPanels>(a, row, panel).Run(row == begin ? next_bytes : 0);
  }
}

template <int kBits, ScaleKind kScale>
static void TileMatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  constexpr int kUnit = kActivationBlockRows;
  int64_t block_rows = kTileActivationBytes / (a.cols * kActivationCellBytes / 32 + 1) / kUnit * kUnit;
  if (block_rows < kUnit) block_rows = kUnit;
  const TileScope<kScale> scope;
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    int64_t panel = panel_begin;
    for (; panel + 2 <= panel_end; panel += 2) {
      MultiplyPanels<kBits, kScale, 2>(a, panel, begin, end, panel_end - panel - 2);
    }
    if (panel < panel_end) MultiplyPanels<kBits, kScale, 1>(a, panel, begin, end, 0);
  }
}

// With fewer rows vector instructions, which take rows as they come, are as fast: memory is the limit.
constexpr int kTileMinRows = 13;

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
    t.activation_cache_bytes = amx::kTileActivationBytes;
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
