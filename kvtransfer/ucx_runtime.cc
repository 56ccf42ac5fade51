#include "kvtransfer/ucx_runtime.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kvtransfer/ucx_log.h"

namespace baton::kvtransfer {
namespace {

// How long StopLoop waits for connections to close before it destroys the worker under them.
constexpr absl::Duration kStopTimeout = absl::Seconds(5);

// What UCX has not ended by then it never will (Recycle): it takes milliseconds with a peer that is alive.
constexpr absl::Duration kGiveUpAfter = absl::Seconds(3);

// So long told not to sleep, and nothing to show for it. Shorter than SilenceLimit, after which the client closes the
// connection: without one, UCX sleeps well until the next is stuck too. A worker that is well makes progress nearly every
// time that it is told not to sleep; one that is stuck makes some all the same, when peers connect by TCP.
constexpr absl::Duration kStuckAfter = absl::Seconds(1);
constexpr int kStuckRounds = 300;

// Rounds without progress after which UCX copies nothing more for a closed connection. Not one: a transport's queue is
// looked at only some rounds after something was put there.
constexpr int kQuietRounds = 256;
// A piece of a block takes some 20 to 100 us between processes of one host.
constexpr absl::Duration kPollFor = absl::Microseconds(100);

std::string LoopbackDevice() {
  std::string name = "lo";
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return name;
  for (ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if ((i->ifa_flags & IFF_LOOPBACK) != 0) {
      name = i->ifa_name;
      break;
    }
  }
  freeifaddrs(list);
  return name;
}

}  // namespace

struct UcxLoop::SendOp {
  UcxLoop* loop;
  ucp_ep_h ep;
  bool orphan = false;  // its connection is closed
  std::string header;
  std::string owned;
  SendDone done;
};

struct UcxLoop::CloseOp {
  UcxLoop* loop;
  ucp_ep_h ep;
  Task closed;
  absl::Time begun;
};

absl::Status UcxError(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat(what, ": ", ucs_status_string(status)));
}

absl::StatusOr<UcxAddress> UcxAddress::Parse(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  in_addr host{};
  uint32_t port = 0;
  if (inet_pton(AF_INET, std::string(parts.first).c_str(), &host) != 1 || !absl::SimpleAtoi(parts.second, &port) ||
      port > 65535) {
    return absl::InvalidArgumentError("the UCX address is not an IPv4 address and a port, such as 127.0.0.1:4711");
  }
  return UcxAddress{ntohl(host.s_addr), static_cast<uint16_t>(port)};
}

std::string UcxAddress::ToString() const {
  return absl::StrCat(host >> 24, ".", (host >> 16) & 255, ".", (host >> 8) & 255, ".", host & 255, ":", port);
}

UcxLoop::~UcxLoop() {
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status UcxLoop::Init() {
  SendUcxLogToStderr();
  static const bool guarded = UcxSurvivesNullLanes();
  if (!guarded) {
    static const int said = fprintf(stderr, "ucx warning: this UCX is not guarded against peers that die while they connect\n");
    (void)said;
  }
  ucp_config_t* config = nullptr;
  ucs_status_t s = ucp_config_read(nullptr, nullptr, &config);
  if (s != UCS_OK) return UcxError("UCX configuration", s);
  const std::string devices = network_trusted_ ? "all" : LoopbackDevice();
  // The TCP transport serves raw PUT requests to any address, whatever is configured. It is there all the same, for UCX
  // makes connections by address over no other; on loopback only, unless the network is trusted (docs/TRANSPORT.md).
  const std::string tls = !transports_.empty() ? transports_ : "sysv,posix,cma,tcp";
  // The last three are the transports' own settings (UCX_TCP_PUT_ENABLE and so on; here the names go without prefix).
  // Shared memory and CMA say that they notice a dead peer, and may be used with error handling PEER, only when told to:
  // UCX asks that memory be revocable before it lets a peer read it. Ours is not revoked, and need not be: a read that
  // comes too late is caught by the block's checksum, and with get_zcopy nobody ever writes into another process.
  // RX_SEG_SIZE is TCP's, and the same at both ends (it bounds what one message holds): a piece of a block and its header
  // fit, so that it arrives as one message instead of being put together from parts. FIFO_SIZE is shared memory's: messages
  // that a receiver has not looked at. One that dies with its queue full costs a Recycle, hence room for 32 transfers.
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", tls.c_str()}, {"NET_DEVICES", devices.c_str()}, {"SOCKADDR_TLS_PRIORITY", "tcp"},
      {"KEEPALIVE_INTERVAL", "5s"},  {"RNDV_SCHEME", "get_zcopy"},     {"PUT_ENABLE", "n"},
      {"MM_ERROR_HANDLING", "y"},    {"MEMORY_INVALIDATE", "y"},       {"RX_SEG_SIZE", "512k"},
      {"MM_FIFO_SIZE", "256"},       {"CM_REUSEADDR", "y"},
  };
  for (const auto& [name, value] : settings) {
    s = ucp_config_modify(config, name, value);
    if (s != UCS_OK) {
      ucp_config_release(config);
      return UcxError(absl::StrCat("UCX setting ", name), s);
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // Never RMA or AMO: their software handlers access any address that a message names.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  s = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (s != UCS_OK) return UcxError("UCX context", s);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  s = ucp_worker_create(context_, &worker_params, &worker_);
  if (s != UCS_OK) return UcxError("UCX worker", s);
  s = ucp_worker_get_efd(worker_, &ucx_fd_);
  if (s != UCS_OK) return UcxError("UCX event descriptor", s);
  return OnStart();
}

absl::Status UcxLoop::StartLoop(bool network_trusted, const std::string& transports) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return absl::UnavailableError("no event descriptor is left; raise the limit of open files");
  network_trusted_ = network_trusted;
  transports_ = transports;
  thread_ = std::thread([this] { ThreadMain(); });
  MutexLock lock(&mu_);
  while (!started_) started_cv_.Wait(&mu_);
  return start_status_;
}

void UcxLoop::StopLoop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    posted_.store(true, std::memory_order_relaxed);
  }
  MutexLock lock(&join_mu_);
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_fd_, &one, sizeof(one));
  thread_.join();
}

bool UcxLoop::Post(Task&& task) {
  {
    MutexLock lock(&mu_);
    if (!accepting_) return false;
    inbox_.push_back(std::move(task));
    posted_.store(true, std::memory_order_relaxed);
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_fd_, &one, sizeof(one));
  return true;
}

void UcxLoop::ThreadMain() {
  const absl::Status status = Init();
  {
    MutexLock lock(&mu_);
    start_status_ = status;
    accepting_ = status.ok();
    started_ = true;
    started_cv_.SignalAll();
  }
  absl::Time stop_by = absl::InfiniteFuture();
  int idle_rounds = 0;
  while (status.ok()) {
    // A block that has arrived is looked at before the next one is copied: its bytes are still in the cache.
    bool idle = false;
    for (int i = 0; i < 64 && !idle && (i == 0 || deferred_.empty()); ++i) {
      idle = ucp_worker_progress(worker_) == 0;
      progress_rounds_ += !idle;
    }
    idle_rounds = idle && !closed_.empty() ? idle_rounds + 1 : 0;
    if (idle_rounds >= kQuietRounds) {
      for (Task& closed : closed_) Defer(std::move(closed));
      closed_.clear();
    }
    RunTasks();
    const absl::Time now = absl::Now();
    absl::Time next = OnTick(now);
    bool stopping = false;
    {
      MutexLock lock(&mu_);
      stopping = stopping_;
      if (stopping) accepting_ = false;  // what is in the inbox still runs
    }
    if (stopping && stop_by == absl::InfiniteFuture()) {
      stop_by = now + kStopTimeout;
      RunTasks();
      OnStop();
    }
    if (stopping && deferred_.empty() && Quiesced() && closes_.empty() && closed_.empty()) break;
    if (now >= stop_by) break;
    if (stopping) next = std::min(next, now + absl::Milliseconds(5));
    if (!stopping) next = std::min(next, GiveUpAt());
    if (!stopping && now >= GiveUpAt() && IsStuck(now) && !Recycle()) break;
    if (deferred_.empty() && closed_.empty() && Busy()) Poll();
    if (deferred_.empty() && closed_.empty()) Wait(next);
  }
  Destroy();
  {
    MutexLock lock(&mu_);
    accepting_ = false;
  }
  RunTasks();  // what came while a worker could not be made anew
  if (status.ok()) OnStopped();
}

absl::Time UcxLoop::GiveUpAt() const {
  absl::Time at = absl::InfiniteFuture();
  for (const CloseOp* op : closes_) at = std::min(at, op->begun + kGiveUpAfter);
  if (orphans_ > 0) at = std::min(at, orphaned_at_ + kGiveUpAfter);
  return std::min(at, sleepless_since_ + kStuckAfter);
}

bool UcxLoop::IsStuck(absl::Time now) {
  if (now < sleepless_since_ + kStuckAfter) return true;  // for another reason
  if (sleepless_rounds_ >= kStuckRounds && sleepless_rounds_ / 4 > progress_rounds_) return true;
  sleepless_since_ = absl::InfiniteFuture();  // it has had much to do; look again
  return false;
}

void UcxLoop::NoteOrphans(ucp_ep_h closed) {
  const int before = orphans_;
  for (SendOp* op : sends_) {
    if (op->ep != closed || op->orphan) continue;
    op->orphan = true;
    ++orphans_;
  }
  if (before == 0 && orphans_ > 0) orphaned_at_ = absl::Now();
}

bool UcxLoop::Recycle() {
  const absl::Status why = absl::UnavailableError("a peer died and left UCX's shared memory stuck; UCX was started anew");
  fprintf(stderr, "ucx warning: %s\n", std::string(why.message()).c_str());
  for (;;) {
    OnRecycle(why);
    Destroy();
    OnRecycled();
    sleepless_since_ = absl::InfiniteFuture();
    const absl::Status status = Init();
    if (status.ok()) return true;
    fprintf(stderr, "ucx error: not started anew, trying again: %s\n", std::string(status.message()).c_str());
    for (int i = 0; i < 20; ++i) {
      absl::SleepFor(absl::Milliseconds(50));
      MutexLock lock(&mu_);
      if (stopping_) return false;
    }
  }
}

void UcxLoop::RunTasks() {
  std::deque<Task> tasks;
  {
    MutexLock lock(&mu_);
    tasks.swap(inbox_);
    posted_.store(false, std::memory_order_relaxed);
  }
  for (Task& task : tasks) task();
  RunDeferred();
}

// What these defer waits for the next round, so that UCX makes progress in between.
void UcxLoop::RunDeferred() {
  std::deque<Task> tasks;
  tasks.swap(deferred_);
  for (Task& task : tasks) task();
}

void UcxLoop::Poll() {
  static const bool alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  if (alone) return;  // the peer may need this processor
  const absl::Time until = absl::Now() + kPollFor;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ucp_worker_progress(worker_) != 0 || posted_.load(std::memory_order_relaxed)) return;
    }
  } while (absl::Now() < until);
}

void UcxLoop::Wait(absl::Time until) {
  if (ucp_worker_arm(worker_) != UCS_OK) {  // there is more to progress
    if (sleepless_since_ == absl::InfiniteFuture()) {
      sleepless_since_ = absl::Now();
      sleepless_rounds_ = progress_rounds_ = 0;
    }
    ++sleepless_rounds_;
    return;
  }
  sleepless_since_ = absl::InfiniteFuture();
  const absl::Duration left = until - absl::Now();
  if (left <= absl::ZeroDuration()) return;
  const int timeout_ms =
      left > absl::Seconds(60) ? 60'000 : static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999)));
  pollfd fds[2] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  poll(fds, 2, timeout_ms);
  uint64_t count = 0;
  [[maybe_unused]] ssize_t n = read(wake_fd_, &count, sizeof(count));
}

void UcxLoop::Destroy() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  worker_ = nullptr;
  context_ = nullptr;
  // Normally all empty. What UCX did not complete will never be: end it here, so that owners hear of it.
  for (SendOp* op : std::set<SendOp*>(std::move(sends_))) OnSent(nullptr, UCS_ERR_CANCELED, op);
  sends_.clear();
  for (CloseOp* op : std::set<CloseOp*>(std::move(closes_))) OnClosed(nullptr, UCS_ERR_CANCELED, op);
  closes_.clear();
  for (Task& closed : closed_) Defer(std::move(closed));
  closed_.clear();
  // Not the inbox, which is for the next worker, if there is to be one.
  while (!deferred_.empty()) RunDeferred();
}

absl::Status UcxLoop::SetHandler(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                     UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  param.id = id;
  param.cb = callback;
  param.arg = arg;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  const ucs_status_t s = ucp_worker_set_am_recv_handler(worker_, &param);
  return s == UCS_OK ? absl::OkStatus() : UcxError("UCX message handler", s);
}

absl::Status UcxLoop::SetHandlerOfAll(ucp_am_recv_callback_t callback, void* arg) {
  // From the highest, so that the table grows once and nothing past it is left.
  for (int id = 0xffff; id >= 0; --id) {
    if (absl::Status s = SetHandler(static_cast<unsigned>(id), callback, arg); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void UcxLoop::Send(ucp_ep_h ep, unsigned id, std::string header, std::string owned, const void* data, size_t size,
                   uint32_t flags, SendDone done) {
  auto* op = new SendOp{this, ep, false, std::move(header), std::move(owned), std::move(done)};
  sends_.insert(op);
  if (data == nullptr) {
    data = op->owned.data();
    size = op->owned.size();
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags | UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = &UcxLoop::OnSent;
  param.user_data = op;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(ep, id, op->header.data(), op->header.size(), data, size, &param);
  if (request == nullptr) {
    OnSent(nullptr, UCS_OK, op);
  } else if (UCS_PTR_IS_ERR(request)) {
    OnSent(nullptr, UCS_PTR_STATUS(request), op);
  }
}

void UcxLoop::Flush(ucp_ep_h ep, SendDone done) {
  auto* op = new SendOp{this, ep, false, "", "", std::move(done)};
  sends_.insert(op);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxLoop::OnSent;
  param.user_data = op;
  const ucs_status_ptr_t request = ucp_ep_flush_nbx(ep, &param);
  if (request == nullptr) {
    OnSent(nullptr, UCS_OK, op);
  } else if (UCS_PTR_IS_ERR(request)) {
    OnSent(nullptr, UCS_PTR_STATUS(request), op);
  }
}

void UcxLoop::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* op = static_cast<SendOp*>(user_data);
  op->loop->sends_.erase(op);
  op->loop->orphans_ -= op->orphan;
  op->loop->Defer([done = std::move(op->done), status]() mutable { done(status); });
  delete op;
  if (request != nullptr) ucp_request_free(request);
}

void UcxLoop::CloseEndpoint(ucp_ep_h ep, Task closed) {
  auto* op = new CloseOp{this, ep, std::move(closed), absl::Now()};
  closes_.insert(op);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &UcxLoop::OnClosed;
  param.user_data = op;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) OnClosed(nullptr, UCS_OK, op);
}

void UcxLoop::OnClosed(void* request, ucs_status_t status, void* user_data) {
  auto* op = static_cast<CloseOp*>(user_data);
  op->loop->closes_.erase(op);
  op->loop->NoteOrphans(op->ep);
  op->loop->closed_.push_back(std::move(op->closed));
  delete op;
  if (request != nullptr) ucp_request_free(request);
}

std::string UcxLoop::DescribeEndpoint(ucp_ep_h ep) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "";
  ucp_ep_print_info(ep, stream);
  fclose(stream);
  // Lines such as "#   lane[1]:  1:sysv/memory.0 md[1] -> ..."; the connection manager's lane has no number.
  std::vector<std::string> names;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text, size), '\n')) {
    if (line.find("lane[") == absl::string_view::npos) continue;
    for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      const size_t colon = word.find(':');
      const size_t slash = word.find('/');
      if (colon == absl::string_view::npos || slash == absl::string_view::npos || colon > slash) continue;
      const std::string name(word.substr(colon + 1, slash - colon - 1));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      break;
    }
  }
  free(text);
  return absl::StrJoin(names, "/");
}

}  // namespace baton::kvtransfer
