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
#include "router/worker_feed.h"

namespace baton::router {

// How many feeds gRPC still has. Thread-safe.
class FeedCount {
 public:
  void Add(int number);
  void WaitUntilNone();

 private:
  Mutex mu_;
  CondVar cv_;
  int number_ ABSL_GUARDED_BY(mu_) = 0;
};

class WorkerStubs {
 public:
  explicit WorkerStubs(std::shared_ptr<FeedCount> feeds) : feeds_(std::move(feeds)) {}
  ~WorkerStubs();  // ends the feed

  std::unique_ptr<v1::PrefillWorker::Stub> prefill;
  std::unique_ptr<v1::DecodeWorker::Stub> decode;
  // Of either role, over the channel of that role.
  std::unique_ptr<v1::Worker::Stub> prefill_host, decode_host;

  // The worker's feed, once it is open: null before. The first call opens it, and later ones do again when it broke;
  // nobody waits for that. Thread-safe.
  std::shared_ptr<WorkerFeed> Feed();

 private:
  const std::shared_ptr<FeedCount> feeds_;
  Mutex mu_;
  std::shared_ptr<WorkerFeed> feed_ ABSL_GUARDED_BY(mu_);
  absl::Time next_try_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Thread-safe. Stubs stay valid while somebody holds them.
class WorkerChannels {
 public:
  explicit WorkerChannels(rpc::Security security) : security_(std::move(security)) {}
  ~WorkerChannels();  // after the last call; waits for the ends of the feeds
  // Makes the channel at the first call; it connects when first used.
  std::shared_ptr<WorkerStubs> Get(const WorkerRef& worker);
  // Drops the channels of all others; running calls go on.
  void KeepOnly(const std::set<WorkerId>& ids);

 private:
  const rpc::Security security_;
  const std::shared_ptr<FeedCount> feeds_ = std::make_shared<FeedCount>();
  Mutex mu_;
  std::map<WorkerId, std::shared_ptr<WorkerStubs>> stubs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_CHANNELS_H_
