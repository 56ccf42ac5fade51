// device_memory.h where the device is the emulator: one region of this process that nobody can touch but kernels while they
// run, and the copies here. So host code that forgot a copy ends by a signal, as it would on a GPU; kernels that were given
// other memory are found by KernelsMayUse.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#endif

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/emulator/emulator.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kReserved = size_t{4} << 30;  // of addresses
constexpr size_t kAlignment = 256;             // also what lies between two allocations, poisoned under the sanitizer

class Arena {
 public:
  static Arena& Get() {
    static auto* const arena = new Arena();
    return *arena;
  }

  void* Allocate(size_t bytes) {
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
    MutexLock lock(&mu_);
    size_t at = 0;  // the first gap that is large enough
    for (const auto& [begin, end] : used_) {
      if (begin - at >= whole) break;
      at = end;
    }
    if (whole > kReserved - at) return nullptr;
    used_[at] = at + whole;
    if (at + whole > top_) {
      top_ = (at + whole + 4095) / 4096 * 4096;
      if (open_ == 0) Protect(PROT_NONE);
    }
    void* const memory = base_ + at;
    OpenLocked();
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    std::memset(memory, 0xff, bytes);
    CloseLocked();
    return memory;
  }
  void Free(void* memory) {
    if (memory == nullptr) return;
    MutexLock lock(&mu_);
    const auto it = used_.find(static_cast<size_t>(static_cast<std::byte*>(memory) - base_));
    ASAN_POISON_MEMORY_REGION(memory, it->second - it->first);
    used_.erase(it);
  }
  bool Has(const void* memory) const {
    return memory >= base_ && memory < base_ + kReserved;
  }
  void Open() {
    MutexLock lock(&mu_);
    OpenLocked();
  }
  void Close() {
    MutexLock lock(&mu_);
    CloseLocked();
  }

 private:
  Arena() {
    void* const base = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) Die("no addresses for the emulated device's memory");
    base_ = static_cast<std::byte*>(base);
    ASAN_POISON_MEMORY_REGION(base_, kReserved);
    cuda_emulator::SetAroundGrids([] { Get().Open(); }, [] { Get().Close(); });
  }
  void OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (--open_ == 0) Protect(PROT_NONE);
  }
  void Protect(int protection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (top_ > 0 && mprotect(base_, top_, protection) != 0) Die("the emulated device's memory cannot be protected");
  }
  [[noreturn]] static void Die(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }

  std::byte* base_ = nullptr;
  Mutex mu_;
  std::map<size_t, size_t> used_ ABSL_GUARDED_BY(mu_);  // begin, end
  size_t top_ ABSL_GUARDED_BY(mu_) = 0;                 // what was ever used ends there
  int open_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::Status Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  Arena::Get().Open();
  std::memcpy(to, from, bytes);
  Arena::Get().Close();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceInfo> DescribeDevice() { return DeviceInfo{.name = "emulator", .shared_bytes_per_block = 227 << 10}; }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  DeviceMemory memory;
  memory.data_ = Arena::Get().Allocate(bytes);
  if (memory.data_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() { Arena::Get().Free(data_); }

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream) { return Copy(to, from, bytes); }
absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream) { return Copy(to, from, bytes); }
absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream) { return Copy(to, from, bytes); }
absl::Status Synchronize(Stream) { return absl::OkStatus(); }

// Ordinary memory: kernels here can use it anyway.
absl::Status ShareHostMemory(void*, size_t) { return absl::OkStatus(); }
void UnshareHostMemory(void*) {}

bool KernelsMayUse(const void* memory) { return memory == nullptr || Arena::Get().Has(memory); }

}  // namespace baton::kernels::cuda
