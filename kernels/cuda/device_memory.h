// Memory, streams, events and graphs of the device: the little that host code needs of CUDA's runtime. Two implementations,
// chosen when linking: cuda_memory.cc (--config=cuda) and emulator/host_memory.cc, where memory is a region that host
// code cannot touch and streams are late as they like.
//
// Where there are several devices: what is made here is of the thread's device (UseDevice), and work is given to its streams
// only.
//
// Thread contract: any number of threads, each object and stream for one at a time. Statuses: INTERNAL with CUDA's message
// but where said.
#ifndef BATON_KERNELS_CUDA_DEVICE_MEMORY_H_
#define BATON_KERNELS_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int compute_capability = 0;           // 90 is 9.0
  uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;   // by clock and bus width; 0 if not told
  uint64_t shared_bytes_per_block = 0;  // at most, for a kernel that asks for it
  double tensor_flops_per_second = 0;   // of bf16 products summed in f32, by clock and kind; 0 if not known
};
// Of the thread's device. UNAVAILABLE when there is none.
absl::StatusOr<DeviceInfo> DescribeDevice();
// UNAVAILABLE when there are none.
absl::StatusOr<int> NumDevices();
// The calling thread's device from now on; at first 0.
absl::Status UseDevice(int device);

// Of the device's memory, not allocated by anybody.
absl::StatusOr<uint64_t> FreeDeviceMemory();

// Owns an allocation, 256-byte aligned, uninitialised. Its end waits for all that the device was given.
class DeviceMemory {
 public:
  // RESOURCE_EXHAUSTED when the device has no room, UNAVAILABLE when there is no device.
  static absl::StatusOr<DeviceMemory> Allocate(size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Owns host memory between which and its own the device copies by itself.
class PinnedMemory {
 public:
  // RESOURCE_EXHAUSTED, UNAVAILABLE as above.
  static absl::StatusOr<PinnedMemory> Allocate(size_t bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedMemory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};
// The same for memory that exists, whole pages of it. RESOURCE_EXHAUSTED when the system has not so much to give.
absl::Status PinHostMemory(void* memory, size_t bytes);
void UnpinHostMemory(void* memory);

// Owns a stream: what is launched on it is done in order, beside the work of other streams. Its end waits for that.
class OwnedStream {
 public:
  static absl::StatusOr<OwnedStream> Create();
  OwnedStream() = default;
  OwnedStream(OwnedStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~OwnedStream();
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

// Owns an event: a place in a stream.
class Event {
 public:
  static absl::StatusOr<Event> Create();
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  // The place behind what was launched on the stream so far, instead of the former one.
  absl::Status Record(Stream stream);
  // What is launched on the stream from now on waits until that place is reached.
  absl::Status HoldBack(Stream stream) const;
  // Whether it is reached (or none was ever recorded).
  absl::StatusOr<bool> Done() const;
  absl::Status Wait() const;

 private:
  void* event_ = nullptr;
};

// Owns a graph: work that was recorded from a stream, and is launched as one.
class Graph {
 public:
  // What is launched on the stream from here on is not run but recorded: kernels with their arguments' values, copies and
  // clears with their addresses. Until End, by the same thread, that thread does not wait for the device or ask whether it is
  // done, and does not allocate or free: such calls fail, and End fails after them.
  static absl::Status Begin(Stream stream);
  static absl::StatusOr<Graph> End(Stream stream);
  Graph() = default;
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Graph();  // no launch of it still runs

  // Behind what was launched on the stream before.
  absl::Status Launch(Stream stream) const;

 private:
  void* graph_ = nullptr;
};

// What was launched on the stream before is done first. These wait until they are done themselves:
absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream);
absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream stream);
// and these do not; the host's memory must be pinned.
absl::Status StartCopyToDevice(void* to, const void* from, size_t bytes, Stream stream);
absl::Status StartCopyFromDevice(void* to, const void* from, size_t bytes, Stream stream);
// `rows` runs of `bytes` each, whose begins lie a stride apart.
struct StridedCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  size_t rows = 1;
  size_t to_stride = 0, from_stride = 0;  // bytes, at least `bytes`; of one row any
};
enum class CopyDirection { kToDevice, kFromDevice };
absl::Status StartStridedCopy(const StridedCopy& copy, CopyDirection direction, Stream stream);
absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream stream);
absl::Status ClearDevice(void* to, size_t bytes, Stream stream);  // to zero
// False: surely memory that a kernel must not be given (the emulator knows its own; CUDA is not asked, and says true).
bool KernelsMayUse(const void* memory);
// Waits for all that was launched on the stream. INTERNAL with CUDA's message if any of it, or a launch, failed.
absl::Status Synchronize(Stream stream);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DEVICE_MEMORY_H_
