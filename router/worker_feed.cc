#include "router/worker_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr char kFeedOpen[] = "baton-feed";  // the header by which a worker says so (decode_worker/feeds.cc)

}  // namespace

void FedCall::SetOwn(std::shared_ptr<WorkerCall> own) {
  std::shared_ptr<WorkerCall> cancel;
  {
    MutexLock lock(&mu_);
    if (cancelled_) cancel = own;
    if (on_end_ != nullptr) own_ = std::move(own);
  }
  if (cancel != nullptr) cancel->Cancel();
}

void FedCall::SetLeave(std::function<void()> leave) {
  MutexLock lock(&mu_);
  leave_ = std::move(leave);
}

void FedCall::Cancel() {
  std::shared_ptr<WorkerCall> own;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    own = own_;
  }
  if (own != nullptr) own->Cancel();
  EndIfDue();
}

void FedCall::OnOwnEvent(v1::DecodeEvent& event) {
  {
    MutexLock lock(&mu_);
    if (event.has_in_feed()) {
      expected_ = event.in_feed().events();
      return;
    }
    unfed_ = true;
    ++delivering_;
  }
  v1::DecodeEvent* one = &event;
  on_events_({&one, 1});
  {
    MutexLock lock(&mu_);
    --delivering_;
  }
  EndIfDue();
}

void FedCall::OnOwnEnd(absl::Status status) {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    if (status_.ok()) status_ = std::move(status);  // a broken feed has said why already
  }
  EndIfDue();
}

void FedCall::OnFedEvents(std::span<v1::DecodeEvent* const> events) {
  {
    MutexLock lock(&mu_);
    if (on_end_ == nullptr) return;
    ++delivering_;
  }
  on_events_(events);
  {
    MutexLock lock(&mu_);
    --delivering_;
    fed_ += events.size();
  }
  EndIfDue();
}

void FedCall::OnFeedBroken(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    if (unfed_ || (ended_ && fed_ >= expected_)) return;
    status_ = why;
  }
  Cancel();
}

void FedCall::EndIfDue() {
  OnEnd on_end;
  std::function<void()> leave;
  OnEvents on_events;  // nobody calls it any more; what it holds goes last
  std::shared_ptr<WorkerCall> own;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (on_end_ == nullptr || !ended_ || delivering_ > 0) return;
    if (fed_ < expected_ && !cancelled_) return;
    // What it still had to say is not to be had.
    if (fed_ < expected_ && status_.ok()) status_ = absl::CancelledError("cancelled before all of its answer had come");
    on_end = std::exchange(on_end_, nullptr);
    leave = std::exchange(leave_, nullptr);
    on_events = std::move(on_events_);
    own = std::move(own_);
    status = std::move(status_);
  }
  if (leave) leave();
  on_end(std::move(status));
}

WorkerFeed::WorkerFeed() { request_.set_feed_id(NewIncarnation()); }

std::shared_ptr<WorkerFeed> WorkerFeed::Open(v1::DecodeWorker::Stub* stub, std::function<void()> on_gone) {
  std::shared_ptr<WorkerFeed> feed(new WorkerFeed());
  feed->on_gone_ = std::move(on_gone);
  feed->self_ = feed;
  stub->async()->Feed(&feed->context_, &feed->request_, feed.get());
  feed->StartRead(&feed->batch_);
  feed->StartCall();
  return feed;
}

bool WorkerFeed::open() const {
  MutexLock lock(&mu_);
  return open_ && !over_;
}

bool WorkerFeed::over(absl::Status* why) const {
  MutexLock lock(&mu_);
  *why = why_;
  return over_;
}

uint64_t WorkerFeed::Join(std::shared_ptr<FedCall> call) {
  MutexLock lock(&mu_);
  if (!open_ || over_) return 0;
  calls_[++last_] = std::move(call);
  return last_;
}

void WorkerFeed::Leave(uint64_t call) {
  std::shared_ptr<FedCall> last;  // goes without the lock
  MutexLock lock(&mu_);
  const auto it = calls_.find(call);
  if (it == calls_.end()) return;
  last = std::move(it->second);
  calls_.erase(it);
}

void WorkerFeed::OnReadInitialMetadataDone(bool ok) {
  // A refusal has headers too.
  const bool named = ok && context_.GetServerInitialMetadata().count(kFeedOpen) > 0;
  MutexLock lock(&mu_);
  open_ = named;
}

void WorkerFeed::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  Deal(&batch_);
  StartRead(&batch_);
}

void WorkerFeed::Deal(v1::FeedBatch* batch) {
  std::vector<std::pair<uint64_t, v1::DecodeEvent*>> events;
  events.reserve(static_cast<size_t>(batch->events_size()));
  for (v1::FeedEvent& event : *batch->mutable_events()) events.emplace_back(event.call(), event.mutable_event());
  // All of one call at once, so that they can go on together. The order among calls means nothing.
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<v1::DecodeEvent*> of_call;
  for (size_t begin = 0; begin < events.size();) {
    const uint64_t number = events[begin].first;
    of_call.clear();
    for (; begin < events.size() && events[begin].first == number; ++begin) of_call.push_back(events[begin].second);
    std::shared_ptr<FedCall> call;
    {
      MutexLock lock(&mu_);
      const auto it = calls_.find(number);
      if (it != calls_.end()) call = it->second;
    }
    if (call != nullptr) call->OnFedEvents(of_call);  // else it has ended here
  }
}

void WorkerFeed::OnDone(const grpc::Status& status) {
  const std::shared_ptr<WorkerFeed> last = std::move(self_);  // may delete this on return
  const std::function<void()> gone = std::move(on_gone_);
  std::map<uint64_t, std::shared_ptr<FedCall>> calls;
  absl::Status why = FromGrpcStatus(status);
  {
    MutexLock lock(&mu_);
    over_ = true;
    why_ = why;
    calls.swap(calls_);
  }
  if (why.ok()) {
    why = absl::UnavailableError("the worker ended the stream of its answers: it is draining");
  } else {
    // That this router was too slow for it says nothing of the worker.
    const bool slow = absl::IsResourceExhausted(why);
    why = absl::Status(slow ? absl::StatusCode::kAborted : absl::StatusCode::kUnavailable,
                       absl::StrCat("the stream of the worker's answers broke: ", why.message()));
  }
  for (const auto& [number, call] : calls) call->OnFeedBroken(why);
  calls.clear();
  if (gone) gone();
}

}  // namespace baton::router
