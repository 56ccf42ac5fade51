#include "kernels/dtype.h"

#include <bit>
#include <cstring>

#include "kernels/quant_block.h"

namespace baton::kernels {
namespace {

struct Traits {
  DType dtype;
  uint32_t ggml_type;
  int16_t block_elements;
  int16_t block_bytes;
  const char* name;
};

// Indexed by DType. ggml_type is the number GGUF stores.
constexpr Traits kTraits[] = {
    {DType::kF32, 0, 1, 4, "f32"},        {DType::kF16, 1, 1, 2, "f16"},        {DType::kBF16, 30, 1, 2, "bf16"},
    {DType::kQ4_0, 2, 32, 18, "q4_0"},    {DType::kQ4_1, 3, 32, 20, "q4_1"},    {DType::kQ5_0, 6, 32, 22, "q5_0"},
    {DType::kQ5_1, 7, 32, 24, "q5_1"},    {DType::kQ8_0, 8, 32, 34, "q8_0"},    {DType::kQ4_K, 12, 256, 144, "q4_k"},
    {DType::kQ5_K, 13, 256, 176, "q5_k"}, {DType::kQ6_K, 14, 256, 210, "q6_k"},
};

const Traits& TraitsOf(DType dtype) { return kTraits[static_cast<size_t>(dtype)]; }

void DequantizeBlocks(DType dtype, const uint8_t* src, float* dst, int64_t n) {
  const int64_t block_elements = BlockElements(dtype);
  const int64_t block_bytes = BlockBytes(dtype);
  const int group = GroupElements(dtype);
  const bool has_minimum = HasMinimum(dtype);
  QuantBlock block;
  for (int64_t begin = 0; begin < n; begin += block_elements, src += block_bytes) {
    DecodeBlock(dtype, src, &block);
    for (int64_t i = 0; i < block_elements; ++i) {
      const float scaled = block.scale[i / group] * static_cast<float>(block.code[i]);
      dst[begin + i] = has_minimum ? scaled + block.minimum[i / group] : scaled;
    }
  }
}

}  // namespace

int64_t BlockElements(DType dtype) { return TraitsOf(dtype).block_elements; }
int64_t BlockBytes(DType dtype) { return TraitsOf(dtype).block_bytes; }
absl::string_view Name(DType dtype) { return TraitsOf(dtype).name; }

std::optional<DType> FromGgmlType(uint32_t ggml_type) {
  for (const Traits& traits : kTraits) {
    if (traits.ggml_type == ggml_type) return traits.dtype;
  }
  return std::nullopt;
}

std::optional<DType> FromName(absl::string_view name) {
  for (const Traits& traits : kTraits) {
    if (name == traits.name) return traits.dtype;
  }
  return std::nullopt;
}

void DequantizeRow(DType dtype, const void* src, float* dst, int64_t n) {
  const uint8_t* bytes = static_cast<const uint8_t*>(src);
  switch (dtype) {
    case DType::kF32:
      std::memcpy(dst, bytes, n * sizeof(float));
      return;
    case DType::kF16:
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t h;
        std::memcpy(&h, bytes + 2 * i, sizeof h);
        dst[i] = dtype == DType::kF16 ? HalfToFloat(h) : Bf16ToFloat(h);
      }
      return;
    default:
      DequantizeBlocks(dtype, bytes, dst, n);
  }
}

float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0x1f) {  // infinity, or NaN made quiet as the hardware conversion does
    return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint16_t FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude >= 0x38800000) {                      // a normal half
    return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
  }
  // A subnormal half counts units of 2^-24, which is the last place of floats in [0.5, 1): let the addition round.
  return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000);
}

float Bf16ToFloat(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

uint16_t FloatToBf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace baton::kernels
