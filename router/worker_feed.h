// The answers of all Decodes of one worker incarnation on one stream (DecodeWorker.Feed), dealt out to the calls.
#ifndef BATON_ROUTER_WORKER_FEED_H_
#define BATON_ROUTER_WORKER_FEED_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/worker.grpc.pb.h"
#include "router/worker_link.h"

namespace baton::router {

// A Decode whose events may come through a feed. Its end is held back until all of them have come: the call's own stream
// says how many there are. What a worker answers on the call's own stream, because it does not know the feed, counts as
// well.
//
// Thread contract: thread-safe; on_end runs last and exactly once, and nothing is locked meanwhile.
class FedCall final : public WorkerCall {
 public:
  using OnEvents = std::function<void(std::span<v1::DecodeEvent* const>)>;
  using OnEnd = std::function<void(absl::Status)>;

  FedCall(OnEvents on_events, OnEnd on_end) : on_events_(std::move(on_events)), on_end_(std::move(on_end)) {}

  // Once, behind the start of the call's own stream.
  void SetOwn(std::shared_ptr<WorkerCall> own);
  // `leave` runs before on_end.
  void SetLeave(std::function<void()> leave);
  void Cancel() override;

  // By the call's own stream.
  void OnOwnEvent(v1::DecodeEvent& event);
  void OnOwnEnd(absl::Status status);
  // By the feed.
  void OnFedEvents(std::span<v1::DecodeEvent* const> events);
  void OnFeedBroken(const absl::Status& why);

 private:
  // Ends the call if it can be ended.
  void EndIfDue();

  OnEvents on_events_;  // until on_end
  Mutex mu_;
  OnEnd on_end_ ABSL_GUARDED_BY(mu_);  // null: it ran, or runs
  std::function<void()> leave_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<WorkerCall> own_ ABSL_GUARDED_BY(mu_);
  int delivering_ ABSL_GUARDED_BY(mu_) = 0;  // threads that are in on_events_
  uint64_t fed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t expected_ ABSL_GUARDED_BY(mu_) = 0;
  bool unfed_ ABSL_GUARDED_BY(mu_) = false;      // it answers on its own stream
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;  // or the feed broke: nothing more is waited for
  bool ended_ ABSL_GUARDED_BY(mu_) = false;      // its own stream is
  absl::Status status_ ABSL_GUARDED_BY(mu_);     // then
};

// Lives until gRPC is done with it and the last shared_ptr is gone.
//
// Thread contract: thread-safe. Batches are dealt out on gRPC's threads, one after another.
class WorkerFeed final : public grpc::ClientReadReactor<v1::FeedBatch> {
 public:
  // `on_gone` runs when gRPC is done with it, last.
  static std::shared_ptr<WorkerFeed> Open(v1::DecodeWorker::Stub* stub, std::function<void()> on_gone);

  // The worker has said that it knows it, and it has not ended.
  bool open() const;
  // The end; OK while there was none.
  bool over(absl::Status* why) const;
  const std::string& id() const { return request_.feed_id(); }
  // The number to name; 0: it is over.
  uint64_t Join(std::shared_ptr<FedCall> call);
  void Leave(uint64_t call);
  void Cancel() { context_.TryCancel(); }

 private:
  WorkerFeed();

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Deal(v1::FeedBatch* batch);

  grpc::ClientContext context_;
  v1::FeedRequest request_;
  v1::FeedBatch batch_;
  std::function<void()> on_gone_;
  std::shared_ptr<WorkerFeed> self_;

  mutable Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<FedCall>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_FEED_H_
