// Memory of a device whose kernels cannot read the host's: what the forward pass needs beside a Backend to keep its
// activations there. A backend without one (the CPU's) reads and writes host memory.
//
// Host code never touches an address from Allocate; it has Upload and Download. Thread contract: the backend's.
#ifndef BATON_KERNELS_DEVICE_SPACE_H_
#define BATON_KERNELS_DEVICE_SPACE_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace baton::kernels {

class DeviceSpace {
 public:
  virtual ~DeviceSpace() = default;

  // 256-byte aligned, uninitialised. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;  // null: nothing
  // Blocking, in the order of the backend's calls. A device that fails ends the process, as in the backend's calls.
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyWithin(void* to, const void* from, size_t bytes) = 0;

  // Lets kernels use this host memory too, at its own address, until Unshare: the KV blocks, which transports read and
  // write. FAILED_PRECONDITION when the device cannot.
  virtual absl::Status ShareHost(void* memory, size_t bytes) = 0;
  virtual void Unshare(void* memory) = 0;

  // FAILED_PRECONDITION for a layout whose heads the kernels cannot do on this device.
  virtual absl::Status CheckLayout(const KvLayout& layout) const = 0;
};

// Owns memory of a space.
class DeviceArray {
 public:
  DeviceArray() = default;
  static absl::StatusOr<DeviceArray> Allocate(DeviceSpace* space, size_t bytes) {
    absl::StatusOr<void*> memory = space->Allocate(bytes);
    if (!memory.ok()) return memory.status();
    DeviceArray array;
    array.memory_ = {*memory, Release{space}};
    return array;
  }
  void* data() const { return memory_.get(); }

 private:
  struct Release {
    DeviceSpace* space;
    void operator()(void* memory) const { space->Free(memory); }
  };
  std::unique_ptr<void, Release> memory_;
};

// A backend that runs elsewhere than on the CPU; `space` is a part of it.
struct DeviceBackend {
  std::unique_ptr<Backend> backend;
  DeviceSpace* space = nullptr;
};
using DeviceBackendFactory = absl::StatusOr<DeviceBackend> (*)();

// By the name in settings ("cuda"). Programs that have one register it before main (kernels/cuda/register_cuda.cc).
bool RegisterDeviceBackend(absl::string_view name, DeviceBackendFactory factory);
// FAILED_PRECONDITION: this program has none of that name. Else the factory's: UNAVAILABLE without a device.
absl::StatusOr<DeviceBackend> CreateDeviceBackend(absl::string_view name);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DEVICE_SPACE_H_
