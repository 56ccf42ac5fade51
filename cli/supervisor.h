// Keeps the processes of a local cluster alive: starts the router, then the workers; tells when all serve; starts again
// what dies; ends everything in order.
//
// One thread and one poll loop. Children cannot outlive it (child_process.h), whatever ends it.
#ifndef BATON_CLI_SUPERVISOR_H_
#define BATON_CLI_SUPERVISOR_H_

#include <signal.h>

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "common/control_socket.h"
#include "cli/loading_progress.h"
#include "cli/output.h"
#include "cli/restart_policy.h"

namespace baton::cli {

struct ProcessSpec {
  std::string name;  // "router", "prefill-0"
  std::string role;  // "router", "prefill", "decode"
  // The command line; for workers `router` is the router's address, for the router it is where it listened before
  // (empty the first time), so that a restarted router is found again.
  std::function<std::vector<std::string>(const std::string& router, const std::string& http)> argv;
};

struct SupervisorOptions {
  std::string model;  // for messages
  std::string http_scheme = "http";  // of the router's HTTP port
  absl::Duration drain_timeout = absl::Seconds(30);
  // A worker of a role; null: the cluster keeps its size.
  std::function<ProcessSpec(const std::string& role, const std::string& name)> make_worker;
};

class Supervisor {
 public:
  // `processes[0]` is the router. Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this thread until destroyed.
  Supervisor(std::vector<ProcessSpec> processes, const SupervisorOptions& options, const Output& out);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Until a signal, or something that cannot be mended. Returns the exit code; all children are gone then.
  int Run();

 private:
  enum class State { kStopped, kStarting, kServing, kPausing };
  struct Process {
    ProcessSpec spec;
    State state = State::kStopped;
    std::unique_ptr<ChildProcess> child;
    RestartPolicy restarts;
    absl::Time restart_at = absl::InfiniteFuture();
    ProcessProgress progress;
    std::string address;  // gRPC, once ready
    std::string http;
    bool leaving = false;  // asked to stop because the cluster shrinks
    bool ready = false;   // it said so; a worker serves when it is registered, too
    std::string failure;  // its own words, from a failed or refused event
    std::deque<std::string> stderr_tail;
  };
  enum class Phase { kLoading, kServing, kDrainingRouter, kDrainingWorkers, kKilling };

  void StartProcess(Process* process);
  void HandleOutput(Process* process);
  void HandleEvent(Process* process, const nlohmann::json& event);
  void HandleEnd(Process* process);
  void HandleDeathWhileServing(Process* process);
  void HandleSignals();
  void HandleTimers();
  void OpenControl();
  nlohmann::json HandleControl(const nlohmann::json& request);
  // To `count` workers of a role: starts some, or lets those with the highest numbers finish and stop.
  void Scale(const std::string& role, int count);
  void ForgetLeft();
  void Serving(Process* process);
  void AnnounceReady();
  // Ends everything in the background of the loop; the first call's exit code counts.
  void BeginDrain(int exit_code, bool gentle);
  void AdvanceDrain();
  void Abort(const absl::Status& status, const std::string& next);
  absl::Duration UntilNextTimer(absl::Time now) const;
  void ShowProgress(bool force);
  void Say(const std::string& line);
  std::string ReasonOf(const Process& process) const;
  bool stopping() const { return phase_ > Phase::kServing; }

  const SupervisorOptions options_;
  const Output& out_;
  std::vector<Process> processes_;
  Phase phase_ = Phase::kLoading;
  int exit_code_ = 0;
  bool gentle_ = false;  // the drain lets running requests end
  std::unique_ptr<ControlServer> control_;
  int signal_fd_ = -1;
  int interrupts_ = 0;
  sigset_t saved_mask_;
  absl::Time started_;
  absl::Time last_progress_ = absl::InfinitePast();
  absl::Time kill_at_ = absl::InfiniteFuture();
  bool bar_shown_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_SUPERVISOR_H_
