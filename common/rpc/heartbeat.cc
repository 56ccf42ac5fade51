#include "common/rpc/heartbeat.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/ids.h"
#include "common/rpc/channel.h"
#include "common/status.h"

namespace baton::rpc {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);

}  // namespace

Heartbeat::Heartbeat(HeartbeatOptions options) : options_(std::move(options)), period_(options_.period) {
  ChannelOptions channel;
  channel.retry_unavailable = false;  // this loop is the retry
  channel.security = options_.security;
  stub_ = v1::Cluster::NewStub(CreateChannel(options_.router, channel));
  thread_ = std::thread([this] { Run(); });
}

Heartbeat::~Heartbeat() { Stop(); }

void Heartbeat::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    if (call_ != nullptr) call_->TryCancel();
    cv_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::SetDraining() {
  MutexLock lock(&mu_);
  draining_ = true;
  wake_ = true;
  cv_.SignalAll();
}

bool Heartbeat::registered() const {
  MutexLock lock(&mu_);
  return registered_;
}

template <class Method, class Request, class Response>
absl::Status Heartbeat::Call(Method method, const Request& request, Response* response) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Now() + kCallTimeout);
  {
    MutexLock lock(&mu_);
    if (stop_) return absl::CancelledError("stopping");
    call_ = &context;
  }
  const grpc::Status status = (stub_.get()->*method)(&context, request, response);
  MutexLock lock(&mu_);
  call_ = nullptr;
  return FromGrpcStatus(status);
}

absl::Status Heartbeat::Register() {
  v1::RegisterRequest request;
  *request.mutable_worker() = options_.worker;
  v1::RegisterResponse response;
  absl::Status status = Call(&v1::Cluster::Stub::Register, request, &response);
  if (status.ok() && response.heartbeat_ms() > 0) {
    period_ = std::clamp(absl::Milliseconds(response.heartbeat_ms()), absl::Milliseconds(10), absl::Minutes(1));
  }
  return status;
}

absl::Status Heartbeat::Beat(bool draining) {
  v1::HeartbeatRequest request;
  request.set_name(options_.worker.name());
  request.set_incarnation(options_.worker.incarnation());
  if (options_.load) *request.mutable_load() = options_.load();
  request.set_draining(draining);
  if (options_.prefixes) *request.mutable_prefixes() = options_.prefixes(prefix_version_);
  v1::HeartbeatResponse response;
  absl::Status status = Call(&v1::Cluster::Stub::Heartbeat, request, &response);
  if (status.ok()) prefix_version_ = response.prefix_version();
  if (status.ok() && options_.on_answer) options_.on_answer(response);
  return status;
}

void Heartbeat::Report(const absl::Status& status) {
  if (status.code() == reported_) return;
  reported_ = status.code();
  if (options_.on_change) options_.on_change(status);
}

void Heartbeat::Run() {
  bool registered = false;
  absl::Duration backoff = options_.min_backoff;
  while (true) {
    bool draining = false;
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      registered_ = registered;
      draining = draining_;
      wake_ = false;
    }
    absl::Duration wait = period_;
    const bool was_registered = registered;
    const absl::Status status = registered ? Beat(draining) : Register();
    if (status.ok()) {
      registered = true;
      backoff = options_.min_backoff;
      // The first heartbeat, with the load, follows a registration at once.
      if (!was_registered) wait = absl::ZeroDuration();
      Report(status);
    } else if (was_registered && status.code() == absl::StatusCode::kNotFound) {
      registered = false;  // the router is new
      prefix_version_ = 0;
      wait = absl::ZeroDuration();
    } else {
      // A heartbeat that failed to arrive does not end the registration: the router decides when a worker is lost.
      if (!was_registered) {
        const bool refused = status.code() == absl::StatusCode::kFailedPrecondition;
        backoff = refused ? options_.max_backoff : std::min(backoff * 2, options_.max_backoff);
        // Jitter: workers that lost the same router do not come back in one moment.
        wait = backoff * (0.75 + 0.25 * static_cast<double>(RandomU64() >> 11) * 0x1p-53);
      }
      if (status.code() != absl::StatusCode::kCancelled) Report(status);
    }
    MutexLock lock(&mu_);
    registered_ = registered;
    const absl::Time until = absl::Now() + wait;
    while (!stop_ && !(wake_ && registered) && absl::Now() < until) {
      cv_.WaitWithTimeout(&mu_, until - absl::Now());
    }
  }
}

void Heartbeat::Deregister() {
  Stop();
  {
    MutexLock lock(&mu_);
    if (!registered_) return;
    registered_ = false;
  }
  grpc::ClientContext context;
  SetDeadline(&context, absl::Now() + absl::Seconds(1));
  v1::DeregisterRequest request;
  request.set_name(options_.worker.name());
  request.set_incarnation(options_.worker.incarnation());
  v1::DeregisterResponse response;
  stub_->Deregister(&context, request, &response);  // on failure the router notices by itself
}

}  // namespace baton::rpc
