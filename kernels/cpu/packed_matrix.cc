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

// The same with 8-bit codes: what 4-bit codes are expanded to for many rows.
PackedLayout TileLayout(PackedLayout layout) {
  switch (layout) {
    case PackedLayout::kInt4Half:
      return PackedLayout::kInt8Half;
    case PackedLayout::kInt4HalfMin:
      return PackedLayout::kInt8HalfMin;
    case PackedLayout::kInt4FloatMin:
      return PackedLayout::kInt8FloatMin;
    default:
      return layout;
  }
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

bool HasHalfScales(PackedLayout layout) {
  return layout == PackedLayout::kInt4Half || layout == PackedLayout::kInt4HalfMin ||
         layout == PackedLayout::kInt8Half || layout == PackedLayout::kInt8HalfMin;
}

// What is added to a value to make its code.
int CodeOffset(PackedLayout layout) { return layout == PackedLayout::kInt4Half ? 8 : IsFourBit(layout) ? 0 : 128; }

// Half scales came from halves in the file, so the conversion is exact.
void StoreScale(bool half, float value, uint8_t* base, int index) {
  if (half) {
    const uint16_t h = FloatToHalf(value);
    std::memcpy(base + 2 * index, &h, sizeof h);
  } else {
    std::memcpy(base + 4 * index, &value, sizeof value);
  }
}

float ReadScale(bool half, const uint8_t* base, int index) {
  if (half) {
    uint16_t h;
    std::memcpy(&h, base + 2 * index, sizeof h);
    return HalfToFloat(h);
  }
  float value;
  std::memcpy(&value, base + 4 * index, sizeof value);
  return value;
}

// False when there is no memory for the set.
bool AllocateSet(PackedLayout layout, int64_t rows, int64_t cols, WeightArena* arena, PanelSet* set) {
  set->layout = layout;
  if (IsIntegerLayout(layout)) {
    set->scales_bytes = ScalesBytes(layout);
    set->codes_bytes = IsFourBit(layout) ? 256 : 512;
    set->panel_bytes = (cols / kQuantGroup + 1) / 2 * 2 * (set->scales_bytes + set->codes_bytes);
  } else if (layout == PackedLayout::kBf16Dot) {
    set->panel_bytes = static_cast<size_t>((cols + 1) / 2) * kPanelRows * 4;
  } else {
    set->panel_bytes = static_cast<size_t>(cols) * kPanelRows * (layout == PackedLayout::kF32 ? 4 : 2);
  }
  set->memory = arena->Allocate(set->panel_bytes * ((rows + kPanelRows - 1) / kPanelRows));
  return set->memory != nullptr;
}

}  // namespace

std::unique_ptr<PackedMatrix> PackedMatrix::Allocate(const HostTensor& tensor, NumericsClass numerics,
                                                     WeightLayout layout, WeightArena* arena) {
  std::unique_ptr<PackedMatrix> matrix(new PackedMatrix(tensor));
  const PackedLayout own = LayoutFor(tensor.dtype, numerics), tiles = TileLayout(own);
  const PackedLayout first = layout == WeightLayout::kPrefill ? tiles : own;
  if (!AllocateSet(first, tensor.rows, tensor.cols, arena, &matrix->first_)) return nullptr;
  if (layout == WeightLayout::kBoth && tiles != own &&
      !AllocateSet(tiles, tensor.rows, tensor.cols, arena, &matrix->second_)) {
    return nullptr;
  }
  return matrix;
}

size_t PackedMatrix::memory_bytes() const {
  return (first_.panel_bytes + (second_.memory != nullptr ? second_.panel_bytes : 0)) * num_panels();
}

void PackedMatrix::PackPanels(const HostTensor& tensor, int64_t begin, int64_t end) {
  std::vector<float> row(IsIntegerLayout(first_.layout) ? 0 : cols_);
  for (int64_t panel = begin; panel < end; ++panel) {
    if (IsIntegerLayout(first_.layout)) {
      PackIntegerPanel(tensor, panel, first_);
      if (second_.memory != nullptr) PackIntegerPanel(tensor, panel, second_);
    } else if (first_.layout == PackedLayout::kBf16Dot) {
      PackBf16Panel(tensor, panel);
    } else {
      PackFloatPanel(tensor, panel, row.data());
    }
  }
}

void PackedMatrix::PackBf16Panel(const HostTensor& tensor, int64_t panel) {
  const int64_t super = panel / kSuperPanels * kSuperPanels;
  const int64_t width = std::min<int64_t>(num_panels() - super, kSuperPanels);
  uint8_t* const base = first_.memory.get() + super * first_.panel_bytes + (panel - super) * 64;
  const int64_t pairs = (cols_ + 1) / 2;
  constexpr int64_t kBlock = 16;  // pairs: a cache line of each row, so that what is written stays in the cache
  for (int64_t first = 0; first < pairs; first += kBlock) {
    for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
      const uint8_t* src = static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * cols_ * 2;
      for (int64_t pair = first; pair < std::min(first + kBlock, pairs); ++pair) {
        std::memcpy(base + pair * width * 64 + lane * 4, src + pair * 4, 2 * pair + 1 < cols_ ? 4 : 2);
      }
    }
  }
}

void PackedMatrix::PackFloatPanel(const HostTensor& tensor, int64_t panel, float* row) {
  uint8_t* const base = first_.memory.get() + panel * first_.panel_bytes;
  const int64_t row_bytes = cols_ / BlockElements(tensor.dtype) * BlockBytes(tensor.dtype);
  for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
    const uint8_t* src = static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * row_bytes;
    if (first_.layout == PackedLayout::kF32) {
      DequantizeRow(tensor.dtype, src, row, cols_);
      for (int64_t k = 0; k < cols_; ++k) std::memcpy(base + (k * kPanelRows + lane) * 4, &row[k], 4);
    } else {
      for (int64_t k = 0; k < cols_; ++k) std::memcpy(base + (k * kPanelRows + lane) * 2, src + k * 2, 2);
    }
  }
}

void PackedMatrix::PackIntegerPanel(const HostTensor& tensor, int64_t panel, const PanelSet& set) {
  uint8_t* const base = set.memory.get() + panel * set.panel_bytes;
  const int block_elements = static_cast<int>(BlockElements(tensor.dtype));
  const int64_t num_blocks = cols_ / block_elements;
  const int64_t block_bytes = BlockBytes(tensor.dtype);
  const bool four_bit = IsFourBit(set.layout), half = HasHalfScales(set.layout), minimum = HasMinimum(tensor.dtype);
  const int offset = CodeOffset(set.layout);
  const int scales_per_group = kQuantGroup / GroupElements(tensor.dtype);
  QuantBlock block;
  for (int lane = 0; lane < kPanelRows && panel * kPanelRows + lane < rows_; ++lane) {
    const uint8_t* src =
        static_cast<const uint8_t*>(tensor.data) + (panel * kPanelRows + lane) * num_blocks * block_bytes;
    for (int64_t b = 0; b < num_blocks; ++b) {
      DecodeBlock(tensor.dtype, src + b * block_bytes, &block);
      for (int g = 0; g < block_elements / kQuantGroup; ++g) {
        const int64_t group = b * (block_elements / kQuantGroup) + g;
        uint8_t* const scales = base + set.scales_at(group);
        for (int s = 0; s < scales_per_group; ++s) {
          StoreScale(half, block.scale[g * scales_per_group + s], scales, s * kPanelRows + lane);
        }
        if (minimum) StoreScale(half, block.minimum[g], scales, kPanelRows + lane);
        uint8_t code[kQuantGroup];
        for (int k = 0; k < kQuantGroup; ++k) code[k] = static_cast<uint8_t>(block.code[g * kQuantGroup + k] + offset);
        if (four_bit) {
          for (int k = 0; k < 16; ++k) code[k] = static_cast<uint8_t>(code[k] | code[k + 16] << 4);
        }
        uint8_t* const codes = base + set.codes_at(group) + lane * 4;
        for (int quad = 0; quad < (four_bit ? 4 : 8); ++quad) {
          std::memcpy(codes + quad * kPanelRows * 4, code + quad * 4, 4);
        }
      }
    }
  }
}

void PackedMatrix::ReadRow(int64_t row, float* out) const {
  const uint8_t* const base = first_.panel(row / kPanelRows);
  const int lane = static_cast<int>(row % kPanelRows);
  switch (first_.layout) {
    case PackedLayout::kF32:
      for (int64_t k = 0; k < cols_; ++k) std::memcpy(out + k, base + (k * kPanelRows + lane) * 4, 4);
      return;
    case PackedLayout::kF16:
    case PackedLayout::kBF16:
      for (int64_t k = 0; k < cols_; ++k) DequantizeRow(dtype_, base + (k * kPanelRows + lane) * 2, out + k, 1);
      return;
    case PackedLayout::kBf16Dot: {
      const int64_t panel = row / kPanelRows, super = panel / kSuperPanels * kSuperPanels;
      const int64_t width = std::min<int64_t>(num_panels() - super, kSuperPanels);
      const uint8_t* at = first_.panel(super) + (panel - super) * 64 + lane * 4;
      for (int64_t k = 0; k < cols_; ++k) DequantizeRow(dtype_, at + k / 2 * width * 64 + k % 2 * 2, out + k, 1);
      return;
    }
    default:
      ReadIntegerRow(row, out);
  }
}

void PackedMatrix::ReadIntegerRow(int64_t row, float* out) const {
  const uint8_t* const base = first_.panel(row / kPanelRows);
  const int lane = static_cast<int>(row % kPanelRows);
  const bool four_bit = IsFourBit(first_.layout), half = HasHalfScales(first_.layout), minimum = HasMinimum(dtype_);
  const int offset = CodeOffset(first_.layout), group_elements = GroupElements(dtype_);
  for (int64_t group = 0; group < cols_ / kQuantGroup; ++group) {
    const uint8_t* scales = base + first_.scales_at(group);
    const uint8_t* codes = base + first_.codes_at(group) + lane * 4;
    for (int k = 0; k < kQuantGroup; ++k) {
      const int at = four_bit ? k % 16 : k;
      const int byte = codes[at / 4 * kPanelRows * 4 + at % 4];
      const int code = (!four_bit ? byte : k < 16 ? byte & 0xf : byte >> 4) - offset;
      const float scaled = ReadScale(half, scales, k / group_elements * kPanelRows + lane) * static_cast<float>(code);
      out[group * kQuantGroup + k] = minimum ? scaled + ReadScale(half, scales, kPanelRows + lane) : scaled;
    }
  }
}

}  // namespace baton::kernels::cpu
