// What this program and this machine have for `isa: cuda`, for people. Chosen by the build: CUDA's runtime
// (device_report_cuda.cc), or, without --config=cuda, nothing.
//
// Thread contract: any thread.
#ifndef BATON_KERNELS_CUDA_DEVICE_REPORT_H_
#define BATON_KERNELS_CUDA_DEVICE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

struct DeviceReport {
  struct Device {
    std::string name;  // "NVIDIA H100 80GB HBM3"
    int compute_capability = 0;
    uint64_t memory_bytes = 0;
  };
  bool built_with_cuda = false;
  std::string runtime;  // of CUDA, in this program: "13.0"; likewise the others, empty where there is none
  std::string nccl;     // the library that is loaded: "2.28.9"
  std::string driver;   // the CUDA that the driver can do
  std::vector<Device> devices;  // those that this process sees
  std::string no_devices;       // why there are none: CUDA's words
};
DeviceReport ReportDevices();

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DEVICE_REPORT_H_
