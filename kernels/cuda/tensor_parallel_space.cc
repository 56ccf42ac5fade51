// TensorParallelBackend's memory: arrays, KV blocks, passes and copies.
#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/tensor_parallel.h"
#include "kernels/cuda/tensor_split.h"

namespace baton::kernels::cuda {

const TensorParallelBackend::Region& TensorParallelBackend::RegionOf(const void* pointer, size_t* offset) const {
  const auto* const byte = static_cast<const std::byte*>(pointer);
  const auto after = regions_.upper_bound(byte);
  RequireThat(after != regions_.begin() && byte < std::prev(after)->first + std::prev(after)->second.bytes,
              "an address that is not of this space");
  const auto& [begin, region] = *std::prev(after);
  *offset = static_cast<size_t>(byte - begin);
  if (region.blocks) {
    RequireThat(*offset % region.layout.block_bytes() == 0, "an address inside a block");
    *offset /= static_cast<size_t>(num_ranks());
  }
  return region;
}

absl::StatusOr<std::vector<std::byte*>> TensorParallelBackend::AllocateOnRanks(size_t bytes) {
  std::vector<std::byte*> memory;
  absl::Status failed;
  OnRanks([&](int rank, CudaBackend& backend) {
    if (!failed.ok()) return;
    const absl::StatusOr<void*> at = backend.Allocate(bytes);
    failed = at.status();
    if (at.ok()) memory.push_back(static_cast<std::byte*>(*at));
  });
  if (failed.ok()) return memory;
  FreeOnRanks(memory);
  return failed;
}

void TensorParallelBackend::FreeOnRanks(const std::vector<std::byte*>& memory) {
  OnRanks([&](int rank, CudaBackend& backend) {
    if (static_cast<size_t>(rank) < memory.size()) backend.Free(memory[rank]);
  });
}

absl::StatusOr<void*> TensorParallelBackend::Allocate(size_t bytes) {
  absl::StatusOr<std::vector<std::byte*>> at = AllocateOnRanks(bytes);
  if (!at.ok()) return at.status();
  std::byte* const address = at->front();
  regions_[address] = {.bytes = bytes, .at = *std::move(at)};
  return address;
}

absl::StatusOr<void*> TensorParallelBackend::AllocateBlocks(const KvLayout& layout, int64_t num_blocks) {
  if (num_ranks() == 1) return DeviceSpace::AllocateBlocks(layout, num_blocks);
  const size_t bytes = static_cast<size_t>(num_blocks) * layout.block_bytes();
  absl::StatusOr<std::vector<std::byte*>> at = AllocateOnRanks(bytes / static_cast<size_t>(num_ranks()));
  if (!at.ok()) return at.status();
  // Addresses that are nobody's: no rank's memory is as large as all blocks, so none of its own could stand for them.
  void* const addresses =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (addresses == MAP_FAILED) {
    FreeOnRanks(*at);
    return absl::ResourceExhaustedError(absl::StrCat("no addresses for ", bytes, " bytes of KV blocks"));
  }
  regions_[static_cast<std::byte*>(addresses)] = {.bytes = bytes, .at = *std::move(at), .blocks = true, .layout = layout};
  return addresses;
}

void TensorParallelBackend::Free(void* memory) {
  const auto it = regions_.find(static_cast<std::byte*>(memory));
  if (it == regions_.end()) return;
  FreeOnRanks(it->second.at);
  if (it->second.blocks) munmap(memory, it->second.bytes);
  regions_.erase(it);
}

StridedCopy TensorParallelBackend::BlocksOf(int rank, const Region& region, size_t offset, const void* host, size_t bytes,
                                            CopyDirection direction) const {
  const KvLayout& layout = region.layout;
  RequireThat(bytes % layout.block_bytes() == 0, "a part of a block");
  // Of each layer, keys and then values: a run on the host among those of other ranks, and alone on the device.
  const size_t all = static_cast<size_t>(layout.num_kv_heads) * layout.head_bytes();
  const size_t run = all / static_cast<size_t>(num_ranks());
  std::byte* const on_host = static_cast<std::byte*>(const_cast<void*>(host)) + static_cast<size_t>(rank) * run;
  std::byte* const on_device = region.at[rank] + offset;
  const bool up = direction == CopyDirection::kToDevice;
  return {.to = up ? on_device : on_host,
          .from = up ? on_host : on_device,
          .bytes = run,
          .rows = bytes / all,
          .to_stride = up ? run : all,
          .from_stride = up ? all : run};
}

void TensorParallelBackend::Upload(void* to, const void* from, size_t bytes) {
  if (num_ranks() == 1) return ranks_[0]->Upload(to, from, bytes);
  size_t offset = 0;
  const Region& region = RegionOf(to, &offset);
  std::vector<std::byte> own;
  OnRanks([&](int rank, CudaBackend& backend) {
    if (!region.blocks) return backend.Upload(region.at[rank] + offset, from, bytes);
    const StridedCopy copy = BlocksOf(rank, region, offset, from, bytes, CopyDirection::kToDevice);
    own.resize(copy.rows * copy.bytes);
    for (size_t row = 0; row < copy.rows; ++row) {
      std::memcpy(own.data() + row * copy.bytes, static_cast<const std::byte*>(copy.from) + row * copy.from_stride, copy.bytes);
    }
    backend.Upload(copy.to, own.data(), own.size());
  });
}

void TensorParallelBackend::Download(void* to, const void* from, size_t bytes) {
  if (num_ranks() == 1) return ranks_[0]->Download(to, from, bytes);
  size_t offset = 0;
  const Region& region = RegionOf(from, &offset);
  std::vector<std::byte> own;
  OnRanks([&](int rank, CudaBackend& backend) {
    if (!region.blocks) {
      if (rank == 0) backend.Download(to, region.at[rank] + offset, bytes);
      return;
    }
    const StridedCopy copy = BlocksOf(rank, region, offset, to, bytes, CopyDirection::kFromDevice);
    own.resize(copy.rows * copy.bytes);
    backend.Download(own.data(), copy.from, own.size());
    for (size_t row = 0; row < copy.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride, own.data() + row * copy.bytes, copy.bytes);
    }
  });
}

void TensorParallelBackend::CopyWithin(void* to, const void* from, size_t bytes) {
  OnRanks([&](int rank, CudaBackend& backend) { backend.CopyWithin(At(to, rank), At(from, rank), BytesOf(to, bytes)); });
}

void TensorParallelBackend::Clear(void* to, size_t bytes) {
  OnRanks([&](int rank, CudaBackend& backend) { backend.Clear(At(to, rank), BytesOf(to, bytes)); });
}

size_t TensorParallelBackend::BytesOf(const void* pointer, size_t bytes) const {
  size_t offset = 0;
  if (num_ranks() == 1 || !RegionOf(pointer, &offset).blocks) return bytes;
  return bytes / static_cast<size_t>(num_ranks());
}

void TensorParallelBackend::Finish() {
  OnRanks([](int, CudaBackend& backend) { backend.Finish(); });
}

absl::StatusOr<uint64_t> TensorParallelBackend::FreeBytes() const {
  absl::StatusOr<uint64_t> least = ranks_[0]->FreeBytes();
  OnRanks([&](int, CudaBackend& backend) {
    const absl::StatusOr<uint64_t> free = backend.FreeBytes();
    if (least.ok() && (!free.ok() || *free < *least)) least = free;
  });
  return least.ok() ? absl::StatusOr<uint64_t>(*least * static_cast<uint64_t>(num_ranks())) : least;
}

int TensorParallelBackend::PassRows(const Pass& pass) const {
  return num_ranks() == 1 ? ranks_[0]->PassRows(pass) : RowsOf(pass.chunks);
}

void TensorParallelBackend::RunPass(const Pass& pass, absl::FunctionRef<void()> calls) {
  if (num_ranks() == 1) return ranks_[0]->RunPass(pass, calls);
  RunPassFrom(0, pass, calls);
}

// Inside the passes of the ranks before it.
void TensorParallelBackend::RunPassFrom(int rank, const Pass& pass, absl::FunctionRef<void()> calls) {
  if (rank == num_ranks()) {
    RequireOk(UseDevice(0));
    return calls();
  }
  RequireOk(UseDevice(rank));
  ranks_[rank]->RunPass({.chunks = pass.chunks, .kv = ViewOf(pass.kv, rank)}, [&] { RunPassFrom(rank + 1, pass, calls); });
}

// Each rank's lots have the same numbers: it gets one for each of these, perhaps an empty one.
TensorParallelBackend::CopyId TensorParallelBackend::StartCopies(std::span<const Copy> copies, CopyDirection direction) {
  const bool up = direction == CopyDirection::kToDevice;
  if (num_ranks() == 1) return up ? ranks_[0]->StartUploads(copies) : ranks_[0]->StartDownloads(copies);
  CopyId id = 0;
  std::vector<StridedCopy> own;
  OnRanks([&](int rank, CudaBackend& backend) {
    own.clear();
    for (const Copy& copy : copies) {
      size_t offset = 0;
      const Region& region = RegionOf(up ? copy.to : copy.from, &offset);
      if (region.blocks) {
        own.push_back(BlocksOf(rank, region, offset, up ? copy.from : copy.to, copy.bytes, direction));
      } else if (up) {
        own.push_back({.to = region.at[rank] + offset, .from = copy.from, .bytes = copy.bytes});
      } else if (rank == 0) {
        own.push_back({.to = copy.to, .from = region.at[rank] + offset, .bytes = copy.bytes});
      }
    }
    const CopyId started = backend.StartStridedCopies(own, direction);
    RequireThat(rank == 0 || started == id, "ranks count their copies differently");
    id = started;
  });
  return id;
}

bool TensorParallelBackend::CopiesDone(CopyId id) {
  bool done = true;
  OnRanks([&](int, CudaBackend& backend) { done = backend.CopiesDone(id) && done; });
  return done;
}

void TensorParallelBackend::WaitCopies(CopyId id) {
  OnRanks([&](int, CudaBackend& backend) { backend.WaitCopies(id); });
}

// For all devices at once.
absl::Status TensorParallelBackend::Pin(void* memory, size_t bytes) { return ranks_[0]->Pin(memory, bytes); }
void TensorParallelBackend::Unpin(void* memory) { ranks_[0]->Unpin(memory); }

absl::StatusOr<std::unique_ptr<DeviceLane>> TensorParallelBackend::CreateLane() {
  if (num_ranks() > 1) return std::unique_ptr<DeviceLane>();
  return ranks_[0]->CreateLane();
}

absl::Status TensorParallelBackend::CheckLayout(const KvLayout& layout) const {
  if (absl::Status s = CheckKvHeads(layout.num_kv_heads, split_); !s.ok()) return s;
  return ranks_[0]->CheckLayout(LayoutOf(layout));
}

}  // namespace baton::kernels::cuda
