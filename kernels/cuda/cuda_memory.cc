#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {
namespace {

// The runtime keeps what a call answered (an event that is not reached, too) until somebody takes it. Whoever handles an answer
// takes it, or Synchronize would tell it as a launch's error.
void Forget() { cudaGetLastError(); }

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  Forget();
  const std::string message = absl::StrCat(what, ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status StartCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream stream) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(to, from, bytes, kind, stream), "copying to or from the GPU");
}

absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream stream) {
  const absl::Status status = StartCopy(to, from, bytes, kind, stream);
  return status.ok() ? Synchronize(stream) : status;
}

cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }
cudaGraphExec_t GraphOf(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

// Operations of a multiprocessor in a clock: bf16 products summed in f32, not sparse. From NVIDIA's data sheets: rate / clock /
// multiprocessors.
double TensorFlopsPerClock(int compute_capability) {
  switch (compute_capability) {
    case 80:
      return 2048;
    case 86:
    case 89:
    case 120:
      return 512;
    case 90:
      return 4096;
    case 100:
      return 8192;
    default:
      return 0;
  }
}

}  // namespace

absl::StatusOr<DeviceInfo> DescribeDevice() {
  int device = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "looking for a GPU"); !status.ok()) return status;
  cudaDeviceProp properties;
  if (absl::Status status = ToStatus(cudaGetDeviceProperties(&properties, device), "asking the GPU what it is");
      !status.ok()) {
    return status;
  }
  int kilohertz = 0, core_kilohertz = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device) != cudaSuccess) kilohertz = 0;
  if (cudaDeviceGetAttribute(&core_kilohertz, cudaDevAttrClockRate, device) != cudaSuccess) core_kilohertz = 0;
  Forget();
  const int compute_capability = properties.major * 10 + properties.minor;
  return DeviceInfo{.name = properties.name,
                    .compute_capability = compute_capability,
                    .memory_bytes = properties.totalGlobalMem,
                    // Two transfers a clock.
                    .memory_bytes_per_second = 2e3 * kilohertz * properties.memoryBusWidth / 8,
                    .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
                    .tensor_flops_per_second = 1e3 * core_kilohertz * properties.multiProcessorCount *
                                               TensorFlopsPerClock(compute_capability)};
}

absl::StatusOr<uint64_t> FreeDeviceMemory() {
  size_t free = 0, total = 0;
  if (absl::Status s = ToStatus(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory"); !s.ok()) return s;
  return free;
}

absl::StatusOr<int> NumDevices() {
  int devices = 0;
  if (absl::Status status = ToStatus(cudaGetDeviceCount(&devices), "looking for GPUs"); !status.ok()) return status;
  return devices;
}

absl::Status UseDevice(int device) { return ToStatus(cudaSetDevice(device), absl::StrCat("choosing GPU ", device)); }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  DeviceMemory memory;
  const absl::Status status =
      ToStatus(cudaMalloc(&memory.data_, bytes > 0 ? bytes : 1), absl::StrCat("allocating ", bytes, " bytes on the GPU"));
  if (!status.ok()) return status;
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);  // which waits for the device
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(size_t bytes) {
  PinnedMemory memory;
  const absl::Status status = ToStatus(cudaHostAlloc(&memory.data_, bytes > 0 ? bytes : 1, cudaHostAllocDefault),
                                       absl::StrCat("allocating ", bytes, " bytes of pinned host memory"));
  if (!status.ok()) return status;
  memory.bytes_ = bytes;
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

absl::Status PinHostMemory(void* memory, size_t bytes) {
  return ToStatus(cudaHostRegister(memory, bytes, cudaHostRegisterPortable),
                  absl::StrCat("pinning ", bytes, " bytes of host memory for the GPU's copies"));
}
void UnpinHostMemory(void* memory) { cudaHostUnregister(memory); }

absl::StatusOr<OwnedStream> OwnedStream::Create() {
  OwnedStream stream;
  const absl::Status status =
      ToStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "creating a stream of the GPU");
  if (!status.ok()) return status;
  return stream;
}

OwnedStream::~OwnedStream() {
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

absl::StatusOr<Event> Event::Create() {
  Event event;
  cudaEvent_t created = nullptr;
  const absl::Status status =
      ToStatus(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "creating an event of the GPU");
  if (!status.ok()) return status;
  event.event_ = created;
  return event;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(EventOf(event_));
}

absl::Status Event::Record(Stream stream) {
  return ToStatus(cudaEventRecord(EventOf(event_), stream), "marking a place in the GPU's work");
}

absl::Status Event::HoldBack(Stream stream) const {
  return ToStatus(cudaStreamWaitEvent(stream, EventOf(event_), 0), "ordering the GPU's work");
}

absl::StatusOr<bool> Event::Done() const {
  const cudaError_t error = cudaEventQuery(EventOf(event_));
  if (error == cudaErrorNotReady) {
    Forget();
    return false;
  }
  const absl::Status status = ToStatus(error, "running on the GPU");
  if (!status.ok()) return status;
  return true;
}

absl::Status Event::Wait() const { return ToStatus(cudaEventSynchronize(EventOf(event_)), "running on the GPU"); }

// Thread-local: what other threads do with the device meanwhile (transports do) is none of the recording's business.
absl::Status Graph::Begin(Stream stream) {
  return ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording work of the GPU");
}

absl::StatusOr<Graph> Graph::End(Stream stream) {
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t made = nullptr;
  absl::Status status = ToStatus(cudaStreamEndCapture(stream, &recorded), "recording work of the GPU");
  if (status.ok()) status = ToStatus(cudaGraphInstantiateWithFlags(&made, recorded, 0), "making a graph for the GPU");
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  if (!status.ok()) return status;
  Graph graph;
  graph.graph_ = made;
  return graph;
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(GraphOf(graph_));
}

absl::Status Graph::Launch(Stream stream) const {
  return ToStatus(cudaGraphLaunch(GraphOf(graph_), stream), "launching a graph on the GPU");
}

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

absl::Status StartCopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return StartCopy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

absl::Status StartCopyFromDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return StartCopy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

absl::Status StartStridedCopy(const StridedCopy& copy, CopyDirection direction, Stream stream) {
  if (copy.bytes == 0 || copy.rows == 0) return absl::OkStatus();
  const size_t to_stride = copy.rows == 1 ? copy.bytes : copy.to_stride;
  const size_t from_stride = copy.rows == 1 ? copy.bytes : copy.from_stride;
  return ToStatus(cudaMemcpy2DAsync(copy.to, to_stride, copy.from, from_stride, copy.bytes, copy.rows,
                                    direction == CopyDirection::kToDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                    stream),
                  "copying to or from the GPU");
}

absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return StartCopy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

absl::Status ClearDevice(void* to, size_t bytes, Stream stream) {
  return ToStatus(cudaMemsetAsync(to, 0, bytes, stream), "clearing memory of the GPU");
}

bool KernelsMayUse(const void*) { return true; }

absl::Status Synchronize(Stream stream) {
  const absl::Status launched = ToStatus(cudaGetLastError(), "launching a kernel");
  return launched.ok() ? ToStatus(cudaStreamSynchronize(stream), "running on the GPU") : launched;
}

}  // namespace baton::kernels::cuda
