// Weights as the CPU kernels read them: panels of 16 output rows, interleaved so that one vector lane is one output.
// The order of every reduction is then the same in every instruction set, and no horizontal sums are needed.
#ifndef BATON_KERNELS_CPU_PACKED_MATRIX_H_
#define BATON_KERNELS_CPU_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/weight_arena.h"

namespace baton::kernels::cpu {

inline constexpr int kPanelRows = 16;
inline constexpr int kQuantGroup = 32;  // elements of an activation group

// Float layouts: element (k, lane) at [k * 16 + lane].
//
// Integer layouts: a panel is one pair of groups of 32 k after the other (an odd number of groups leaves half of the
// last pair unused): the scales (and minimums) of both groups, the codes of the first, those of the second. So one row
// streams through a panel in order, and all lines are aligned.
//   Scales of a group: [16 scales][16 minimums, if any], as halves or floats; kInt8Pair: [16 scales of k 0..15][16
//   of 16..31]. 8-bit codes, 512 bytes a group: value + 128 of (k, lane) at [k / 4][lane][k % 4]. 4-bit codes, 256
//   bytes a group: byte [j][lane][k % 4], j in 0..3, has k / 4 = j in its low half and j + 4 in its high half; q4_0:
//   value + 8.
//
// kBf16Dot: four panels (the last may be fewer) lie side by side, so that one row streams through one piece of memory with
// four independent sums a lane: (k, panel, lane) at [k / 2][panel][lane][k % 2]; an odd last k is paired with zeros.
enum class PackedLayout : uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt4Half,      // q4_0: scale; the offset of 8 is taken off in integers
  kInt4HalfMin,   // q4_1
  kInt4FloatMin,  // q4_k
  kInt8Half,      // q8_0, q5_0
  kInt8HalfMin,   // q5_1
  kInt8FloatMin,  // q5_k
  kInt8Pair,      // q6_k
  kBf16Dot,       // bf16 in the class kBf16
};
static_assert(static_cast<int>(PackedLayout::kBf16Dot) == kBf16DotLayout);

inline bool IsIntegerLayout(PackedLayout layout) {
  return layout >= PackedLayout::kInt4Half && layout <= PackedLayout::kInt8Pair;
}

class PackedMatrix final : public WeightMatrix {
 public:
  // Zeros until packed. kF32 turns every format into f32 panels.
  PackedMatrix(const HostTensor& tensor, NumericsClass numerics, WeightArena* arena);
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  // Fills panels [begin, end) from the tensor that the constructor saw. Once for each panel, from any thread.
  void PackPanels(const HostTensor& tensor, int64_t begin, int64_t end);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  size_t memory_bytes() const override { return memory_bytes_; }

  PackedLayout layout() const { return layout_; }
  int64_t num_panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  const uint8_t* panel(int64_t i) const { return data_ + i * panel_bytes_; }

 private:
  void PackBf16Panel(const HostTensor& tensor, int64_t panel);
  void PackFloatPanel(const HostTensor& tensor, int64_t panel, float* row);
  void PackIntegerPanel(const HostTensor& tensor, int64_t panel);

  const int64_t rows_, cols_;
  const PackedLayout layout_;
  size_t scales_bytes_ = 0;  // of one group
  size_t codes_bytes_ = 0;   // of one group
  size_t panel_bytes_ = 0;
  size_t memory_bytes_ = 0;
  std::shared_ptr<uint8_t> memory_;  // 64-byte aligned
  uint8_t* data_ = nullptr;          // in it
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_PACKED_MATRIX_H_
