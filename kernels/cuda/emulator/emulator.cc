#include "kernels/cuda/emulator/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cuda/emulator/async_proxy.h"
#include "kernels/cuda/emulator/fiber_context.h"
#include "kernels/cuda/emulator/tensor.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace baton::cuda_emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 << 10;  // of a block on sm_90; fewer elsewhere
constexpr int kMaxSharedObjects = 8;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what);
  std::abort();
}

enum class State { kReady, kAtBarrier, kAtWarpgroupBarrier, kInWarp, kDone };

struct Fiber {
  ThreadContext context;
  State state = State::kReady;
  uint32_t mask = 0;      // of the warp operation it waits in
  unsigned source = 0;    // the lane whose value it takes there
  uint64_t given = 0, received = 0;
  WarpFunction together = nullptr;  // what the warp operation is, if not an exchange
  void* lane = nullptr;             // what it gets of this one
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> copies;         // begun, oldest first
  std::vector<size_t> groups;       // of which so many belong to each group that is closed, oldest first
  FiberContext machine;
};

// Stacks are mapped once and reused: new memory for each block would cost more than the kernels.
std::byte* StackOf(int index) {
  static std::byte* const stacks = [] {
    void* memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Die("no memory for stacks");
    return static_cast<std::byte*>(memory);
  }();
  return stacks + index * kStackBytes;
}

struct Schedule {
  Order order = Order::kAscending;
  std::mt19937 rng;

  void Arrange(std::vector<int>* indices) {
    std::iota(indices->begin(), indices->end(), 0);
    if (order == Order::kDescending) std::reverse(indices->begin(), indices->end());
    if (order == Order::kShuffled) std::shuffle(indices->begin(), indices->end(), rng);
  }
  // Shuffled: some warps stand still for some turns, so that others get ahead of them as far as barriers let them. held: the
  // turns that each warp has yet to miss.
  void HoldBack(std::vector<unsigned>* held) {
    if (order != Order::kShuffled) return;
    for (unsigned& turns : *held) {
      if (turns > 0) {
        --turns;
      } else if (rng() % 16 == 0) {
        turns = rng() % 64;
      }
    }
  }
};

Schedule& TheSchedule() {
  static Schedule schedule;
  return schedule;
}

class Block {
 public:
  Block(uint3 block_idx, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel)
      : kernel_(kernel), fibers_(block.x * block.y * block.z) {
    dynamic_shared_ = Poisoned(shared_bytes);
    proxy_.emplace(static_cast<const std::byte*>(dynamic_shared_.get()), shared_bytes, num_fibers());
    for (size_t i = 0; i < fibers_.size(); ++i) {
      const unsigned n = static_cast<unsigned>(i);
      fibers_[i].context = {{n % block.x, n / block.x % block.y, n / block.x / block.y}, block_idx, block, grid};
    }
  }

  void Run();

  Fiber& running() { return fibers_[running_]; }
  int running_index() const { return running_; }
  Fiber& fiber(int index) { return fibers_[index]; }
  int num_fibers() const { return static_cast<int>(fibers_.size()); }
  // Leaves the running fiber until what it waits for has happened.
  void Wait(State state) {
    running().state = state;
    SwitchOut(false);
  }
  void* shared(int index, size_t bytes) {
    if (index < 0 || index >= kMaxSharedObjects) Die("too many shared objects");
    if (shared_[index] == nullptr) shared_[index] = Poisoned(bytes);
    return shared_[index].get();
  }
  void* dynamic_shared() { return dynamic_shared_.get(); }
  AsyncProxy& proxy() { return *proxy_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<void, Free>;

  // All ones: NaN as a float. Its own heap block, so that the address sanitizer guards its end.
  static Memory Poisoned(size_t bytes) {
    void* memory = std::aligned_alloc(16, std::max<size_t>((bytes + 15) / 16 * 16, 16));
    if (memory == nullptr) Die("no memory for shared memory");
    std::memset(memory, 0xff, std::max<size_t>(bytes, 16));
    return Memory(memory);
  }

  static void Entry();
  void SwitchIn(int index);
  void SwitchOut(bool ended);
  bool ReleaseWaiting();
  bool ReleaseWarp(int first);
  bool ReleaseWarpgroup(int first);

  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  int running_ = 0;
  FiberContext scheduler_;
  Memory dynamic_shared_;
  Memory shared_[kMaxSharedObjects];
  std::optional<AsyncProxy> proxy_;
  // What the address sanitizer must know of stacks.
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

Block* g_block = nullptr;
void (*g_before_grid)() = nullptr;
void (*g_after_grid)() = nullptr;

void Block::Entry() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &g_block->scheduler_stack_, &g_block->scheduler_stack_bytes_);
#endif
  g_block->kernel_();
  if (!g_block->running().copies.empty()) Die("a thread ends with copies that it has not waited for");
  g_block->proxy().Finish(g_block->running_index());
  g_block->running().state = State::kDone;
  g_block->SwitchOut(true);
}

void Block::SwitchIn(int index) {
  running_ = index;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, StackOf(index), kStackBytes);
#endif
  scheduler_.SwitchTo(&fibers_[index].machine);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Block::SwitchOut(bool ended) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(ended ? nullptr : &fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#else
  (void)ended;
#endif
  fibers_[running_].machine.SwitchTo(&scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

// A warp operation happens once all lanes of the mask are in it.
bool Block::ReleaseWarp(int first) {
  bool released = false;
  const int end = std::min(first + 32, num_fibers());
  for (int i = first; i < end; ++i) {
    if (fibers_[i].state != State::kInWarp) continue;
    const uint32_t mask = fibers_[i].mask;
    bool all = true;
    for (int lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      if (first + lane >= end) Die("a warp operation names a lane that the block does not have");
      const Fiber& other = fibers_[first + lane];
      if (other.state == State::kDone) Die("a warp operation names a lane that has ended");
      all &= other.state == State::kInWarp && other.mask == mask && other.together == fibers_[i].together;
    }
    if (!all) continue;
    released = true;
    if (fibers_[i].together != nullptr) {
      void* lanes[32];
      for (int lane = 0; lane < 32; ++lane) lanes[lane] = fibers_[first + lane].lane;
      fibers_[i].together(lanes);
    }
    for (int lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Fiber& fiber = fibers_[first + lane];
      if ((mask >> fiber.source & 1) == 0) Die("a shuffle reads from a lane outside its mask");
      fiber.received = fibers_[first + fiber.source].given;
      fiber.state = State::kReady;
    }
  }
  return released;
}

bool Block::ReleaseWarpgroup(int first) {
  const int end = std::min(first + 128, num_fibers());
  const auto waits = [](const Fiber& fiber) { return fiber.state == State::kAtWarpgroupBarrier; };
  if (!std::all_of(fibers_.begin() + first, fibers_.begin() + end, waits)) return false;
  for (int i = first; i < end; ++i) fibers_[i].state = State::kReady;
  return true;
}

bool Block::ReleaseWaiting() {
  bool released = false, barrier = true;
  for (int first = 0; first < num_fibers(); first += 32) released |= ReleaseWarp(first);
  for (int first = 0; first < num_fibers(); first += 128) released |= ReleaseWarpgroup(first);
  for (const Fiber& fiber : fibers_) barrier &= fiber.state == State::kAtBarrier || fiber.state == State::kDone;
  if (barrier) {
    for (Fiber& fiber : fibers_) {
      if (fiber.state == State::kAtBarrier) {
        fiber.state = State::kReady;
        released = true;
      }
    }
  }
  return released;
}

void Block::Run() {
  g_block = this;
  for (int i = 0; i < num_fibers(); ++i) fibers_[i].machine.Prepare(StackOf(i), kStackBytes, &Block::Entry);
  std::vector<int> order(fibers_.size());
  std::vector<unsigned> held((fibers_.size() + 31) / 32);
  for (bool done = false; !done;) {
    TheSchedule().Arrange(&order);
    TheSchedule().HoldBack(&held);
    bool ran = false, ready = false;
    for (const int i : order) {
      if (fibers_[i].state != State::kReady) continue;
      ready |= held[i / 32] > 0;
      if (held[i / 32] > 0) continue;
      SwitchIn(i);
      ran = true;
    }
    if (!ran) std::fill(held.begin(), held.end(), 0);  // nobody else can go on
    done = std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.state == State::kDone; });
    if (!done && !ReleaseWaiting() && !ready) Die("threads of a block wait at different barriers");
  }
  proxy_->FinishBlock();
#if defined(__SANITIZE_ADDRESS__)
  // The frames of Entry and SwitchOut, at the top of each stack, never returned and left their red zones.
  constexpr size_t kTop = 4096;
  for (int i = 0; i < num_fibers(); ++i) __asan_unpoison_memory_region(StackOf(i) + kStackBytes - kTop, kTop);
#endif
  g_block = nullptr;
}

}  // namespace

const ThreadContext& Current() { return g_block->running().context; }
unsigned Lane() { return static_cast<unsigned>(g_block->running_index()) % 32; }

void SetSchedule(Order order, uint32_t seed) {
  TheSchedule().order = order;
  TheSchedule().rng.seed(seed);
}

void SetAroundGrids(void (*before)(), void (*after)()) {
  g_before_grid = before;
  g_after_grid = after;
}

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  if (g_block != nullptr) Die("a kernel launches a kernel");
  if (block.x == 0 || block.y == 0 || block.z == 0 || size_t{block.x} * block.y * block.z > kMaxThreads) {
    Die("a block has 1 to 1024 threads");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    Die("a grid has 1 to 2^31 - 1 by 65535 by 65535 blocks");
  }
  if (shared_bytes > kMaxSharedBytes) Die("more shared memory than a block can have");
  std::vector<int> order(size_t{grid.x} * grid.y * grid.z);
  TheSchedule().Arrange(&order);
  if (g_before_grid != nullptr) g_before_grid();
  for (const int i : order) {
    const unsigned n = static_cast<unsigned>(i);
    Block({n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y}, grid, block, shared_bytes, kernel).Run();
  }
  if (g_after_grid != nullptr) g_after_grid();
}

AsyncProxy& TheAsyncProxy() { return g_block->proxy(); }
int ThreadIndex() { return g_block->running_index(); }

void SyncThreads() { g_block->Wait(State::kAtBarrier); }
void SyncWarpgroup() { g_block->Wait(State::kAtWarpgroupBarrier); }

void SyncWarp(uint32_t mask) { ExchangeInWarp(mask, 0, Lane()); }

uint64_t ExchangeInWarp(uint32_t mask, uint64_t value, unsigned source) {
  if ((mask >> Lane() & 1) == 0) Die("a lane calls a warp operation whose mask does not name it");
  Fiber& self = g_block->running();
  self.mask = mask;
  self.source = source;
  self.given = value;
  self.together = nullptr;
  g_block->Wait(State::kInWarp);
  return self.received;
}

void TogetherInWarp(WarpFunction all, void* lane) {
  Fiber& self = g_block->running();
  self.mask = 0xffffffff;
  self.source = Lane();
  self.together = all;
  self.lane = lane;
  g_block->Wait(State::kInWarp);
}

void CopyAsync16(void* to, const void* from) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    Die("an asynchronous copy is not aligned to its 16 bytes");
  }
  std::memset(to, 0xff, 16);
  g_block->proxy().Began(to);
  g_block->running().copies.push_back({to, from});
}

void CommitCopies() {
  Fiber& self = g_block->running();
  const size_t grouped = std::accumulate(self.groups.begin(), self.groups.end(), size_t{0});
  self.groups.push_back(self.copies.size() - grouped);
}

void WaitForCopies(int pending) {
  Fiber& self = g_block->running();
  while (self.groups.size() > static_cast<size_t>(pending)) {
    const auto end = self.copies.begin() + static_cast<ptrdiff_t>(self.groups.front());
    for (auto copy = self.copies.begin(); copy != end; ++copy) {
      if (copy->from == nullptr) {
        std::memset(copy->to, 0, 16);
      } else {
        std::memcpy(copy->to, copy->from, 16);
      }
      g_block->proxy().Arrived(g_block->running_index(), copy->to);
    }
    self.copies.erase(self.copies.begin(), end);
    self.groups.erase(self.groups.begin());
  }
}

namespace {
bool g_has_wgmma = true;
}  // namespace
bool HasWgmma() { return g_has_wgmma; }
void SetHasWgmma(bool has) { g_has_wgmma = has; }

void* SharedMemory(int index, size_t bytes) { return g_block->shared(index, bytes); }
void* DynamicShared() { return g_block->dynamic_shared(); }

}  // namespace baton::cuda_emulator
