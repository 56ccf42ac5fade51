#include "router/worker_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "common/tracing/grpc_metadata.h"
#include "router/leg.h"

namespace baton::router {
namespace {

// A worker takes an update at once or not at all.
constexpr absl::Duration kTimeout = absl::Seconds(10);

}  // namespace

struct WorkerCalls::Update_ {
  grpc::ClientContext context;
  v1::UpdateDecodeRequest request;
  v1::UpdateDecodeResponse response;
  std::shared_ptr<WorkerStubs> stubs;
  std::function<void(absl::Status)> failed;
};

struct WorkerCalls::Offer_ {
  grpc::ClientContext context;
  v1::ImportHistoryRequest request;
  v1::ImportHistoryResponse response;
  std::shared_ptr<WorkerStubs> stubs;
};

struct WorkerCalls::Drain_ {
  grpc::ClientContext context;
  v1::DrainRequest request;
  v1::DrainResponse response;
  std::shared_ptr<WorkerStubs> stubs;
  OnEnd done;
};

struct WorkerCalls::ChangeRole_ {
  grpc::ClientContext context;
  v1::ChangeRoleRequest request;
  v1::ChangeRoleResponse response;
  std::shared_ptr<WorkerStubs> stubs;
  OnEnd done;
};

std::shared_ptr<WorkerCall> WorkerCalls::Prefill(StartPrefill command, absl::Time deadline,
                                                 std::function<void(v1::PrefillEvent&)> on_event, OnEnd on_end) {
  const std::shared_ptr<WorkerStubs> stubs = channels_->Get(command.worker);
  return Leg<v1::PrefillRequest, v1::PrefillEvent>::Start(
      std::move(command.request), deadline, std::move(on_event),
      [stubs, on_end = std::move(on_end)](absl::Status status) { on_end(std::move(status)); },
      [&](grpc::ClientContext* context, const v1::PrefillRequest* request,
          grpc::ClientReadReactor<v1::PrefillEvent>* reactor) {
        tracing::AddTo(context, command.trace);
        stubs->prefill->async()->Prefill(context, request, reactor);
      });
}

std::shared_ptr<WorkerCall> WorkerCalls::Decode(StartDecode command, absl::Time deadline, OnDecodeEvents on_events,
                                                OnEnd on_end) {
  const std::shared_ptr<WorkerStubs> stubs = channels_->Get(command.worker);
  auto call = std::make_shared<FedCall>(
      std::move(on_events), [stubs, on_end = std::move(on_end)](absl::Status status) { on_end(std::move(status)); });
  const std::shared_ptr<WorkerFeed> feed = stubs->Feed();
  if (const uint64_t number = feed != nullptr ? feed->Join(call) : 0; number != 0) {
    command.request.mutable_feed()->set_feed_id(feed->id());
    command.request.mutable_feed()->set_call(number);
    call->SetLeave([feed, number] { feed->Leave(number); });
  }
  call->SetOwn(Leg<v1::DecodeRequest, v1::DecodeEvent>::Start(
      std::move(command.request), deadline, [call](v1::DecodeEvent& event) { call->OnOwnEvent(event); },
      [call](absl::Status status) { call->OnOwnEnd(std::move(status)); },
      [&](grpc::ClientContext* context, const v1::DecodeRequest* request,
          grpc::ClientReadReactor<v1::DecodeEvent>* reactor) {
        tracing::AddTo(context, command.trace);
        stubs->decode->async()->Decode(context, request, reactor);
      }));
  return call;
}

void WorkerCalls::Update(const UpdateDecode& command, absl::Time deadline, OnEnd failed) {
  auto call = std::make_shared<Update_>();
  call->request = command.request;
  call->stubs = channels_->Get(command.worker);
  call->failed = std::move(failed);
  const absl::Time latest = absl::Now() + kTimeout;
  rpc::SetDeadline(&call->context, std::min(deadline, latest));
  Begin();
  call->stubs->decode->async()->UpdateDecode(
      &call->context, &call->request, &call->response, [this, call, own = latest < deadline](const grpc::Status& s) mutable {
        absl::Status status = FromGrpcStatus(s);
        if (absl::IsNotFound(status)) status = absl::AbortedError(status.message());
        // The worker's silence, not the request's deadline.
        if (own && absl::IsDeadlineExceeded(status)) status = absl::UnavailableError("did not take an update in 10 s");
        if (!status.ok()) call->failed(std::move(status));
        call.reset();
        End();
      });
}

void WorkerCalls::Offer(const OfferHistory& command) {
  auto call = std::make_shared<Offer_>();
  call->request = command.request;
  call->stubs = channels_->Get(command.worker);
  rpc::SetDeadline(&call->context, absl::Now() + kTimeout);
  Begin();
  call->stubs->prefill->async()->ImportHistory(&call->context, &call->request, &call->response,
                                               [this, call](const grpc::Status&) mutable {
                                                 call.reset();
                                                 End();
                                               });
}

void WorkerCalls::Drain(const WorkerRef& worker, bool decode, OnEnd done) {
  auto call = std::make_shared<Drain_>();
  call->stubs = channels_->Get(worker);
  call->done = std::move(done);
  rpc::SetDeadline(&call->context, absl::Now() + kTimeout);
  Begin();
  v1::Worker::Stub* stub = decode ? call->stubs->decode_host.get() : call->stubs->prefill_host.get();
  stub->async()->Drain(&call->context, &call->request, &call->response, [this, call](const grpc::Status& s) mutable {
    call->done(FromGrpcStatus(s));
    call.reset();
    End();
  });
}

void WorkerCalls::ChangeRole(const WorkerRef& worker, bool decode, OnEnd done) {
  auto call = std::make_shared<ChangeRole_>();
  call->request.set_role(decode ? "prefill" : "decode");
  call->stubs = channels_->Get(worker);
  call->done = std::move(done);
  rpc::SetDeadline(&call->context, absl::Now() + kTimeout);
  Begin();
  v1::Worker::Stub* stub = decode ? call->stubs->decode_host.get() : call->stubs->prefill_host.get();
  stub->async()->ChangeRole(&call->context, &call->request, &call->response,
                            [this, call](const grpc::Status& s) mutable {
                              call->done(FromGrpcStatus(s));
                              call.reset();
                              End();
                            });
}

void WorkerCalls::Begin() {
  MutexLock lock(&mu_);
  ++running_;
}

void WorkerCalls::End() {
  MutexLock lock(&mu_);
  if (--running_ == 0) cv_.SignalAll();
}

void WorkerCalls::WaitUntilIdle() {
  MutexLock lock(&mu_);
  while (running_ > 0) cv_.Wait(&mu_);
}

}  // namespace baton::router
