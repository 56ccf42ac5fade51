// Data races on purpose in what gRPC's threads run: "method" in a service's method, "callback" at the end of a client's
// call, each against the main thread. Under --config=tsan they must be reported, although we tell the sanitizer of the
// order that gRPC makes (third_party/tsan) and suppress what its libraries do. What gRPC does order, or a lock guards,
// must not be: then a report means something.
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/cluster.grpc.pb.h"

namespace baton {
namespace {

struct Shared {
  Mutex mu;
  CondVar cv;
  int calls_in_method = 0;  // under mu
  bool done = false;        // under mu
  int handed_over = 0;      // written before the call starts, read at its end: gRPC orders it
  int raced_in_method = 0;
  int raced_in_callback = 0;
};

// Not inlined: the report must name them.
__attribute__((noinline)) void RaceInMethod(Shared* shared) { shared->raced_in_method = shared->raced_in_method + 1; }
__attribute__((noinline)) void RaceInCallback(Shared* shared) { shared->raced_in_callback = shared->raced_in_callback + 1; }

class Service : public v1::Cluster::CallbackService {
 public:
  Service(Shared* shared, bool race) : shared_(shared), race_(race) {}

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest*,
                                      v1::HeartbeatResponse*) override {
    if (race_) RaceInMethod(shared_);
    {
      MutexLock lock(&shared_->mu);
      ++shared_->calls_in_method;
    }
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Shared* const shared_;
  const bool race_;
};

int Run(absl::string_view race) {
  Shared shared;
  Service service(&shared, race == "method");
  absl::StatusOr<std::unique_ptr<rpc::Server>> server =
      rpc::Server::Start(rpc::ServerOptions(), {{"baton.v1.Cluster", &service}});
  if (!server.ok()) return 2;
  const auto stub = v1::Cluster::NewStub(rpc::CreateChannel((*server)->address()));
  grpc::ClientContext context;
  const v1::HeartbeatRequest request;
  v1::HeartbeatResponse response;
  shared.handed_over = 7;
  stub->async()->Heartbeat(&context, &request, &response, [&](const grpc::Status& status) {
    if (race == "callback") RaceInCallback(&shared);
    MutexLock lock(&shared.mu);
    shared.done = status.ok() && shared.handed_over == 7;
    shared.cv.SignalAll();
  });
  // Nothing orders this thread's access and the other one, whichever comes first; the pause makes it the other's.
  absl::SleepFor(absl::Seconds(1));
  if (race == "method") RaceInMethod(&shared);
  if (race == "callback") RaceInCallback(&shared);
  MutexLock lock(&shared.mu);
  while (!shared.done) shared.cv.Wait(&shared.mu);
  printf("calls %d\n", shared.calls_in_method);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return argc == 2 ? baton::Run(argv[1]) : 2; }
