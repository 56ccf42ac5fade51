#include "kernels/backend.h"

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

std::optional<NumericsClass> NumericsFromName(absl::string_view name) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (Name(numerics) == name) return numerics;
  }
  return std::nullopt;
}

}  // namespace baton::kernels
