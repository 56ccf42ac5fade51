// By CUDA's runtime and NCCL, with --config=cuda.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/device_report.h"

namespace baton::kernels::cuda {
namespace {

// 13010 is 13.1; 0: none.
std::string CudaVersion(int version) {
  return version == 0 ? "" : absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

DeviceReport ReportDevices() {
  DeviceReport report{.built_with_cuda = true};
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) report.runtime = CudaVersion(version);
  version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess) report.driver = CudaVersion(version);
  version = 0;
  if (ncclGetVersion(&version) == ncclSuccess) {
    report.nccl = absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  const absl::StatusOr<int> devices = NumDevices();
  if (!devices.ok()) {
    report.no_devices = std::string(devices.status().message());
    return report;
  }
  for (int i = 0; i < *devices; ++i) {
    absl::Status chosen = UseDevice(i);
    const absl::StatusOr<DeviceInfo> device = chosen.ok() ? DescribeDevice() : chosen;
    if (device.ok()) {
      report.devices.push_back({device->name, device->compute_capability, device->memory_bytes});
    } else {
      report.no_devices = std::string(device.status().message());
    }
  }
  if (*devices > 0) static_cast<void>(UseDevice(0));
  return report;
}

}  // namespace baton::kernels::cuda
