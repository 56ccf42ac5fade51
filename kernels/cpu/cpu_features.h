// Which instruction sets this CPU, and its operating system, can run.
#ifndef BATON_KERNELS_CPU_CPU_FEATURES_H_
#define BATON_KERNELS_CPU_CPU_FEATURES_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace baton::kernels::cpu {

bool CpuHasAvx2();    // with FMA and F16C
bool CpuHasAvx512();  // F, BW, VL, DQ and VNNI

// "scalar, avx2"
std::string AvailableIsas();

// kAuto becomes the best available; a set that is not available is INVALID_ARGUMENT.
absl::StatusOr<Isa> ResolveIsa(Isa isa, bool has_avx2, bool has_avx512);

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_CPU_FEATURES_H_
