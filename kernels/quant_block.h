// The quantized block formats reduced to one shape: integer codes, and per group a scale and (some formats) a minimum.
// Dequantization and the packing of weights for integer kernels both start from it.
#ifndef BATON_KERNELS_QUANT_BLOCK_H_
#define BATON_KERNELS_QUANT_BLOCK_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace baton::kernels {

inline constexpr int kMaxBlockElements = 256;
inline constexpr int kMaxBlockGroups = 16;

// What one block encodes: value[i] = scale[i / group] * code[i], plus minimum[i / group] if the format has minimums
// (which is then the last, separately rounded, operation).
struct QuantBlock {
  int8_t code[kMaxBlockElements];
  float scale[kMaxBlockGroups];
  float minimum[kMaxBlockGroups];  // written only for formats with minimums
};

bool IsQuantized(DType dtype);
// Elements that share a scale: 32, or 16 for q6_k. Quantized formats only.
int GroupElements(DType dtype);
bool HasMinimum(DType dtype);
// `src` is one block, unaligned. Quantized formats only.
void DecodeBlock(DType dtype, const uint8_t* src, QuantBlock* out);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_QUANT_BLOCK_H_
