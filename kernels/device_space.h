// Memory of a device whose kernels cannot read the host's: what the forward pass needs beside a Backend to keep its
// activations there, and the engine to keep its KV blocks there. A backend without one (the CPU's) reads and writes
// host memory.
//
// The backend's calls and the copies here run in their order, one after the other, but not before the host goes on:
// only Download, Finish and WaitCopies wait. Host code never touches an address from Allocate. A device that fails ends
// the process, as in the backend's calls. Thread contract: the backend's.
#ifndef BATON_KERNELS_DEVICE_SPACE_H_
#define BATON_KERNELS_DEVICE_SPACE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace baton::kernels {

// Work with a device's memory for a thread that is not the backend's: what transports do with KV blocks, beside the backend's
// calls. Nothing orders it with those calls but the host: who uses it knows that the bytes it reads are final, and that nobody
// else uses those it writes until it has waited (kvcache/device_blocks.h).
//
// Thread contract: one thread at a time; one lane for each thread. The space outlives it. Errors are the device's: INTERNAL.
class DeviceLane {
 public:
  virtual ~DeviceLane() = default;  // waits
  // Begins to copy, both in the device's memory.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Waits for the copies so far.
  virtual absl::Status Wait() = 0;
  // sums[i] = XXH3-64 of `bytes` bytes of the device's memory at data[i], after the copies so far, for which it waits too.
  virtual absl::Status Checksums(std::span<const void* const> data, size_t bytes, std::span<uint64_t> sums) = 0;
  // Whether Checksums can do so many bytes.
  virtual bool CanSum(size_t bytes) const = 0;
};

class DeviceSpace {
 public:
  virtual ~DeviceSpace() = default;

  // 256-byte aligned, uninitialised. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // The same for KV blocks, block b at b * layout.block_bytes(): a KvView's base. A space of several devices keeps some heads
  // of each block on each; Upload, Download, CopyWithin, Clear and copies are then of whole blocks there, and its addresses
  // have a meaning in calls of this space and its backend only.
  virtual absl::StatusOr<void*> AllocateBlocks(const KvLayout& layout, int64_t num_blocks) {
    return Allocate(static_cast<size_t>(num_blocks) * layout.block_bytes());
  }
  // Waits for whatever may use it. Null: nothing.
  virtual void Free(void* memory) = 0;
  // Returns when `from` may be reused.
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  // Returns when the bytes are there.
  virtual void Download(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyWithin(void* to, const void* from, size_t bytes) = 0;
  virtual void Clear(void* to, size_t bytes) = 0;  // to zero
  // Waits for all calls so far.
  virtual void Finish() = 0;

  // Bytes of it that are not allocated. UNAVAILABLE, INTERNAL.
  virtual absl::StatusOr<uint64_t> FreeBytes() const = 0;

  // As PackWeights, for ReadRows alone: in the tensor's own bits, whatever weights for products become. Null for a format
  // whose bits the kernels do not read.
  virtual absl::StatusOr<std::unique_ptr<WeightMatrix>> PackRows(const HostTensor& tensor) = 0;
  // What PackWeights (PackRows) takes of the device's memory for a tensor of this format and shape, by its memory_bytes().
  // The data is not looked at. PackedRowsBytes: 0 where PackRows gives null.
  virtual uint64_t PackedBytes(const HostTensor& tensor) const = 0;
  virtual uint64_t PackedRowsBytes(const HostTensor& tensor) const = 0;
  // out[r, weight.cols()] = scale * row rows[r] of the weight: Backend::ReadRow of many.
  virtual void ReadRows(const WeightMatrix& weight, std::span<const int32_t> rows, float scale, float* out) = 0;

  // The backend's calls for one batch, behind the embeddings. What they need of the host is known in advance, so that a
  // space can give it to the device at once, and need not be asked again for calls that it was given before.
  struct Pass {
    std::span<const SequenceChunk> chunks;  // those of the pass's calls of WriteKv and Attention
    KvView kv;                              // likewise
    // Not null: passes that are equal in this, in kv and in PassRows, and of whose sequences each has one row, make the same
    // calls with the same addresses, as long as no memory of the space is freed.
    const void* repeats = nullptr;
    int room = 0;  // rows that the caller's arrays have room for, if that is more than the chunks' rows
  };
  // How many rows the calls of this pass are made for: those of the chunks, or more, up to `room`. Of rows behind the chunks'
  // any values go in, none come out and nothing is written to blocks.
  virtual int PassRows(const Pass& pass) const { return RowsOf(pass.chunks); }
  // Makes the pass's calls: by `calls`, or without it as they were made in an earlier pass. `calls` gives Rope the
  // positions of the chunks' rows (of rows behind those, none), and does nothing here but CopyWithin and Clear.
  virtual void RunPass(const Pass& pass, absl::FunctionRef<void()> calls) {
    static_cast<void>(pass);
    calls();
  }
  static int RowsOf(std::span<const SequenceChunk> chunks) {
    int rows = 0;
    for (const SequenceChunk& chunk : chunks) rows = std::max(rows, chunk.row_begin + chunk.num_rows);
    return rows;
  }

  // Copies beside the calls, between this memory and pinned memory of the host. They are done one after the other, each
  // after the calls that came before it; calls that come later do not wait for them. Until one is done its bytes on the
  // host are not to be touched, nor those on the device written.
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };
  using CopyId = uint64_t;  // ascending, from 1; of several copies the last
  virtual CopyId StartUploads(std::span<const Copy> copies) = 0;
  virtual CopyId StartDownloads(std::span<const Copy> copies) = 0;
  // Whether this one, and so all before it, are done; 0: yes.
  virtual bool CopiesDone(CopyId id) = 0;
  virtual void WaitCopies(CopyId id) = 0;
  // Makes host memory fit for these copies, until Unpin. RESOURCE_EXHAUSTED or INTERNAL when the system refuses.
  virtual absl::Status Pin(void* memory, size_t bytes) = 0;
  virtual void Unpin(void* memory) = 0;

  // Thread-safe. Null where other threads cannot work with this memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceLane>> CreateLane() { return std::unique_ptr<DeviceLane>(); }

  // FAILED_PRECONDITION for a layout whose heads the kernels cannot do on this device.
  virtual absl::Status CheckLayout(const KvLayout& layout) const = 0;
};

// Owns memory of a space.
class DeviceArray {
 public:
  DeviceArray() = default;
  static absl::StatusOr<DeviceArray> Allocate(DeviceSpace* space, size_t bytes) {
    return Own(space, space->Allocate(bytes));
  }
  static absl::StatusOr<DeviceArray> AllocateBlocks(DeviceSpace* space, const KvLayout& layout, int64_t num_blocks) {
    return Own(space, space->AllocateBlocks(layout, num_blocks));
  }
  void* data() const { return memory_.get(); }

 private:
  static absl::StatusOr<DeviceArray> Own(DeviceSpace* space, absl::StatusOr<void*> memory) {
    if (!memory.ok()) return memory.status();
    DeviceArray array;
    array.memory_ = {*memory, Release{space}};
    return array;
  }
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
  // What of the device the bits of results depend on beside the class, like "sm_90a"; empty: nothing.
  std::string kind;
};
// Over how many devices a model is split. Both are powers of two, and `ranks` divides `slices`: products whose inputs are
// split are always sums of so many slices in one order, so that results depend on `slices` and not on `ranks`.
struct TensorParallel {
  int ranks = 1;
  int slices = 1;
};
// INVALID_ARGUMENT for a class, or numbers, that it has not.
using DeviceBackendFactory = absl::StatusOr<DeviceBackend> (*)(NumericsClass numerics, const TensorParallel& split);

// By the name in settings ("cuda"). Programs that have one register it before main (kernels/cuda/register_cuda.cc).
bool RegisterDeviceBackend(absl::string_view name, DeviceBackendFactory factory);
// FAILED_PRECONDITION: this program has none of that name. Else the factory's: UNAVAILABLE without a device,
// FAILED_PRECONDITION without as many as ranks, all alike.
absl::StatusOr<DeviceBackend> CreateDeviceBackend(absl::string_view name, NumericsClass numerics,
                                                  const TensorParallel& split = {});

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DEVICE_SPACE_H_
