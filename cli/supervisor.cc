#include "cli/supervisor.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTailLines = 12;

int TerminalColumns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string Text(const nlohmann::json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

Supervisor::Supervisor(std::vector<ProcessSpec> processes, const SupervisorOptions& options, const Output& out)
    : options_(options), out_(out), started_(absl::Now()) {
  for (ProcessSpec& spec : processes) {
    Process process;
    process.progress.name = spec.name;
    process.spec = std::move(spec);
    processes_.push_back(std::move(process));
  }
  sigset_t mask;
  ::sigemptyset(&mask);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&mask, signal_number);
  ::pthread_sigmask(SIG_BLOCK, &mask, &saved_mask_);
  signal_fd_ = ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

Supervisor::~Supervisor() {
  processes_.clear();  // kills what is left
  if (signal_fd_ >= 0) ::close(signal_fd_);
  ::pthread_sigmask(SIG_SETMASK, &saved_mask_, nullptr);
}

int Supervisor::Run() {
  StartProcess(&processes_[0]);
  while (true) {
    if (stopping() && std::all_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.child; })) {
      return exit_code_;
    }
    std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
    for (const Process& p : processes_) {
      if (!p.child) continue;
      for (const int fd : {p.child->stdout_fd(), p.child->stderr_fd()}) {
        if (fd >= 0) fds.push_back({fd, POLLIN, 0});
      }
    }
    if (control_ != nullptr) {
      for (const int fd : control_->fds()) fds.push_back({fd, POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(UntilNextTimer(absl::Now()))) + 1);
    HandleSignals();
    for (Process& p : processes_) {
      if (p.child) HandleOutput(&p);
      if (p.child && p.child->Ended()) HandleEnd(&p);
    }
    HandleTimers();
    ForgetLeft();
    if (control_ != nullptr && !stopping()) {
      control_->Serve([this](const nlohmann::json& request) { return HandleControl(request); });
    }
  }
}

void Supervisor::OpenControl() {
  if (!options_.make_worker) return;
  absl::StatusOr<std::string> path = ControlSocketPath(processes_[0].address);
  absl::StatusOr<std::unique_ptr<ControlServer>> server =
      path.ok() ? ControlServer::Listen(*path) : absl::StatusOr<std::unique_ptr<ControlServer>>(path.status());
  if (server.ok()) {
    control_ = *std::move(server);
  } else {
    Say(absl::StrCat(out_.Paint(Style::kYellow, "warning:"), " `baton scale` will not work: ",
                     server.status().message()));
  }
}

nlohmann::json Supervisor::HandleControl(const nlohmann::json& request) {
  const auto scale = request.is_object() ? request.find("scale") : request.end();
  if (!request.is_object() || scale == request.end() || !scale->is_object()) return {{"error", "not understood"}};
  for (const auto& [role, count] : scale->items()) {
    if ((role != "prefill" && role != "decode") || !count.is_number_integer() || count < 1 || count > 64) {
      return {{"error", "sizes are prefill and decode, each from 1 to 64"}};
    }
  }
  for (const auto& [role, count] : scale->items()) Scale(role, count.get<int>());
  return {{"ok", true}};
}

void Supervisor::Scale(const std::string& role, int count) {
  std::vector<size_t> of_role;  // ascending numbers
  std::set<std::string> names;
  for (size_t i = 0; i < processes_.size(); ++i) {
    names.insert(processes_[i].spec.name);  // one that leaves still has its name
    if (processes_[i].spec.role == role && !processes_[i].leaving) of_role.push_back(i);
  }
  const int have = static_cast<int>(of_role.size());
  if (have != count) Say(absl::StrCat("scaling ", role, " from ", have, " to ", count));
  for (int i = have - 1; i >= count; --i) {
    Process& process = processes_[of_role[static_cast<size_t>(i)]];
    process.leaving = true;
    process.restart_at = absl::InfiniteFuture();
    if (process.child) process.child->Signal(SIGTERM);
  }
  int number = 0;
  for (int i = have; i < count; ++i) {
    while (names.count(absl::StrCat(role, "-", number)) > 0) ++number;
    Process process;
    process.spec = options_.make_worker(role, absl::StrCat(role, "-", number));
    process.progress.name = process.spec.name;
    names.insert(process.spec.name);
    processes_.push_back(std::move(process));
    StartProcess(&processes_.back());
  }
}

void Supervisor::ForgetLeft() {
  std::erase_if(processes_, [](const Process& p) { return p.leaving && !p.child; });
}

void Supervisor::StartProcess(Process* process) {
  process->restart_at = absl::InfiniteFuture();
  process->ready = false;
  process->failure.clear();
  process->stderr_tail.clear();
  process->progress.ready = false;
  process->progress.phase.clear();
  process->progress.progress = 0;
  const Process& router = processes_[0];
  absl::StatusOr<std::unique_ptr<ChildProcess>> child =
      ChildProcess::Start(process->spec.argv(router.address, router.http));
  if (!child.ok()) {
    Abort(child.status(),
          "build every program (bazel build //router:router //prefill_worker:prefill_worker "
          "//decode_worker:decode_worker), or point --bin-dir at them");
    return;
  }
  process->child = *std::move(child);
  process->state = State::kStarting;
}

void Supervisor::HandleOutput(Process* process) {
  for (const std::string& line : process->child->ReadStdout()) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) HandleEvent(process, event);
  }
  for (std::string& line : process->child->ReadStderr()) {
    // News while serving. While loading and stopping they only matter when the process fails: a worker that drains, for
    // one, complains that the router has gone.
    if (phase_ == Phase::kServing) {
      Say(absl::StrCat(out_.Paint(Style::kDim, absl::StrCat("[", process->spec.name, "]")), " ", Printable(line)));
    }
    process->stderr_tail.push_back(std::move(line));
    if (process->stderr_tail.size() > kTailLines) process->stderr_tail.pop_front();
  }
}

void Supervisor::HandleEvent(Process* process, const nlohmann::json& event) {
  const std::string kind = Text(event, "event");
  const bool is_router = process == &processes_[0];
  if (kind == "loading") {
    process->progress.phase = Printable(Text(event, "phase")).substr(0, 40);
    const auto it = event.find("progress");
    process->progress.progress = it != event.end() && it->is_number() ? it->get<double>() : 0;
  } else if (kind == "ready") {
    process->ready = true;
    process->progress.progress = 1;
    process->address = Text(event, "listen");
    process->http = Text(event, "http");
    if (is_router) Serving(process);
  } else if (kind == "registered") {
    if (!is_router) Serving(process);
  } else if (kind == "draining") {
    // By `baton drain`: it is not to come back.
    if (!is_router && phase_ == Phase::kServing && process->failure.empty()) process->leaving = true;
  } else if (kind == "changing_role") {
    const std::string role = Text(event, "role");
    if (is_router || !options_.make_worker || (role != "prefill" && role != "decode")) return;
    Say(absl::StrCat(process->spec.name, " becomes a ", role, " worker"));
    // What a restart would start.
    process->spec = options_.make_worker(role, process->spec.name);
    process->state = State::kStarting;
  } else if (kind == "refused" || kind == "failed") {
    process->failure = Text(event, "reason");
    if (kind == "refused" && phase_ == Phase::kLoading) {
      Abort(absl::FailedPreconditionError(
                absl::StrCat("The router refused ", process->spec.name, ": ", process->failure)),
            "give every worker the same model and KV settings, then run `baton up` again");
    } else if (kind == "refused" && !stopping()) {
      Say(absl::StrCat(out_.Paint(Style::kYellow, "warning:"), " the router refused ", process->spec.name, ": ",
                       Printable(process->failure)));
    }
  }
}

void Supervisor::Serving(Process* process) {
  const bool again = process->state != State::kServing && phase_ == Phase::kServing;
  process->state = State::kServing;
  process->progress.ready = true;
  if (again) {
    Say(absl::StrCat(process->spec.name, process->restarts.any() ? " serves again" : " serves", " (pid ",
                     process->child->pid(), ")"));
  }
  if (phase_ != Phase::kLoading) return;
  if (process == &processes_[0]) {
    for (size_t i = 1; i < processes_.size() && phase_ == Phase::kLoading; ++i) {
      if (!processes_[i].child) StartProcess(&processes_[i]);
    }
  }
  if (std::all_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.state == State::kServing; })) {
    AnnounceReady();
  }
}

void Supervisor::AnnounceReady() {
  ShowProgress(/*force=*/true);
  phase_ = Phase::kServing;
  OpenControl();
  const Process& router = processes_[0];
  std::string next = "baton complete \"Hello\"";
  if (router.address != "127.0.0.1:50051")
    next = absl::StrCat("baton complete --router ", router.address, " \"Hello\"");
  const std::string openai = absl::StrCat(options_.http_scheme, "://", router.http);
  int counts[2] = {0, 0};
  for (const Process& p : processes_) {
    if (p.spec.role != "router") ++counts[p.spec.role == "decode"];
  }
  Say(absl::StrCat(out_.Paint(Style::kGreen, "ready:"), " gRPC ", router.address, ", HTTP ", openai, ", ",
                   counts[0], " prefill and ", counts[1], " decode, ", options_.model, ", in ",
                   absl::ToInt64Milliseconds(absl::Now() - started_), " ms. Try: ", next));
  Say(absl::StrCat("OpenAI API at ", openai, "/v1, such as: curl ", openai,
                   "/v1/chat/completions -H 'Content-Type: application/json' "
                   "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"));
  if (!out_.json()) return;
  // The router's own address is the only "listen" of the line, so that a shell script finds it without a JSON parser.
  Json line = {
      {"event", "ready"},  {"listen", router.address},          {"http", router.http},      {"model", options_.model},
      {"openai", absl::StrCat(openai, "/v1")},
      {"pid", ::getpid()}, {"router_pid", router.child->pid()}, {"workers", Json::array()}, {"next", next}};
  for (const Process& p : processes_) {
    if (p.spec.role == "router") continue;
    line["workers"].push_back({{"name", p.spec.name},
                               {"role", p.spec.role},
                               {"address", p.address},
                               {"metrics", p.http},
                               {"pid", p.child->pid()}});
  }
  out_.Json(line);
}

std::string Supervisor::ReasonOf(const Process& process) const {
  std::string reason = process.failure;
  if (reason.empty() && process.child) reason = process.child->EndReason();
  std::string lines;
  for (const std::string& line : process.stderr_tail) absl::StrAppend(&lines, "\n  ", line);
  return absl::StrCat(reason, lines.empty() ? "" : ". Its last words:", lines);
}

void Supervisor::HandleEnd(Process* process) {
  HandleOutput(process);  // what it said last
  const std::string reason = ReasonOf(*process);
  const State before = process->state;
  process->state = State::kStopped;
  if (stopping()) {
    if (gentle_ && phase_ != Phase::kKilling && !process->child->EndedWell()) {
      Say(absl::StrCat(out_.Paint(Style::kYellow, "warning:"), " ", process->spec.name,
                       " did not stop cleanly: ", Printable(reason)));
    }
    process->child.reset();
    AdvanceDrain();
    return;
  }
  if (phase_ == Phase::kLoading) {
    process->child.reset();
    Abort(absl::UnavailableError(absl::StrCat(process->spec.name, " did not start: ", reason)),
          "fix what it says, then run `baton up` again (--log-level debug tells more)");
    return;
  }
  if (process->leaving) {
    Say(absl::StrCat(process->spec.name, process->child->EndedWell() ? " has left" : " has left, not cleanly: ",
                     process->child->EndedWell() ? "" : Printable(reason)));
    process->child.reset();
    return;
  }
  Say(absl::StrCat(out_.Paint(Style::kRed, before == State::kServing ? "died:" : "did not start:"), " ",
                   process->spec.name, ": ", Printable(reason)));
  process->child.reset();
  HandleDeathWhileServing(process);
}

void Supervisor::HandleDeathWhileServing(Process* process) {
  const absl::Time now = absl::Now();
  const std::optional<absl::Duration> pause = process->restarts.OnDeath(now);
  if (!pause.has_value()) {
    Abort(absl::UnavailableError(absl::StrCat(process->spec.name, " died ", RestartPolicy::kMaxDeaths + 1, " times in ",
                                              absl::ToInt64Minutes(RestartPolicy::Window()), " minutes; giving up.")),
          "look at its words above, then run `baton up` again (--log-level debug tells more)");
    return;
  }
  process->state = State::kPausing;
  process->restart_at = now + *pause;
  Say(absl::StrCat("starting ", process->spec.name, " again in ", absl::FormatDuration(*pause)));
}

void Supervisor::HandleSignals() {
  signalfd_siginfo info;
  while (::read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) continue;
    ++interrupts_;
    const bool by_key = info.ssi_signo == SIGINT;
    if (interrupts_ == 1 && !stopping()) {
      const bool gentle = phase_ == Phase::kServing;
      Say(gentle ? "stopping: running requests are finished first (Ctrl-C again stops at once)" : "stopping");
      BeginDrain(by_key ? kExitInterrupted : kExitOk, gentle);
    } else {
      kill_at_ = absl::Now();
    }
  }
}

void Supervisor::Abort(const absl::Status& status, const std::string& next) {
  if (stopping()) return;
  if (bar_shown_) out_.Raw("\r\x1b[K");
  bar_shown_ = false;
  out_.Fail(status, next, kExitFailure);
  BeginDrain(kExitFailure, /*gentle=*/false);
}

void Supervisor::BeginDrain(int exit_code, bool gentle) {
  exit_code_ = exit_code;
  gentle_ = gentle;
  for (Process& p : processes_) p.restart_at = absl::InfiniteFuture();
  // Gentle: the router first, so that what it accepted still finds its workers. Else all at once; what has not loaded
  // has nothing to finish.
  phase_ = gentle ? Phase::kDrainingRouter : Phase::kDrainingWorkers;
  kill_at_ = absl::Now() + (gentle ? options_.drain_timeout + absl::Seconds(2) : absl::Seconds(3));
  for (Process& p : processes_) {
    if (p.child && (!gentle || &p == &processes_[0])) p.child->Signal(SIGTERM);
  }
  AdvanceDrain();
}

void Supervisor::AdvanceDrain() {
  if (phase_ != Phase::kDrainingRouter || processes_[0].child) return;
  phase_ = Phase::kDrainingWorkers;
  for (Process& p : processes_) {
    if (p.child) p.child->Signal(SIGTERM);
  }
}

void Supervisor::HandleTimers() {
  const absl::Time now = absl::Now();
  for (Process& p : processes_) {
    if (p.restart_at <= now) StartProcess(&p);
  }
  if (stopping() && kill_at_ <= now && phase_ != Phase::kKilling) {
    phase_ = Phase::kKilling;
    for (Process& p : processes_) {
      if (!p.child) continue;
      if (interrupts_ < 2) Say(absl::StrCat(p.spec.name, " did not stop in time and is killed"));
      p.child->Signal(SIGKILL);
    }
  }
  if (phase_ == Phase::kLoading) ShowProgress(/*force=*/false);
}

absl::Duration Supervisor::UntilNextTimer(absl::Time now) const {
  absl::Duration wait = phase_ == Phase::kLoading ? absl::Milliseconds(200) : absl::Seconds(5);
  for (const Process& p : processes_) wait = std::min(wait, p.restart_at - now);
  if (phase_ != Phase::kKilling) wait = std::min(wait, kill_at_ - now);
  return std::max(wait, absl::ZeroDuration());
}

void Supervisor::ShowProgress(bool force) {
  const absl::Time now = absl::Now();
  std::vector<ProcessProgress> all;
  for (const Process& p : processes_) all.push_back(p.progress);
  if (out_.stderr_is_tty()) {
    if (!force && now - last_progress_ < absl::Milliseconds(150)) return;
    out_.Raw(absl::StrCat("\r\x1b[K", ProgressBar(all, now - started_, TerminalColumns())));
    bar_shown_ = true;
  } else {
    if (last_progress_ == absl::InfinitePast()) last_progress_ = started_;
    if (now - last_progress_ < absl::Seconds(5)) return;
    out_.Note(ProgressLine(all, now - started_));
  }
  last_progress_ = now;
}

void Supervisor::Say(const std::string& line) {
  if (bar_shown_) out_.Raw("\r\x1b[K");
  bar_shown_ = false;
  out_.Note(line);
}

}  // namespace baton::cli
