#include "router/ticket_releaser.h"

#include <memory>

#include "common/logging.h"
#include "common/rpc/channel.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

struct TicketReleaser::Call {
  grpc::ClientContext context;
  v1::ReleaseTicketRequest request;
  v1::ReleaseTicketResponse response;
  std::shared_ptr<WorkerStubs> stubs;
};

void TicketReleaser::Release(const ReleaseTicket& command) {
  auto call = std::make_shared<Call>();
  call->request = command.request;
  call->stubs = channels_->Get(command.worker);
  rpc::SetDeadline(&call->context, absl::Now() + kTimeout);
  {
    MutexLock lock(&mu_);
    ++running_;
  }
  call->stubs->prefill->async()->ReleaseTicket(
      &call->context, &call->request, &call->response,
      [this, call, name = command.worker.id.name](const grpc::Status& status) mutable {
        metrics_->TicketReleased(status.ok());
        if (!status.ok()) {
          LogWarn("a ticket could not be given back; its lease will free it",
                  {{"worker", name}, {"error", FromGrpcStatus(status)}});
        }
        call.reset();
        MutexLock lock(&mu_);
        if (--running_ == 0) cv_.SignalAll();
      });
}

void TicketReleaser::WaitUntilIdle() {
  MutexLock lock(&mu_);
  while (running_ > 0) cv_.Wait(&mu_);
}

}  // namespace baton::router
