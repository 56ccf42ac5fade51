// Source of the layouts: ggml's published block structures (block_q4_0 ... block_q6_K).
#include "kernels/quant_block.h"

#include <cstring>

namespace baton::kernels {
namespace {

float LoadHalf(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return HalfToFloat(h);
}

// 16 bytes hold 32 nibbles: element i in the low half of byte i, element i + 16 in its high half.
void DecodeNibbles(const uint8_t* qs, int8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = qs[i] & 0xf;
    code[i + 16] = qs[i] >> 4;
  }
}

// Adds bit i of `qh` as bit 4 of code i.
void AddFifthBit(const uint8_t* qh, int8_t* code) {
  uint32_t bits;
  std::memcpy(&bits, qh, sizeof bits);
  for (int i = 0; i < 32; ++i) code[i] |= (bits >> i & 1) << 4;
}

void Offset(int offset, int n, int8_t* code) {
  for (int i = 0; i < n; ++i) code[i] = static_cast<int8_t>(code[i] - offset);
}

// The eight 6-bit scales and eight 6-bit minimums that q4_k and q5_k pack into 12 bytes.
void DecodeKScales(const uint8_t* src, QuantBlock* out) {
  const float d = LoadHalf(src);
  const float dmin = LoadHalf(src + 2);
  const uint8_t* packed = src + 4;
  for (int j = 0; j < 8; ++j) {
    int scale, minimum;
    if (j < 4) {
      scale = packed[j] & 63;
      minimum = packed[j + 4] & 63;
    } else {
      scale = (packed[j + 4] & 0xf) | (packed[j - 4] >> 6) << 4;
      minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
    out->scale[j] = d * static_cast<float>(scale);
    out->minimum[j] = -(dmin * static_cast<float>(minimum));
  }
}

// 128 bytes of nibbles: each 32 bytes hold a group of 32 in the low halves and the next group in the high halves.
void DecodeKNibbles(const uint8_t* qs, int8_t* code) {
  for (int i = 0; i < 256; ++i) {
    const uint8_t byte = qs[i / 64 * 32 + i % 32];
    code[i] = i % 64 < 32 ? byte & 0xf : byte >> 4;
  }
}

void DecodeQ6K(const uint8_t* src, QuantBlock* out) {
  const uint8_t* low = src;
  const uint8_t* high = src + 128;
  const uint8_t* scales = src + 192;
  const float d = LoadHalf(src + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
    const uint8_t byte = low[half * 64 + quarter % 2 * 32 + l];
    const int nibble = quarter < 2 ? byte & 0xf : byte >> 4;
    const int top = high[half * 32 + l] >> (2 * quarter) & 3;
    out->code[i] = static_cast<int8_t>((nibble | top << 4) - 32);
  }
  for (int j = 0; j < 16; ++j) out->scale[j] = d * static_cast<float>(static_cast<int8_t>(scales[j]));
}

}  // namespace

bool IsQuantized(DType dtype) { return BlockElements(dtype) > 1; }

int GroupElements(DType dtype) { return dtype == DType::kQ6_K ? 16 : 32; }

bool HasMinimum(DType dtype) {
  return dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
}

void DecodeBlock(DType dtype, const uint8_t* src, QuantBlock* out) {
  switch (dtype) {
    case DType::kQ4_0:
      out->scale[0] = LoadHalf(src);
      DecodeNibbles(src + 2, out->code);
      Offset(8, 32, out->code);
      return;
    case DType::kQ4_1:
      out->scale[0] = LoadHalf(src);
      out->minimum[0] = LoadHalf(src + 2);
      DecodeNibbles(src + 4, out->code);
      return;
    case DType::kQ5_0:
      out->scale[0] = LoadHalf(src);
      DecodeNibbles(src + 6, out->code);
      AddFifthBit(src + 2, out->code);
      Offset(16, 32, out->code);
      return;
    case DType::kQ5_1:
      out->scale[0] = LoadHalf(src);
      out->minimum[0] = LoadHalf(src + 2);
      DecodeNibbles(src + 8, out->code);
      AddFifthBit(src + 4, out->code);
      return;
    case DType::kQ8_0:
      out->scale[0] = LoadHalf(src);
      std::memcpy(out->code, src + 2, 32);
      return;
    case DType::kQ4_K:
      DecodeKScales(src, out);
      DecodeKNibbles(src + 16, out->code);
      return;
    case DType::kQ5_K:
      DecodeKScales(src, out);
      DecodeKNibbles(src + 48, out->code);
      for (int i = 0; i < 256; ++i) out->code[i] |= (src[16 + i % 32] >> (i / 32) & 1) << 4;
      return;
    case DType::kQ6_K:
      DecodeQ6K(src, out);
      return;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;  // not block formats
  }
}

}  // namespace baton::kernels
