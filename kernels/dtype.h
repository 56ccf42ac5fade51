// Element types of weights and KV, by GGUF's names.
//
// Source of the block formats: the GGUF specification and ggml's published block layouts. All are little-endian.
#ifndef BATON_KERNELS_DTYPE_H_
#define BATON_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace baton::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

// Elements that one block of the format encodes (1 for plain floats, 32 or 256 for quantized formats).
int64_t BlockElements(DType dtype);
// Bytes of one block.
int64_t BlockBytes(DType dtype);
// "f32", "q4_1", ...
absl::string_view Name(DType dtype);
// From ggml's type number as GGUF stores it; nullopt for types Baton does not read.
std::optional<DType> FromGgmlType(uint32_t ggml_type);
// From Name(); nullopt when unknown.
std::optional<DType> FromName(absl::string_view name);

// dst[0, n) = the values that `src` encodes, exactly as the format defines them, in f32. n is a multiple of
// BlockElements(dtype). `src` needs no alignment.
void DequantizeRow(DType dtype, const void* src, float* dst, int64_t n);

// IEEE half and bfloat16, round to nearest even; NaN stays NaN.
float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);
float Bf16ToFloat(uint16_t b);
uint16_t FloatToBf16(float f);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DTYPE_H_
