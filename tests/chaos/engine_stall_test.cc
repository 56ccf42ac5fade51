// An engine's thread that stands still in a process that lives: it answers heartbeats, its connections are open. Only its own
// watch can tell (engine_stall_ms).
#include <dirent.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

// The thread of that name; -1: there is none.
pid_t ThreadOf(pid_t process, const std::string& name) {
  const std::string folder = absl::StrCat("/proc/", process, "/task");
  DIR* threads = opendir(folder.c_str());
  pid_t found = -1;
  for (dirent* entry; threads != nullptr && (entry = readdir(threads)) != nullptr;) {
    std::string comm;
    std::ifstream(absl::StrCat(folder, "/", entry->d_name, "/comm")) >> comm;
    if (comm == name) found = atoi(entry->d_name);
  }
  if (threads != nullptr) closedir(threads);
  return found;
}

// Stops one thread of another process; lets it go, so that the process can be collected, in the end.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t thread) : thread_(thread) {}
  ~StoppedThread() {
    if (held_) ptrace(PTRACE_DETACH, thread_, 0, 0);
  }
  // Or errno.
  int Stop() {
    if (ptrace(PTRACE_SEIZE, thread_, 0, 0) != 0) return errno;
    held_ = true;
    return ptrace(PTRACE_INTERRUPT, thread_, 0, 0) == 0 ? 0 : errno;
  }
  // A traced thread is only gone when its tracer has collected it.
  bool Ended() {
    int status = 0;
    if (waitpid(thread_, &status, __WALL | WNOHANG) == thread_ && (WIFEXITED(status) || WIFSIGNALED(status))) held_ = false;
    return !held_;
  }

 private:
  const pid_t thread_;
  bool held_ = false;
};

TEST(EngineStallTest, AWorkerWhoseEngineStandsStillEndsAndItsStreamsGoOnElsewhere) {
  auto started = Cluster::Start({.model = TinyModel(), .prefill = 2, .decode = 2,
                                 .flags = {"--kv-memory-mib=16", "--engine-stall-ms=1000"},
                                 // Each gets requests, whatever its steps seem to cost.
                                 .router_flags = {"--placement=round_robin"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster* cluster = started->get();
  const Workload load = MakeWorkload(cluster, 1, 8);
  Clients clients(cluster, &load, 4);
  for (const size_t victim : {2u, 0u}) {  // of the decode workers, and of the prefill workers
    clients.WaitForTokens(50);
    WorkerProcess& worker = *cluster->workers()[victim];
    const pid_t engine = ThreadOf(worker.process->pid(), "engine");
    ASSERT_GT(engine, 0);
    StoppedThread stopped(engine);
    const int refused = stopped.Stop();
    if (refused == EPERM) GTEST_SKIP() << "tracing is not allowed here: a single thread cannot be stopped";
    ASSERT_EQ(refused, 0);
    const absl::Time late = absl::Now() + absl::Seconds(60);
    while (!stopped.Ended()) {
      ASSERT_LT(absl::Now(), late) << "the worker did not end; it wrote: " << worker.process->stdout_text()
                                   << worker.process->stderr_text();
      absl::SleepFor(absl::Milliseconds(5));
    }
    const absl::StatusOr<int> code = worker.process->WaitExit(absl::Seconds(30));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 1);
    EXPECT_NE(worker.process->stdout_text().find("engine_stall_ms"), std::string::npos) << worker.process->stdout_text();
    clients.WaitForTokens(50);
    ASSERT_TRUE(cluster->Restart(worker).ok());
    const absl::Status ready = cluster->WaitReady(absl::Seconds(30));
    ASSERT_TRUE(ready.ok()) << ready;
  }
  clients.Stop();
  EXPECT_GT(clients.completed(), 0);
  ExpectNothingHeld(cluster);
}

}  // namespace
}  // namespace baton::e2e
