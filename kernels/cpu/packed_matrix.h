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

// One layout of a weight's panels.
struct PanelSet {
  PackedLayout layout = PackedLayout::kF32;
  size_t scales_bytes = 0;  // of one group
  size_t codes_bytes = 0;   // of one group
  size_t panel_bytes = 0;
  std::shared_ptr<uint8_t> memory;  // 64-byte aligned; null until allocated

  const uint8_t* panel(int64_t i) const { return memory.get() + i * panel_bytes; }
  // Of group `group` of 32 k in a panel.
  size_t scales_at(int64_t group) const {
    return group / 2 * 2 * (scales_bytes + codes_bytes) + group % 2 * scales_bytes;
  }
  size_t codes_at(int64_t group) const {
    return group / 2 * 2 * (scales_bytes + codes_bytes) + 2 * scales_bytes + group % 2 * codes_bytes;
  }
};

class PackedMatrix final : public WeightMatrix {
 public:
  // Zeros until packed; null when there is no memory. kF32 turns every format into f32 panels.
  static std::unique_ptr<PackedMatrix> Allocate(const HostTensor& tensor, NumericsClass numerics, WeightLayout layout,
                                                WeightArena* arena);
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  // Fills panels [begin, end) from the tensor that Allocate saw. Once for each panel, from any thread.
  void PackPanels(const HostTensor& tensor, int64_t begin, int64_t end);
  // Backend::ReadRow.
  void ReadRow(int64_t row, float* out) const;

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  size_t memory_bytes() const override;

  int64_t num_panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  // The better one for m rows.
  const PanelSet& panels(int m) const { return second_.memory != nullptr && m > kFewRows ? second_ : first_; }

 private:
  PackedMatrix(const HostTensor& tensor) : rows_(tensor.rows), cols_(tensor.cols), dtype_(tensor.dtype) {}

  void PackFloatPanel(const HostTensor& tensor, int64_t panel, float* row);
  void PackBf16Panel(const HostTensor& tensor, int64_t panel);
  void PackIntegerPanel(const HostTensor& tensor, int64_t panel, const PanelSet& set);
  void ReadIntegerRow(int64_t row, float* out) const;

  const int64_t rows_, cols_;
  const DType dtype_;
  PanelSet first_;   // the only one, or the one for few rows
  PanelSet second_;  // with kBoth, if it differs: the one for many rows
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_PACKED_MATRIX_H_
