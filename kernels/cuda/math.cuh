// The arithmetic that kernels share: the CPU's (kernels/cpu/elementwise_impl.h, kernels/dtype.cc), one element at a time,
// the same operations in the same order.
#ifndef BATON_KERNELS_CUDA_MATH_CUH_
#define BATON_KERNELS_CUDA_MATH_CUH_

#include "kernels/cuda/device.cuh"

namespace baton::kernels::cuda {

// e^x = power * 2^n; the low bits of `shifted` hold n.
struct ExpParts {
  float power, shifted;
};
__device__ __forceinline__ ExpParts SplitExp(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  const float shifted = fmaf(x, 1.44269504f, kMagic);
  const float n = shifted - kMagic;
  float r = fmaf(n, -0.693145752f, x);
  r = fmaf(n, -1.42860677e-6f, r);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return {p, shifted};
}
// 2^(n + bias - 127)
__device__ __forceinline__ float PowerOfTwo(float shifted, uint32_t bias) {
  return __uint_as_float((__float_as_uint(shifted) + bias) << 23);
}

// 0 below -86.5, infinity above 88.72, NaN for NaN.
__device__ __forceinline__ float Exp(float x) {
  constexpr float kLow = -86.5f, kHigh = 88.72f;
  const ExpParts e = SplitExp(x < kLow ? kLow : kHigh < x ? kHigh : x);
  const float result = e.power * PowerOfTwo(e.shifted, 126) * 2.0f;
  return x < kLow ? 0.0f : kHigh < x ? __uint_as_float(0x7f800000) : result;
}

// The same bits for x that is not above 0.
__device__ __forceinline__ float ExpNotPositive(float x) {
  constexpr float kLow = -86.5f;
  const ExpParts e = SplitExp(kLow > x ? kLow : x);
  return x < kLow ? 0.0f : e.power * PowerOfTwo(e.shifted, 127);
}

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + Exp(0.0f - x)); }
__device__ __forceinline__ float Tanh(float x) { return 2.0f * Sigmoid(x + x) - 1.0f; }

__device__ __forceinline__ float Bf16Value(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float HalfValue(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return HalfToFloat(bits);
#endif
}

// To nearest, ties to even; NaN keeps its payload's high bits, as on the CPU.
__device__ __forceinline__ uint16_t HalfOf(float f) {
  const uint32_t bits = __float_as_uint(f);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude >= 0x38800000) {
    return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
  }
  return sign | static_cast<uint16_t>(__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000);
}
__device__ __forceinline__ uint16_t Bf16Of(float f) {
  const uint32_t bits = __float_as_uint(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Two bfloat16, the first in the low half; as Bf16Of, but that the device has one NaN.
__device__ __forceinline__ uint32_t Bf16Pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return Bf16Of(low) | static_cast<uint32_t>(Bf16Of(high)) << 16;
#endif
}

// Two halves, likewise.
__device__ __forceinline__ uint32_t HalfPair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return HalfOf(low) | static_cast<uint32_t>(HalfOf(high)) << 16;
#endif
}

// E4M3 that is not NaN (pack_weights.cc makes none): its bits at a wider float's place are 2^120 times too small,
// subnormals too.
__device__ __forceinline__ float E4m3Value(uint32_t code) {
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

// Two of them as bfloat16, exactly; the first is in the low half of either.
__device__ __forceinline__ uint32_t Bf16PairOfE4m3(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t spread = __byte_perm(codes, 0, 0x4140);
  const uint32_t bits = (spread & 0x00800080) << 8 | (spread & 0x007f007f) << 4;
  uint32_t pair;  // bits * 2^120 + -0
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(0x7b807b80), "r"(0x80008000));
  return pair;
#else
  return Bf16Pair(E4m3Value(codes & 0xff), E4m3Value(codes >> 8 & 0xff));
#endif
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_MATH_CUH_
