#include "decode_worker/feeds.h"

#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/stream_writer.h"
#include "common/status.h"

namespace baton::decode_worker {
namespace {

using EventStream = rpc::EventStream<v1::DecodeEvent>;

constexpr char kFeedOpen[] = "baton-feed";  // router/worker_feed.cc looks for it
constexpr size_t kMaxIdBytes = 64;
// Of one message, so that one event more stays far below what gRPC lets pass (8 MiB).
constexpr size_t kMaxBatchBytes = 1 << 20;
constexpr int kMaxBatchEvents = 4096;

struct GatherEvents {
  using Item = v1::FeedEvent;
  void Take(std::deque<v1::FeedEvent>* waiting, v1::FeedBatch* batch) {
    batch->Clear();
    size_t bytes = 0;
    while (!waiting->empty() && batch->events_size() < kMaxBatchEvents && bytes < kMaxBatchBytes) {
      v1::FeedEvent* event = batch->add_events();
      *event = std::move(waiting->front());
      waiting->pop_front();
      bytes += event->ByteSizeLong();
    }
  }
};

using Writer = rpc::StreamWriter<v1::FeedBatch, GatherEvents>;

}  // namespace

// The stream, and the calls in it.
class Feeds::Feed {
 public:
  explicit Feed(std::string id) : id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  void SetWriter(std::shared_ptr<Writer> writer) {
    MutexLock lock(&mu_);
    writer_ = std::move(writer);
  }

  // Null when it is over.
  std::shared_ptr<Writer> Join(const Member* member, std::function<void()> on_cancel) {
    MutexLock lock(&mu_);
    if (writer_ == nullptr || draining_) return nullptr;
    members_[member] = std::move(on_cancel);
    return writer_;
  }
  void Leave(const Member* member) {
    std::function<void()> dropped;
    bool last = false;
    {
      MutexLock lock(&mu_);
      const auto it = members_.find(member);
      if (it == members_.end()) return;
      dropped = std::move(it->second);
      members_.erase(it);
      last = members_.empty() && draining_;
    }
    if (last) End();
  }
  void Drain() {
    bool last = false;
    {
      MutexLock lock(&mu_);
      draining_ = true;
      last = members_.empty();
    }
    if (last) End();
  }
  void Flush() {
    if (const std::shared_ptr<Writer> writer = this->writer(); writer != nullptr) writer->Flush();
  }
  size_t buffered() {
    const std::shared_ptr<Writer> writer = this->writer();
    return writer == nullptr ? 0 : writer->buffered();
  }
  // The stream is over, or will be: its calls are too.
  void Break() {
    std::map<const Member*, std::function<void()>> members;
    std::shared_ptr<Writer> dropped;
    {
      MutexLock lock(&mu_);
      members.swap(members_);
      dropped = std::move(writer_);
    }
    for (auto& [member, on_cancel] : members) on_cancel();
  }

 private:
  std::shared_ptr<Writer> writer() {
    MutexLock lock(&mu_);
    return writer_;
  }
  void End() {
    if (const std::shared_ptr<Writer> writer = this->writer(); writer != nullptr) writer->Finish(absl::OkStatus());
  }

  const std::string id_;
  Mutex mu_;
  std::shared_ptr<Writer> writer_ ABSL_GUARDED_BY(mu_);  // null when over
  std::map<const Member*, std::function<void()>> members_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

// One call's stream. Events of one call are pushed one after another; its end may come at any time.
class Feeds::Member final : public EventStream {
 public:
  Member(std::shared_ptr<Feed> feed, uint64_t call) : feed_(std::move(feed)), call_(call) {}
  bool Join(std::function<void()> on_cancel) {
    writer_ = feed_->Join(this, std::move(on_cancel));
    return writer_ != nullptr;
  }
  void SetOwn(std::shared_ptr<EventStream> own) { own_ = std::move(own); }

  bool Push(v1::DecodeEvent event) override {
    if (over_) return false;
    const bool of_step = event.has_token() || event.has_prefilled() || event.has_done();
    v1::FeedEvent item;
    item.set_call(call_);
    *item.mutable_event() = std::move(event);
    if (!(of_step ? writer_->Hold(std::move(item)) : writer_->Push(std::move(item)))) return false;
    ++pushed_;
    return true;
  }
  void Finish(absl::Status status) override {
    if (over_.exchange(true)) return;
    if (const uint64_t pushed = pushed_; pushed > 0) {
      v1::DecodeEvent event;
      event.mutable_in_feed()->set_events(pushed);
      own_->Push(std::move(event));
      // The router waits for all of them, and an end need not come within a step.
      writer_->Flush();
    }
    own_->Finish(std::move(status));
    feed_->Leave(this);
  }
  bool cancelled() const override { return own_->cancelled(); }

 private:
  const std::shared_ptr<Feed> feed_;
  const uint64_t call_;
  std::shared_ptr<Writer> writer_;
  std::shared_ptr<EventStream> own_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> pushed_{0};
};

Feeds::~Feeds() {
  // Streams outlive this only as gRPC's; their end must not come back here.
  MutexLock lock(&mu_);
  feeds_.clear();
}

grpc::ServerWriteReactor<v1::FeedBatch>* Feeds::Open(grpc::CallbackServerContext* context,
                                                      const v1::FeedRequest& request) {
  const std::string& id = request.feed_id();
  auto feed = std::make_shared<Feed>(id);
  auto writer = Writer::Create({options_.max_buffered}, [this, feed] {
    Forget(feed.get());
    feed->Break();
  });
  absl::Status status;
  if (id.empty() || id.size() > kMaxIdBytes) {
    status = InvalidField("feed_id", absl::StrCat(id.size(), " bytes; 1 to ", kMaxIdBytes));
  } else {
    MutexLock lock(&mu_);
    if (draining_) {
      status = absl::UnavailableError("this worker is draining");
    } else if (feeds_.count(id) > 0) {
      status = InvalidField("feed_id", "names a feed that is open");
    } else {
      feed->SetWriter(writer);
      feeds_[id] = feed;
    }
  }
  if (status.ok()) {
    // Its router waits for this before it names the feed.
    context->AddInitialMetadata(kFeedOpen, "open");
    writer->StartSendInitialMetadata();
  } else {
    writer->Finish(std::move(status));
  }
  return writer.get();
}

std::shared_ptr<EventStream> Feeds::Stream(const v1::FeedPlace& place,
                                           const rpc::MakeEventStream<v1::DecodeEvent>& make_own,
                                           std::function<void()> on_cancel) {
  const std::shared_ptr<Feed> feed = place.feed_id().empty() ? nullptr : Find(place.feed_id());
  if (feed == nullptr) return make_own(std::move(on_cancel));
  // Its own stream and the feed may both end it.
  auto once = [cancelled = std::make_shared<std::atomic<bool>>(false), on_cancel = std::move(on_cancel)] {
    if (!cancelled->exchange(true)) on_cancel();
  };
  auto member = std::make_shared<Member>(feed, place.call());
  std::shared_ptr<EventStream> own = make_own(once);
  member->SetOwn(own);
  if (!member->Join(std::move(once))) return own;
  return member;
}

std::vector<std::shared_ptr<Feeds::Feed>> Feeds::All() {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Feed>> all;
  for (const auto& [id, feed] : feeds_) all.push_back(feed);
  return all;
}

void Feeds::Flush() {
  for (const std::shared_ptr<Feed>& feed : All()) feed->Flush();
}

size_t Feeds::buffered() {
  size_t sum = 0;
  for (const std::shared_ptr<Feed>& feed : All()) sum += feed->buffered();
  return sum;
}

void Feeds::Drain() {
  {
    MutexLock lock(&mu_);
    draining_ = true;
  }
  for (const std::shared_ptr<Feed>& feed : All()) feed->Drain();
}

std::shared_ptr<Feeds::Feed> Feeds::Find(const std::string& id) {
  MutexLock lock(&mu_);
  const auto it = feeds_.find(id);
  return it == feeds_.end() ? nullptr : it->second;
}

void Feeds::Forget(const Feed* feed) {
  std::shared_ptr<Feed> dropped;
  MutexLock lock(&mu_);
  const auto it = feeds_.find(feed->id());
  if (it == feeds_.end() || it->second.get() != feed) return;
  dropped = std::move(it->second);
  feeds_.erase(it);
}

}  // namespace baton::decode_worker
