// Channels to workers, one for each incarnation: a worker that was started again on the same port never meets calls or
// back-off of its former self.
#ifndef BATON_ROUTER_WORKER_CHANNELS_H_
#define BATON_ROUTER_WORKER_CHANNELS_H_

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "common/mutex.h"
#include "common/rpc/security.h"
#include "proto/worker.grpc.pb.h"
#include "router/request_lifecycle.h"

namespace baton::router {

struct WorkerStubs {
  std::unique_ptr<v1::PrefillWorker::Stub> prefill;
  std::unique_ptr<v1::DecodeWorker::Stub> decode;
  // Of either role, over the channel of that role.
  std::unique_ptr<v1::Worker::Stub> prefill_host, decode_host;
};

// Thread-safe. Stubs stay valid while somebody holds them.
class WorkerChannels {
 public:
  explicit WorkerChannels(rpc::Security security) : security_(std::move(security)) {}
  // Makes the channel at the first call; it connects when first used.
  std::shared_ptr<WorkerStubs> Get(const WorkerRef& worker);
  // Drops the channels of all others; running calls go on.
  void KeepOnly(const std::set<WorkerId>& ids);

 private:
  const rpc::Security security_;
  Mutex mu_;
  std::map<WorkerId, std::shared_ptr<WorkerStubs>> stubs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_CHANNELS_H_
