// Source of the layouts: NVIDIA's PTX ISA (docs.nvidia.com/cuda/parallel-thread-execution), "Warp-level Matrix Load
// Instruction: ldmatrix" and "Matrix Fragments for mma.m16n8k16 with floating point type" (9.7.14.5.8 in version 9.2).
#include "kernels/cuda/emulator/tensor.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/dtype.h"

namespace baton::cuda_emulator {
namespace {

struct MatrixLane {
  const void* row;
  uint32_t* out;
};

void LoadAll(void* const* lanes) {
  const auto lane_of = [&](int lane) { return static_cast<MatrixLane*>(lanes[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto* const row = static_cast<const uint32_t*>(lane_of(8 * matrix + lane / 4)->row);
      std::memcpy(&lane_of(lane)->out[matrix], row + lane % 4, sizeof(uint32_t));
    }
  }
}

void LoadAllTransposed(void* const* lanes) {
  const auto lane_of = [&](int lane) { return static_cast<MatrixLane*>(lanes[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto element = [&](int row) {
        return uint32_t{static_cast<const uint16_t*>(lane_of(8 * matrix + row)->row)[lane / 4]};
      };
      lane_of(lane)->out[matrix] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
    }
  }
}

void RequireAligned(const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0) return;
  std::fprintf(stderr, "CUDA emulator: ldmatrix of a row that is not aligned to its 16 bytes\n");
  std::abort();
}

struct MultiplyLane {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// Element i of pairs, the first in the low half.
template <float (*kValue)(uint16_t)>
float Element(const uint32_t* registers, int i) {
  return kValue(static_cast<uint16_t>(registers[i / 2] >> (i % 2 * 16)));
}

template <float (*kValue)(uint16_t)>
void MultiplyAll(void* const* lanes) {
  float a[16][16], b[8][16];  // b by columns
  for (int lane = 0; lane < 32; ++lane) {
    const auto* const from = static_cast<const MultiplyLane*>(lanes[lane]);
    const int group = lane / 4, in_group = lane % 4;  // groupID, threadID_in_group
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const int col = in_group * 2 + i % 2 + (i < 4 ? 0 : 8);
      a[row][col] = Element<kValue>(from->a, i);
    }
    for (int i = 0; i < 4; ++i) b[group][in_group * 2 + i % 2 + (i < 2 ? 0 : 8)] = Element<kValue>(from->b, i);
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* const d = static_cast<MultiplyLane*>(lanes[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + (i < 2 ? 0 : 8), col = lane % 4 * 2 + i % 2;
      float sum = d[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[col][k];
      d[i] = sum;
    }
  }
}

}  // namespace

void LoadMatrices(const void* row, uint32_t (&out)[4]) {
  RequireAligned(row);
  MatrixLane lane = {row, out};
  TogetherInWarp(&LoadAll, &lane);
}

void LoadMatricesTransposed(const void* row, uint32_t (&out)[4]) {
  RequireAligned(row);
  MatrixLane lane = {row, out};
  TogetherInWarp(&LoadAllTransposed, &lane);
}

void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyLane lane = {d, a, {b0, b1}};
  TogetherInWarp(&MultiplyAll<kernels::Bf16ToFloat>, &lane);
}

void MultiplyAddHalf(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyLane lane = {d, a, {b0, b1}};
  TogetherInWarp(&MultiplyAll<kernels::HalfToFloat>, &lane);
}

}  // namespace baton::cuda_emulator
