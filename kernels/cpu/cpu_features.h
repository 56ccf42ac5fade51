// Which instruction sets this CPU, and its operating system, can run.
#ifndef BATON_KERNELS_CPU_CPU_FEATURES_H_
#define BATON_KERNELS_CPU_CPU_FEATURES_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace baton::kernels::cpu {

bool CpuHasAvx2();    // with FMA and F16C
bool CpuHasAvx512();  // F, BW, VL, DQ and VNNI

bool CpuHasAvx512Bf16();  // CpuHasAvx512 and BF16
bool CpuHasAmx();  // CpuHasAvx512 and AMX INT8, and Linux lets this process use tiles (asks for it)
// Whether vdpbf16ps is faster than two FMAs here: not on Intel's CPUs.
bool Bf16DotIsFast();

// "scalar, avx2"
std::string AvailableIsas();

// kAuto becomes the best available; a set that is not available is INVALID_ARGUMENT.
struct CpuSets {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx = false, bf16_dot_is_fast = false;
};
CpuSets ThisCpu();
absl::StatusOr<Isa> ResolveIsa(Isa isa, const CpuSets& cpu);

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_CPU_FEATURES_H_
