// One server-streaming call to a worker.
#ifndef BATON_ROUTER_LEG_H_
#define BATON_ROUTER_LEG_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "router/worker_link.h"

namespace baton::router {

// Lives until gRPC is done with it and the last shared_ptr is gone.
//
// Thread contract: Start once; Cancel from any thread at any time. on_event and on_done run on gRPC's threads, one
// after another, on_done last and exactly once. They must not block.
template <class Request, class Message>
class Leg final : public grpc::ClientReadReactor<Message>, public WorkerCall {
 public:
  using OnEvent = std::function<void(Message&)>;
  using OnEnd = std::function<void(absl::Status)>;

  // `start` makes the call: stub->async()->Method(context, request, reactor).
  static std::shared_ptr<Leg> Start(
      Request request, absl::Time deadline, OnEvent on_event, OnEnd on_done,
      const std::function<void(grpc::ClientContext*, const Request*, grpc::ClientReadReactor<Message>*)>& start) {
    std::shared_ptr<Leg> leg(new Leg(std::move(request), std::move(on_event), std::move(on_done)));
    leg->self_ = leg;
    rpc::SetDeadline(&leg->context_, deadline);
    start(&leg->context_, &leg->request_, leg.get());
    leg->StartRead(&leg->event_);
    leg->StartCall();
    return leg;
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  Leg(Request request, OnEvent on_event, OnEnd on_done)
      : request_(std::move(request)), on_event_(std::move(on_event)), on_done_(std::move(on_done)) {}

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    on_event_(event_);
    this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Leg> last = std::move(self_);  // may delete this on return
    const OnEnd done = std::move(on_done_);
    on_event_ = nullptr;
    done(FromGrpcStatus(status));
  }

  grpc::ClientContext context_;
  Request request_;
  Message event_;
  OnEvent on_event_;
  OnEnd on_done_;
  std::shared_ptr<Leg> self_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LEG_H_
