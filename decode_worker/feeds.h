// One stream to each router for the events of all its Decodes: those of a step leave in one message.
//
// A call that names an open feed puts its events there; its own stream carries their number and its status. When a
// feed's stream breaks, or its router is too slow to read it, every call in it is cancelled.
#ifndef BATON_DECODE_WORKER_FEEDS_H_
#define BATON_DECODE_WORKER_FEEDS_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/rpc/event_stream.h"
#include "proto/worker.pb.h"

namespace baton::decode_worker {

// Thread contract: thread-safe; nothing waits. Calls keep what they need of it alive.
class Feeds {
 public:
  struct Options {
    size_t max_buffered = 65536;  // events of one feed that its router has not read; one more ends it
  };
  explicit Feeds(const Options& options) : options_(options) {}
  Feeds() : Feeds(Options{}) {}
  ~Feeds();

  // A reactor to give to gRPC. INVALID_ARGUMENT: no id, or one that is open; UNAVAILABLE when draining.
  grpc::ServerWriteReactor<v1::FeedBatch>* Open(grpc::CallbackServerContext* context, const v1::FeedRequest& request);

  // A call's stream: into the feed named by `place`, with `make_own` for its end; just what `make_own` makes where that feed
  // is not open. `on_cancel` as MakeEventStream has it. Tokens, Prefilled and Done leave at the next Flush (or before);
  // other events at once.
  std::shared_ptr<rpc::EventStream<v1::DecodeEvent>> Stream(const v1::FeedPlace& place,
                                                            const rpc::MakeEventStream<v1::DecodeEvent>& make_own,
                                                            std::function<void()> on_cancel);
  // After a step.
  void Flush();
  // Events of all feeds that wait for the transport.
  size_t buffered();
  // No feed is opened any more, and each ends behind its last call.
  void Drain();

 private:
  class Feed;
  class Member;

  std::shared_ptr<Feed> Find(const std::string& id);
  std::vector<std::shared_ptr<Feed>> All();
  void Forget(const Feed* feed);

  const Options options_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<Feed>> feeds_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_FEEDS_H_
