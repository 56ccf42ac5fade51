#include "kernels/backend.h"

#include <utility>

namespace baton::kernels {

absl::string_view Name(NumericsClass numerics) {
  switch (numerics) {
    case NumericsClass::kF32:
      return "f32";
    case NumericsClass::kInt:
      return "int";
    case NumericsClass::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::optional<Isa> IsaFromName(absl::string_view name) {
  constexpr std::pair<absl::string_view, Isa> kNames[] = {
      {"auto", Isa::kAuto},     {"scalar", Isa::kScalar},           {"avx2", Isa::kAvx2},
      {"avx512", Isa::kAvx512}, {"avx512_bf16", Isa::kAvx512Bf16}, {"amx", Isa::kAmx},
  };
  for (const auto& [known, isa] : kNames) {
    if (name == known) return isa;
  }
  return std::nullopt;
}

std::optional<NumericsClass> NumericsFromName(absl::string_view name) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (Name(numerics) == name) return numerics;
  }
  return std::nullopt;
}

}  // namespace baton::kernels
