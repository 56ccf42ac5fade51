// A device for tests that need no kernels: memory apart from the host's, and copies that are as late as they may be.
// Until a copy is done its destination holds garbage; whether it is done when it is asked for is up to a seed. Copies
// beside the calls from or to memory that is not pinned end the process.
#ifndef BATON_TESTS_FAKES_LATE_DEVICE_SPACE_H_
#define BATON_TESTS_FAKES_LATE_DEVICE_SPACE_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kernels/device_space.h"

namespace baton::fakes {

class LateDeviceSpace : public kernels::DeviceSpace {
 public:
  // kAny: by seed. kLast: no copy is done before somebody waits for it.
  enum class Done { kAny, kLast };
  explicit LateDeviceSpace(uint64_t seed, Done done = Done::kAny) : done_(done), rng_(seed) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes > room) return absl::ResourceExhaustedError("the device is full");
    auto memory = std::make_unique<std::byte[]>(bytes);
    std::memset(memory.get(), 0xff, bytes);
    void* const at = memory.get();
    memory_.emplace(at, std::move(memory));
    return at;
  }
  void Free(void* memory) override { memory_.erase(memory); }
  void Upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void Download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void CopyWithin(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void Clear(void* to, size_t bytes) override { std::memset(to, 0, bytes); }
  void Finish() override {}
  absl::StatusOr<uint64_t> FreeBytes() const override { return room; }
  absl::StatusOr<std::unique_ptr<kernels::WeightMatrix>> PackRows(const kernels::HostTensor&) override {
    return absl::UnimplementedError("no model has its weights here");
  }
  uint64_t PackedBytes(const kernels::HostTensor&) const override { return 0; }
  uint64_t PackedRowsBytes(const kernels::HostTensor&) const override { return 0; }
  void ReadRows(const kernels::WeightMatrix&, std::span<const int32_t>, float, float*) override {
    std::fprintf(stderr, "LateDeviceSpace: no model has its weights here\n");
    std::abort();
  }

  CopyId StartUploads(std::span<const Copy> copies) override {
    uploads += static_cast<int>(copies.size());
    for (const Copy& copy : copies) RequirePinned(copy.from, copy.bytes);
    return Start(copies);
  }
  CopyId StartDownloads(std::span<const Copy> copies) override {
    downloads += static_cast<int>(copies.size());
    for (const Copy& copy : copies) RequirePinned(copy.to, copy.bytes);
    return Start(copies);
  }
  bool CopiesDone(CopyId id) override {
    while (!lots_.empty() && lots_.front().id <= id && done_ == Done::kAny && rng_() % 2 == 0) RunOne();
    return lots_.empty() || lots_.front().id > id;
  }
  void WaitCopies(CopyId id) override {
    while (!lots_.empty() && lots_.front().id <= id) RunOne();
  }
  absl::Status Pin(void* memory, size_t bytes) override {
    pinned_[static_cast<std::byte*>(memory)] = bytes;
    return absl::OkStatus();
  }
  void Unpin(void* memory) override {
    if (pinned_.erase(static_cast<std::byte*>(memory)) == 0) std::abort();
  }
  absl::Status CheckLayout(const kernels::KvLayout&) const override { return absl::OkStatus(); }

  size_t room = size_t{1} << 40;   // of one allocation
  int uploads = 0, downloads = 0;  // blocks so far
  size_t allocations() const { return memory_.size(); }

 private:
  struct Lot {
    CopyId id;
    std::vector<Copy> copies;
  };

  CopyId Start(std::span<const Copy> copies) {
    for (const Copy& copy : copies) std::memset(copy.to, 0xee, copy.bytes);
    lots_.push_back({++last_, {copies.begin(), copies.end()}});
    return last_;
  }
  void RunOne() {
    for (const Copy& copy : lots_.front().copies) std::memcpy(copy.to, copy.from, copy.bytes);
    lots_.pop_front();
  }
  void RequirePinned(const void* memory, size_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(memory);
    for (const auto& [at, size] : pinned_) {
      if (begin >= at && begin + bytes <= at + size) return;
    }
    std::fprintf(stderr, "LateDeviceSpace: a copy beside the calls needs pinned memory\n");
    std::abort();
  }

  const Done done_;
  std::mt19937_64 rng_;
  std::map<void*, std::unique_ptr<std::byte[]>> memory_;
  std::map<std::byte*, size_t> pinned_;
  std::deque<Lot> lots_;
  CopyId last_ = 0;
};

}  // namespace baton::fakes

#endif  // BATON_TESTS_FAKES_LATE_DEVICE_SPACE_H_
