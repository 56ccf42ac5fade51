// device_memory.h where devices are the emulator: for each one region of this process that nobody can touch but its own
// kernels while they run, and the copies here. So host code that forgot a copy ends by a signal, as it would on a GPU; kernels
// that were given other memory are found by KernelsMayUse, and copies beside the host from memory that is not pinned end the
// process.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

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
#include "kernels/cuda/emulator/host_memory.h"
#include "kernels/cuda/emulator/streams.h"

namespace baton::kernels::cuda {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

constexpr int kMaxDevices = cuda_emulator::kMaxDevices;
constexpr size_t kAlignment = 256;             // also what lies between two allocations, poisoned under the sanitizer

// The memory of one device.
class Arena {
 public:
  static Arena& Of(int device) {
    Arena* existing = IfAny(device);
    if (existing != nullptr) return *existing;
    static Mutex mu;
    MutexLock lock(&mu);
    existing = IfAny(device);
    if (existing != nullptr) return *existing;
    auto* const made = new Arena((size_t{4} << 30) / (device == 0 ? 1 : 4));
    All()[device] = made;
    return *made;
  }
  // Null: nothing was ever asked of it.
  static Arena* IfAny(int device) { return All()[device]; }
  static Arena& OfThread() { return Of(cuda_emulator::CurrentDevice()); }
  // Of the device whose work runs.
  static Arena& Running() { return Of(cuda_emulator::RunningDevice()); }

  void* Allocate(size_t bytes) {
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
    MutexLock lock(&mu_);
    size_t at = 0;  // the first gap that is large enough
    for (const auto& [begin, end] : used_) {
      if (begin - at >= whole) break;
      at = end;
    }
    if (whole > reserved_ - at) return nullptr;
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
    // Whoever still uses it reads NaN.
    OpenLocked();
    ASAN_UNPOISON_MEMORY_REGION(memory, it->second - it->first);
    std::memset(memory, 0xff, it->second - it->first);
    CloseLocked();
    ASAN_POISON_MEMORY_REGION(memory, it->second - it->first);
    used_.erase(it);
  }
  uint64_t FreeBytes() {
    MutexLock lock(&mu_);
    uint64_t used = 0;
    for (const auto& [begin, end] : used_) used += end - begin;
    return reserved_ - used;
  }
  bool Has(const void* memory) const {
    return memory >= base_ && memory < base_ + reserved_;
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
  static std::atomic<Arena*>* All() {
    static std::atomic<Arena*> arenas[kMaxDevices];
    return arenas;
  }
  explicit Arena(size_t reserved) : reserved_(reserved) {
    void* const base = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) Die("no addresses for the emulated device's memory");
    base_ = static_cast<std::byte*>(base);
    ASAN_POISON_MEMORY_REGION(base_, reserved_);
    cuda_emulator::SetAroundGrids([] { Running().Open(); }, [] { Running().Close(); });
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

  const size_t reserved_;  // addresses
  std::byte* base_ = nullptr;
  Mutex mu_;
  std::map<size_t, size_t> used_ ABSL_GUARDED_BY(mu_);  // begin, end
  size_t top_ ABSL_GUARDED_BY(mu_) = 0;                 // what was ever used ends there
  int open_ ABSL_GUARDED_BY(mu_) = 0;
};

// Host memory that is pinned: begin, end.
class PinnedRanges {
 public:
  static PinnedRanges& Get() {
    static auto* const ranges = new PinnedRanges();
    return *ranges;
  }
  void Add(const void* memory, size_t bytes) {
    MutexLock lock(&mu_);
    ranges_[Address(memory)] = Address(memory) + bytes;
  }
  void Remove(const void* memory) {
    MutexLock lock(&mu_);
    if (ranges_.erase(Address(memory)) == 0) Die("memory that is not pinned is unpinned");
  }
  void RequireHas(const void* memory, size_t bytes) {
    MutexLock lock(&mu_);
    const auto after = ranges_.upper_bound(Address(memory));
    if (after == ranges_.begin() || std::prev(after)->second < Address(memory) + bytes) {
      Die("a copy beside the host needs pinned memory");
    }
  }

 private:
  static uintptr_t Address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
  Mutex mu_;
  std::map<uintptr_t, uintptr_t> ranges_ ABSL_GUARDED_BY(mu_);
};

// An error of the emulator, null if none.
absl::Status ToStatus(const char* error) {
  return error == nullptr ? absl::OkStatus() : absl::InternalError(error);
}

absl::Status StartCopy(const StridedCopy& copy, Stream stream) {
  if (copy.bytes == 0 || copy.rows == 0) return absl::OkStatus();
  ++std::atomic_ref(cuda_emulator::TheCounts().copies);
  cuda_emulator::Enqueue(stream, [copy] {
    Arena::Running().Open();
    for (size_t row = 0; row < copy.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride,
                  static_cast<const std::byte*>(copy.from) + row * copy.from_stride, copy.bytes);
    }
    Arena::Running().Close();
  });
  return absl::OkStatus();
}

absl::Status StartCopy(void* to, const void* from, size_t bytes, Stream stream) {
  return StartCopy({to, from, bytes}, stream);
}

size_t Span(size_t stride, const StridedCopy& copy) { return copy.rows == 0 ? 0 : (copy.rows - 1) * stride + copy.bytes; }

absl::Status Copy(void* to, const void* from, size_t bytes, Stream stream) {
  const absl::Status status = StartCopy(to, from, bytes, stream);
  return status.ok() ? Synchronize(stream) : status;
}

int g_compute_capability = 0;
int g_odd_device = -1, g_odd_compute_capability = 0;
int g_num_devices = kMaxDevices;

// What Event::event_ points to. A place that is not reached says so once, so that its owner meets that case.
struct Place {
  cuda_emulator::Mark mark;
  bool asked = false;
};
Place* PlaceOf(void* event) { return static_cast<Place*>(event); }

}  // namespace

absl::StatusOr<DeviceInfo> DescribeDevice() {
  const bool odd = cuda_emulator::CurrentDevice() == g_odd_device;
  return DeviceInfo{.name = "emulator",
                    .compute_capability = odd ? g_odd_compute_capability : g_compute_capability,
                    .shared_bytes_per_block = 227 << 10};
}

absl::StatusOr<int> NumDevices() { return g_num_devices; }

absl::Status UseDevice(int device) {
  if (device < 0 || device >= g_num_devices) return absl::InternalError("invalid device ordinal");
  cuda_emulator::SetDevice(device);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FreeDeviceMemory() { return Arena::OfThread().FreeBytes(); }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  if (const char* refused = cuda_emulator::RefusedWhileCapturing()) return ToStatus(refused);
  DeviceMemory memory;
  memory.data_ = Arena::OfThread().Allocate(bytes);
  if (memory.data_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr || cuda_emulator::RefusedWhileCapturing() != nullptr) return;
  cuda_emulator::RunAll();
  for (int device = 0; device < kMaxDevices; ++device) {
    Arena* const arena = Arena::IfAny(device);
    if (arena != nullptr && arena->Has(data_)) arena->Free(data_);
  }
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(size_t bytes) {
  if (const char* refused = cuda_emulator::RefusedWhileCapturing()) return ToStatus(refused);
  constexpr size_t kPage = 4096;
  PinnedMemory memory;
  memory.data_ = std::aligned_alloc(kPage, std::max(kPage, (bytes + kPage - 1) / kPage * kPage));
  if (memory.data_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  memory.bytes_ = bytes;
  PinnedRanges::Get().Add(memory.data_, bytes);
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr || cuda_emulator::RefusedWhileCapturing() != nullptr) return;
  PinnedRanges::Get().Remove(data_);
  std::free(data_);
}

absl::Status PinHostMemory(void* memory, size_t bytes) {
  if (const char* refused = cuda_emulator::RefusedWhileCapturing()) return ToStatus(refused);
  PinnedRanges::Get().Add(memory, bytes);
  return absl::OkStatus();
}
void UnpinHostMemory(void* memory) { PinnedRanges::Get().Remove(memory); }

absl::StatusOr<OwnedStream> OwnedStream::Create() {
  OwnedStream stream;
  stream.stream_ = cuda_emulator::NewStream();
  return stream;
}
OwnedStream::~OwnedStream() {
  if (stream_ != nullptr) cuda_emulator::DeleteStream(stream_);
}

absl::StatusOr<Event> Event::Create() {
  Event event;
  event.event_ = new Place();
  return event;
}
Event::~Event() { delete PlaceOf(event_); }

absl::Status Event::Record(Stream stream) {
  *PlaceOf(event_) = {cuda_emulator::MarkOf(stream)};
  return absl::OkStatus();
}
absl::Status Event::HoldBack(Stream stream) const {
  if (cuda_emulator::IsCapturing(stream)) Die("not emulated: a stream that is captured is held back");
  cuda_emulator::Enqueue(stream, [mark = PlaceOf(event_)->mark] { cuda_emulator::RunTo(mark); });
  return absl::OkStatus();
}
absl::StatusOr<bool> Event::Done() const {
  if (const char* refused = cuda_emulator::RefusedWhileCapturing()) return ToStatus(refused);
  Place* const place = PlaceOf(event_);
  if (!cuda_emulator::Passed(place->mark) && !std::exchange(place->asked, true)) return false;
  cuda_emulator::RunTo(place->mark);
  return true;
}
absl::Status Event::Wait() const {
  if (const char* refused = cuda_emulator::RefusedWhileCapturing()) return ToStatus(refused);
  cuda_emulator::RunTo(PlaceOf(event_)->mark);
  return absl::OkStatus();
}

absl::Status Graph::Begin(Stream stream) { return ToStatus(cuda_emulator::BeginCapture(stream)); }

absl::StatusOr<Graph> Graph::End(Stream stream) {
  auto recorded = std::make_unique<std::shared_ptr<const cuda_emulator::Graph>>();
  if (const char* error = cuda_emulator::EndCapture(stream, recorded.get())) return ToStatus(error);
  Graph graph;
  graph.graph_ = recorded.release();
  return graph;
}

Graph::~Graph() { delete static_cast<std::shared_ptr<const cuda_emulator::Graph>*>(graph_); }

absl::Status Graph::Launch(Stream stream) const {
  return ToStatus(cuda_emulator::LaunchGraph(*static_cast<std::shared_ptr<const cuda_emulator::Graph>*>(graph_), stream));
}

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, stream);
}
absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, stream);
}
absl::Status StartCopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0) PinnedRanges::Get().RequireHas(from, bytes);
  return StartCopy(to, from, bytes, stream);
}
absl::Status StartCopyFromDevice(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0) PinnedRanges::Get().RequireHas(to, bytes);
  return StartCopy(to, from, bytes, stream);
}
absl::Status StartStridedCopy(const StridedCopy& copy, CopyDirection direction, Stream stream) {
  const bool up = direction == CopyDirection::kToDevice;
  const size_t span = Span(up ? copy.from_stride : copy.to_stride, copy);
  if (span > 0) PinnedRanges::Get().RequireHas(up ? copy.from : copy.to, span);
  return StartCopy(copy, stream);
}
absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return StartCopy(to, from, bytes, stream);
}
absl::Status ClearDevice(void* to, size_t bytes, Stream stream) {
  cuda_emulator::Enqueue(stream, [=] {
    Arena::Running().Open();
    std::memset(to, 0, bytes);
    Arena::Running().Close();
  });
  return absl::OkStatus();
}
absl::Status Synchronize(Stream stream) {
  if (cuda_emulator::IsCapturing(stream)) {
    cuda_emulator::RefusedWhileCapturing();
    return ToStatus("operation not permitted when stream is capturing");
  }
  cuda_emulator::RunTo(cuda_emulator::MarkOf(stream));
  return absl::OkStatus();
}

bool KernelsMayUse(const void* memory) { return memory == nullptr || Arena::OfThread().Has(memory); }

}  // namespace baton::kernels::cuda

namespace baton::cuda_emulator {

void SetComputeCapability(int compute_capability) { kernels::cuda::g_compute_capability = compute_capability; }
void SetOddDevice(int device, int compute_capability) {
  kernels::cuda::g_odd_device = device;
  kernels::cuda::g_odd_compute_capability = compute_capability;
}
void SetNumDevices(int num_devices) { kernels::cuda::g_num_devices = num_devices; }

void OpenAllMemory() {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (auto* const arena = kernels::cuda::Arena::IfAny(device)) arena->Open();
  }
}
void CloseAllMemory() {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (auto* const arena = kernels::cuda::Arena::IfAny(device)) arena->Close();
  }
}

}  // namespace baton::cuda_emulator
