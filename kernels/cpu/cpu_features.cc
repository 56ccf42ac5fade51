#include "kernels/cpu/cpu_features.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels::cpu {

// The compiler's run-time support also checks that the operating system saves the wide registers.
bool CpuHasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

namespace {
std::string IsaList(bool has_avx2, bool has_avx512) {
  return absl::StrCat("scalar", has_avx2 ? ", avx2" : "", has_avx512 ? ", avx512" : "");
}
}  // namespace

std::string AvailableIsas() { return IsaList(CpuHasAvx2(), CpuHasAvx512()); }

absl::StatusOr<Isa> ResolveIsa(Isa isa, bool has_avx2, bool has_avx512) {
  switch (isa) {
    case Isa::kAuto:
      return has_avx512 ? Isa::kAvx512 : has_avx2 ? Isa::kAvx2 : Isa::kScalar;
    case Isa::kScalar:
      return isa;
    case Isa::kAvx2:
      if (has_avx2) return isa;
      return absl::InvalidArgumentError(absl::StrCat("this CPU lacks avx2 (it needs AVX2, FMA and F16C); it has: ",
                                                     IsaList(has_avx2, has_avx512), "; choose one of those or auto"));
    case Isa::kAvx512:
      if (has_avx512) return isa;
      return absl::InvalidArgumentError(absl::StrCat(
          "this CPU lacks avx512 (it needs AVX-512 F, BW, VL, DQ and VNNI); it has: ", IsaList(has_avx2, has_avx512),
          "; choose one of those or auto"));
  }
  return absl::InvalidArgumentError("unknown instruction set");
}

}  // namespace baton::kernels::cpu
