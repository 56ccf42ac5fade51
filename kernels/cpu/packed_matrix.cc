#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/quant_block.h"

namespace baton::kernels::cpu {
namespace {

PackedLayout LayoutFor(DType dtype, NumericsClass numerics) {
  if (numerics == NumericsClass::kF32) return PackedLayout::kF32;
  switch (dtype) {
    case DType::kF32:
      return PackedLayout::kF32;
    case DType::kF16:
      return PackedLayout::kF16;
    case DType::kBF16:
      return numerics == NumericsClass::kBf16 ? PackedLayout::kBf16Dot : PackedLayout::kBF16;
    case DType::kQ4_0:
      return PackedLayout::kInt4Half;
    case DType::kQ4_1:
      return PackedLayout::kInt4HalfMin;
    case DType::kQ4_K:
      return PackedLayout::kInt4FloatMin;
    case DType::kQ5_0:
    case DType::kQ8_0:
      return PackedLayout::kInt8Half;
    case DType::kQ5_1:
      return PackedLayout::kInt8HalfMin;
    case DType::kQ5_K:
      return PackedLayout::kInt8FloatMin;
    case DType::kQ6_K:
      return PackedLayout::kInt8Pair;
  }
  return PackedLayout::kF32;
}

size_t ScalesBytes(PackedLayout layout) {
  switch (layout) {
    case PackedLayout::kInt4Half:
    case PackedLayout::kInt8Half:
      return 32;
    case PackedLayout::kInt4HalfMin:
    case PackedLayout::kInt8HalfMin:
      return 64;
    case PackedLayout::kInt4FloatMin:
    case PackedLayout::kInt8FloatMin:
    case PackedLayout::kInt8Pair:
      return 128;
    default:
      return 0;
  }
}

bool IsFourBit(PackedLayout layout) {
  return layout == PackedLayout::kInt4Half || layout == PackedLayout::kInt4HalfMin ||
         layout == PackedLayout::kInt4FloatMin;
}

// Half scales came from halves in the file, so the conversion is exact.
void StoreScale(bool half, float value, uint8_t* base, int index) {
  if (half) {
    const uint16_t h = FloatToHalf(value);
    std::memcpy(base + 2 * index, &h, sizeof h);
  } else {
    std::memcpy(base + 4 * index, &value, sizeof value);
  }
}

}  // namespace

PackedMatrix::PackedMatrix(const HostTensor& tensor, NumericsClass numerics, WeightArena* arena)
    : rows_(tensor.rows), cols_(tensor.cols), layout_(LayoutFor(tensor.dtype, numerics)) {
  if (IsIntegerLayout(layout_)) {
    const int64_t groups = cols_ / kQuantGroup;
    scales_bytes_ = ScalesBytes(layout_);
    codes_bytes_ = IsFourBit(layout_) ? 256 : 512;
    panel_bytes_ = (groups + 1) / 2 * 2 * (scales_bytes_ + codes_bytes_);
  } else if (layout_ == PackedLayout::kBf16Dot) {
    panel_bytes_ = static_cast<size_t>((cols_ + 1) / 2) * kPanelRows * 4;
  } else {
    panel_bytes_ = static_cast<size_t>(cols_) * kPanelRows * (layout_ == PackedLayout::kF32 ? 4 : 2);
  }
  memory_bytes_ = panel_bytes_ * num_panels();
  memory_ = arena->Allocate(memory_bytes_);
  data_ = memory_.get();
}

void PackedMatrix::PackPanels(const HostTensor& tensor, int64_t begin, int64_t end) {
  std::vector<float> row(IsIntegerLayout(layout_) ? 0 : cols_);
  for (int64_t panel = begin; panel < end; ++panel) {
    if (IsIntegerLayout(layout_)) {
      PackIntegerPanel(tensor, panel);
    } else if (layout_ == PackedLayout::kBf16Dot) {
      PackBf16Panel(tensor, panel);
    } else {
      PackFloatPanel(tensor, panel, row.data());
    }
  }
}

void PackedMatrix::PackBf16Panel(const HostTensor& tensor, int64_t panel) {
  const int64_t super = panel / kSuperPanels * kSuperPanels;
  const int64_t width = std::min<int64_t>(num_panels() - super, kSuperPanels);
  uint8_t* const base = data_ + super * panel_bytes_ + (panel - super) * 64;
  for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
    const uint8_t* src = static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * cols_ * 2;
    for (int64_t pair = 0; pair < (cols_ + 1) / 2; ++pair) {
      std::memcpy(base + pair * width * 64 + lane * 4, src + pair * 4, 2 * pair + 1 < cols_ ? 4 : 2);
    }
  }
}

void PackedMatrix::PackFloatPanel(const HostTensor& tensor, int64_t panel, float* row) {
  uint8_t* const base = data_ + panel * panel_bytes_;
  const int64_t row_bytes = cols_ / BlockElements(tensor.dtype) * BlockBytes(tensor.dtype);
  for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
    const uint8_t* src = static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * row_bytes;
    if (layout_ == PackedLayout::kF32) {
      DequantizeRow(tensor.dtype, src, row, cols_);
      for (int64_t k = 0; k < cols_; ++k) std::memcpy(base + (k * kPanelRows + lane) * 4, &row[k], 4);
    } else {
      for (int64_t k = 0; k < cols_; ++k) std::memcpy(base + (k * kPanelRows + lane) * 2, src + k * 2, 2);
    }
  }
}

void PackedMatrix::PackIntegerPanel(const HostTensor& tensor, int64_t panel) {
  uint8_t* const base = data_ + panel * panel_bytes_;
  const int block_elements = static_cast<int>(BlockElements(tensor.dtype));
  const int64_t num_blocks = cols_ / block_elements;
  const int64_t block_bytes = BlockBytes(tensor.dtype);
  const bool four_bit = IsFourBit(layout_);
  const bool half = layout_ == PackedLayout::kInt4Half || layout_ == PackedLayout::kInt4HalfMin ||
                    layout_ == PackedLayout::kInt8Half || layout_ == PackedLayout::kInt8HalfMin;
  const int offset = layout_ == PackedLayout::kInt4Half ? 8 : four_bit ? 0 : 128;
  const int scales_per_group = kQuantGroup / GroupElements(tensor.dtype);
  QuantBlock block;
  for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
    const uint8_t* src =
        static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * num_blocks * block_bytes;
    for (int64_t b = 0; b < num_blocks; ++b) {
      DecodeBlock(tensor.dtype, src + b * block_bytes, &block);
      for (int g = 0; g < block_elements / kQuantGroup; ++g) {
        const int64_t group = b * (block_elements / kQuantGroup) + g;
        uint8_t* const pair = base + group / 2 * 2 * (scales_bytes_ + codes_bytes_);
        uint8_t* const scales = pair + group % 2 * scales_bytes_;
        for (int s = 0; s < scales_per_group; ++s) {
          StoreScale(half, block.scale[g * scales_per_group + s], scales, s * kPanelRows + lane);
        }
        if (HasMinimum(tensor.dtype)) StoreScale(half, block.minimum[g], scales, kPanelRows + lane);
        uint8_t* const codes = pair + 2 * scales_bytes_ + group % 2 * codes_bytes_;
        for (int k = 0; k < kQuantGroup; ++k) {
          const uint8_t code = static_cast<uint8_t>(block.code[g * kQuantGroup + k] + offset);
          const int quad = k / 4;
          if (four_bit) {
            codes[(quad % 4 * kPanelRows + lane) * 4 + k % 4] |= quad < 4 ? code : code << 4;
          } else {
            codes[(quad * kPanelRows + lane) * 4 + k % 4] = code;
          }
        }
      }
    }
  }
}

}  // namespace baton::kernels::cpu
