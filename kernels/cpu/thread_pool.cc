#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <utility>

namespace baton::kernels::cpu {
namespace {

constexpr int kSpins = 2000;  // of one pause each, about 50 us
constexpr int kYields = 50;   // before sleeping, which costs a wake-up of tens of microseconds

uint64_t PackShare(uint32_t job, uint32_t next, uint32_t end) { return uint64_t{job} << 32 | next << 16 | end; }
uint32_t JobOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t NextOf(uint64_t word) { return word >> 16 & 0xffff; }
uint32_t EndOf(uint64_t word) { return word & 0xffff; }

// One turn of a wait for another thread.
void Pause(int spins) {
  if (spins < kSpins) {
    _mm_pause();
  } else {
    std::this_thread::yield();  // the other may need this core
  }
}

}  // namespace

void Latch::Wait() const {
  for (int spins = 0; missing_.load(std::memory_order_acquire) > 0; ++spins) Pause(spins);
}

bool ThreadPool::CanPinTo(int core) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return core >= 0 && core < CPU_SETSIZE && sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
         CPU_ISSET(core, &allowed);
}

// May fail if the allowed cores changed meanwhile; then the thread runs where the system puts it.
void ThreadPool::Pin(int thread) const {
  if (cores_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores_[thread % cores_.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void ThreadPool::PinCaller() {
  static thread_local const ThreadPool* pinned_by = nullptr;
  if (cores_.empty() || pinned_by == this) return;
  pinned_by = this;
  Pin(0);
}

ThreadPool::ThreadPool(int num_threads, std::vector<int> cores)
    : num_threads_(num_threads < 1 ? 1 : num_threads),
      cores_(std::move(cores)),
      shares_(new Share[num_threads_]) {
  for (int thread = 1; thread < num_threads_; ++thread) {
    threads_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    MutexLock lock(&mu_);
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

// Sequentially consistent with the sleepers' count: either we see a sleeper or it sees the job.
void ThreadPool::Publish(int stage, int num_tasks) {
  for (int thread = num_threads_ - 1; thread >= 0; --thread) {
    const uint32_t begin = static_cast<uint32_t>(int64_t{num_tasks} * thread / num_threads_);
    const uint32_t end = static_cast<uint32_t>(int64_t{num_tasks} * (thread + 1) / num_threads_);
    shares_[thread].stages[stage].store(PackShare(job_, begin, end), std::memory_order_seq_cst);
  }
}

// A thread that is still looking for tasks of the last job may claim one of the second stage before any of the first: the
// caller comes to all of the first before it could wait.
void ThreadPool::RunJob(int num_first, int num_second, TaskFn fn, const void* context) {
  ++job_;
  // Published with the shares.
  fn_.store(fn, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  counters_->remaining.store(num_first + num_second, std::memory_order_relaxed);
  if (num_second > 0) Publish(1, num_second);  // otherwise nothing is left in it of the last job
  Publish(0, num_first);                       // last: workers look there for a job
  if (counters_->num_sleeping.load(std::memory_order_seq_cst) > 0) {
    MutexLock lock(&mu_);
    wake_.SignalAll();
  }
  Work(0);
  for (int spins = 0; counters_->remaining.load(std::memory_order_acquire) != 0; ++spins) Pause(spins);
}

bool ThreadPool::ClaimAndRun(int victim, int thread, int stage) {
  std::atomic<uint64_t>& word = shares_[victim].stages[stage];
  uint64_t share = word.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = NextOf(share), end = EndOf(share);
    if (next >= end) return false;
    // Read between the load and the exchange of the share: if the exchange succeeds the job was running all the while.
    const TaskFn fn = fn_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const bool own = victim == thread;
    const uint64_t claimed = own ? PackShare(JobOf(share), next + 1, end) : PackShare(JobOf(share), next, end - 1);
    if (!word.compare_exchange_weak(share, claimed, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    fn(context, stage, static_cast<int>(own ? next : end - 1), thread);
    counters_->remaining.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  }
}

void ThreadPool::Work(int thread) {
  for (int stage = 0; stage < 2; ++stage) {
    for (int i = 0; i < num_threads_; ++i) {
      const int victim = (thread + i) % num_threads_;
      while (ClaimAndRun(victim, thread, stage)) {
      }
    }
  }
}

bool ThreadPool::WaitForJob(int thread, uint32_t last_job) {
  const auto has_job = [&](std::memory_order order) { return JobOf(shares_[thread].stages[0].load(order)) != last_job; };
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (has_job(std::memory_order_acquire)) return true;
    if (stop_.load(std::memory_order_relaxed)) return false;
    if (i < kSpins) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
  MutexLock lock(&mu_);
  counters_->num_sleeping.fetch_add(1, std::memory_order_seq_cst);
  while (!has_job(std::memory_order_seq_cst) && !stop_.load()) wake_.Wait(&mu_);
  counters_->num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
  return has_job(std::memory_order_acquire);
}

void ThreadPool::WorkerLoop(int thread) {
  Pin(thread);
  uint32_t last_job = 0;
  while (WaitForJob(thread, last_job)) {
    last_job = JobOf(shares_[thread].stages[0].load(std::memory_order_acquire));
    Work(thread);
  }
}

}  // namespace baton::kernels::cpu
