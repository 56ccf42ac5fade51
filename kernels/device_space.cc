#include "kernels/device_space.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::kernels {
namespace {

// Written before main only.
std::map<std::string, DeviceBackendFactory>& Factories() {
  static auto* const factories = new std::map<std::string, DeviceBackendFactory>();
  return *factories;
}

}  // namespace

bool RegisterDeviceBackend(absl::string_view name, DeviceBackendFactory factory) {
  return Factories().emplace(std::string(name), factory).second;
}

absl::StatusOr<DeviceBackend> CreateDeviceBackend(absl::string_view name, NumericsClass numerics,
                                                  const TensorParallel& split) {
  const auto it = Factories().find(std::string(name));
  if (it != Factories().end()) return it->second(numerics, split);
  name = name.substr(0, name.find('-'));
  return absl::FailedPreconditionError(absl::StrCat("isa is ", name, ", and this program was built without it; build it with "
                                                    "--config=", name, ", or use auto"));
}

}  // namespace baton::kernels
