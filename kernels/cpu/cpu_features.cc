#include "kernels/cpu/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

bool CpuHasAvx512Bf16() { return CpuHasAvx512() && __builtin_cpu_supports("avx512bf16"); }

bool CpuHasAmx() {
  if (!CpuHasAvx512()) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if ((edx & kTile) == 0 || (edx & kInt8) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool Bf16DotIsFast() { return !__builtin_cpu_is("intel"); }

CpuSets ThisCpu() { return {CpuHasAvx2(), CpuHasAvx512(), CpuHasAvx512Bf16(), CpuHasAmx(), Bf16DotIsFast()}; }

namespace {

std::string IsaList(const CpuSets& cpu) {
  return absl::StrCat("scalar", cpu.avx2 ? ", avx2" : "", cpu.avx512 ? ", avx512" : "",
                      cpu.avx512_bf16 ? ", avx512_bf16" : "", cpu.amx ? ", amx" : "");
}

absl::StatusOr<Isa> Need(bool has, Isa isa, absl::string_view name, absl::string_view needs, const CpuSets& cpu) {
  if (has) return isa;
  return absl::InvalidArgumentError(absl::StrCat("this CPU lacks ", name, " (it needs ", needs, "); it has: ",
                                                 IsaList(cpu), "; choose one of those or auto"));
}

}  // namespace

std::string AvailableIsas() { return IsaList(ThisCpu()); }

absl::StatusOr<Isa> ResolveIsa(Isa isa, const CpuSets& cpu) {
  switch (isa) {
    case Isa::kAuto:
      if (cpu.amx) return Isa::kAmx;
      if (cpu.avx512_bf16 && cpu.bf16_dot_is_fast) return Isa::kAvx512Bf16;
      return cpu.avx512 ? Isa::kAvx512 : cpu.avx2 ? Isa::kAvx2 : Isa::kScalar;
    case Isa::kScalar:
      return isa;
    case Isa::kAvx2:
      return Need(cpu.avx2, isa, "avx2", "AVX2, FMA and F16C", cpu);
    case Isa::kAvx512:
      return Need(cpu.avx512, isa, "avx512", "AVX-512 F, BW, VL, DQ and VNNI", cpu);
    case Isa::kAmx:
      return Need(cpu.amx, isa, "amx", "AVX-512 as for avx512, AMX INT8, and Linux's leave to use tiles", cpu);
    case Isa::kAvx512Bf16:
      return Need(cpu.avx512_bf16, isa, "avx512_bf16", "AVX-512 F, BW, VL, DQ, VNNI and BF16", cpu);
  }
  return absl::InvalidArgumentError("unknown instruction set");
}

}  // namespace baton::kernels::cpu
