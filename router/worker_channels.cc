#include "router/worker_channels.h"

#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"

namespace baton::router {
namespace {

constexpr absl::Duration kFeedPause = absl::Seconds(1);  // between two attempts to open one

}  // namespace

void FeedCount::Add(int number) {
  MutexLock lock(&mu_);
  number_ += number;
  cv_.SignalAll();
}

void FeedCount::WaitUntilNone() {
  MutexLock lock(&mu_);
  while (number_ > 0) cv_.Wait(&mu_);
}

WorkerStubs::~WorkerStubs() {
  if (feed_ != nullptr) feed_->Cancel();
}

std::shared_ptr<WorkerFeed> WorkerStubs::Feed() {
  MutexLock lock(&mu_);
  absl::Status why;
  if (feed_ != nullptr && !feed_->over(&why)) return feed_->open() ? feed_ : nullptr;
  // One that does not know feeds will not learn: another version of it is another incarnation.
  if (absl::IsUnimplemented(why)) return nullptr;
  const absl::Time now = absl::Now();
  if (now < next_try_) return nullptr;
  next_try_ = now + kFeedPause;
  feeds_->Add(1);
  feed_ = WorkerFeed::Open(decode.get(), [feeds = feeds_] { feeds->Add(-1); });
  return nullptr;
}

WorkerChannels::~WorkerChannels() {
  KeepOnly({});
  feeds_->WaitUntilNone();
}

std::shared_ptr<WorkerStubs> WorkerChannels::Get(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  std::shared_ptr<WorkerStubs>& stubs = stubs_[worker.id];
  if (stubs == nullptr) {
    // Two channels, for each asks for a server of its role; only the one that is used connects.
    rpc::ChannelOptions options;
    options.own_connection = true;
    options.security = security_;
    options.peer = rpc::PeerRole::kPrefill;
    stubs = std::make_shared<WorkerStubs>(feeds_);
    const auto prefill = rpc::CreateChannel(worker.address, options);
    stubs->prefill = v1::PrefillWorker::NewStub(prefill);
    stubs->prefill_host = v1::Worker::NewStub(prefill);
    options.peer = rpc::PeerRole::kDecode;
    const auto decode = rpc::CreateChannel(worker.address, options);
    stubs->decode = v1::DecodeWorker::NewStub(decode);
    stubs->decode_host = v1::Worker::NewStub(decode);
  }
  return stubs;
}

void WorkerChannels::KeepOnly(const std::set<WorkerId>& ids) {
  std::vector<std::shared_ptr<WorkerStubs>> dropped;  // declared before the lock, so that channels close after it
  MutexLock lock(&mu_);
  for (auto it = stubs_.begin(); it != stubs_.end();) {
    if (ids.count(it->first) > 0) {
      ++it;
    } else {
      dropped.push_back(std::move(it->second));
      it = stubs_.erase(it);
    }
  }
}

}  // namespace baton::router
