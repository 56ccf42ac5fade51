// The worker threads of one CPU backend.
//
// A job is n independent tasks. Each thread owns a contiguous share, so that it streams memory in order; whoever is
// done takes tasks from the tail of the others' shares, so that a worker that lost its core to another process delays
// the job by one task and not by its share. Workers spin briefly for the next job, then yield, then sleep.
//
// A job may have two stages without a barrier between them: whoever finds no task of the first left goes on with the
// second, whose tasks wait for just those of the first that they need (Latch).
//
// Thread contract: Run is called by one thread at a time, the caller, which computes too.
#ifndef BATON_KERNELS_CPU_THREAD_POOL_H_
#define BATON_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace baton::kernels::cpu {

// Opens when it was arrived at as often as was said. The wait spins, then yields: whoever it waits for may need the core.
class Latch {
 public:
  // While nobody waits or arrives.
  void Reset(int count) { missing_.store(count, std::memory_order_relaxed); }
  void Arrive() { missing_.fetch_sub(1, std::memory_order_release); }
  // What was written before the arrivals is seen after it.
  void Wait() const;

 private:
  std::atomic<int> missing_{0};
};

class ThreadPool {
 public:
  static constexpr int kMaxTasks = 0xffff;

  // num_threads counts the calling thread; 1 starts none.
  // Thread i is pinned to cores[i % size]; the caller only by PinCaller. No cores: nothing is pinned.
  explicit ThreadPool(int num_threads, std::vector<int> cores = {});
  // Whether this process may run on the core.
  static bool CanPinTo(int core);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Pins the calling thread as thread 0, if there are cores and it is not yet. Threads that it starts later inherit it.
  void PinCaller();

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) once for each task in [0, num_tasks), thread in [0, num_threads()), and returns when all are
  // done. num_tasks <= kMaxTasks. Tasks must not throw.
  template <typename Fn>
  void Run(int num_tasks, const Fn& fn) {
    RunStages(num_tasks, fn, 0, fn);
  }

  // The same of two stages. A task of the second may wait for any of the first (these for none), and must where it needs
  // one: it may begin before they are done, though in each thread the first stage comes first.
  template <typename First, typename Second>
  void RunStages(int num_first, const First& first, int num_second, const Second& second) {
    if (num_threads_ == 1 || num_first + num_second <= 1) {
      for (int task = 0; task < num_first; ++task) first(task, 0);
      for (int task = 0; task < num_second; ++task) second(task, 0);
      return;
    }
    struct Context {
      const First& first;
      const Second& second;
    };
    const Context context = {first, second};
    RunJob(
        num_first, num_second,
        [](const void* untyped, int stage, int task, int thread) {
          const Context& fns = *static_cast<const Context*>(untyped);
          stage == 0 ? fns.first(task, thread) : fns.second(task, thread);
        },
        &context);
  }

  // Jobs so far that all threads took part in: each ends with the one barrier that it has.
  uint32_t num_barriers() const { return job_; }

 private:
  using TaskFn = void (*)(const void* context, int stage, int task, int thread);

  // A thread's share of each stage of the current job in one word: job number (32 bits), next task (16), end (16). Claiming
  // a task is a compare-exchange on it; one that succeeds proves that the job is still running.
  struct alignas(64) Share {
    std::atomic<uint64_t> stages[2] = {0, 0};
  };

  void RunJob(int num_first, int num_second, TaskFn fn, const void* context);
  void Publish(int stage, int num_tasks);
  void WorkerLoop(int thread);
  // Waits for a job other than `last_job`; false at shutdown.
  bool WaitForJob(int thread, uint32_t last_job);
  // Works through the own share, then the others', of the first stage, then of the second.
  void Work(int thread);
  bool ClaimAndRun(int victim, int thread, int stage);

  void Pin(int thread) const;

  const int num_threads_;
  const std::vector<int> cores_;
  std::unique_ptr<Share[]> shares_;
  std::vector<std::thread> threads_;
  uint32_t job_ = 0;  // the caller's
  std::atomic<TaskFn> fn_{nullptr};
  std::atomic<const void*> context_{nullptr};
  // On the heap, so that the pool itself has ordinary alignment (gcc 12's address sanitizer misplaces others on
  // stacks).
  struct Counters {
    alignas(64) std::atomic<int> remaining{0};  // tasks of the current job that are not done
    alignas(64) std::atomic<int> num_sleeping{0};
  };
  const std::unique_ptr<Counters> counters_ = std::make_unique<Counters>();
  std::atomic<bool> stop_{false};
  Mutex mu_;
  CondVar wake_;
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_THREAD_POOL_H_
