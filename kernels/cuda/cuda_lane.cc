#include "kernels/cuda/cuda_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<DeviceLane>> CudaLane::Create() {
  std::unique_ptr<CudaLane> lane(new CudaLane());
  absl::StatusOr<OwnedStream> stream = OwnedStream::Create();
  if (!stream.ok()) return stream.status();
  lane->stream_ = *std::move(stream);
  absl::StatusOr<DeviceMemory> sums = DeviceMemory::Allocate(kMaxChecksums * sizeof(uint64_t));
  if (!sums.ok()) return sums.status();
  lane->sums_ = *std::move(sums);
  absl::StatusOr<PinnedMemory> host_sums = PinnedMemory::Allocate(kMaxChecksums * sizeof(uint64_t));
  if (!host_sums.ok()) return host_sums.status();
  lane->host_sums_ = *std::move(host_sums);
  return lane;
}

// Before the memory that its stream's work may use.
CudaLane::~CudaLane() { (void)Wait(); }

absl::Status CudaLane::Copy(void* to, const void* from, size_t bytes) {
  return CopyWithinDevice(to, from, bytes, stream_.get());
}

absl::Status CudaLane::Wait() { return stream_.get() == nullptr ? absl::OkStatus() : Synchronize(stream_.get()); }

absl::Status CudaLane::Checksums(std::span<const void* const> data, size_t bytes, std::span<uint64_t> sums) {
  if (data.size() != sums.size() || !CanSum(bytes)) return absl::InvalidArgumentError("not blocks that can be summed");
  for (size_t done = 0; done < data.size(); done += kMaxChecksums) {
    const size_t n = std::min<size_t>(kMaxChecksums, data.size() - done);
    ChecksumArgs args = {
        .n = static_cast<int>(n), .bytes = static_cast<int64_t>(bytes), .sums = static_cast<uint64_t*>(sums_.data())};
    std::copy_n(data.begin() + static_cast<ptrdiff_t>(done), n, args.data);
    cuda::Checksums(args, stream_.get());
    if (absl::Status s = StartCopyFromDevice(host_sums_.data(), sums_.data(), n * sizeof(uint64_t), stream_.get()); !s.ok()) {
      return s;
    }
    if (absl::Status s = Wait(); !s.ok()) return s;
    std::memcpy(&sums[done], host_sums_.data(), n * sizeof(uint64_t));
  }
  return Wait();
}

}  // namespace baton::kernels::cuda
