#include "tests/sim/sim_router.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kUpdateTimeout = absl::Seconds(10);  // as worker_calls.cc

router::ClusterViewOptions ViewOptions() {
  router::ClusterViewOptions options;
  options.heartbeat = absl::Milliseconds(200);
  options.worker_timeout = absl::Milliseconds(1000);
  return options;
}

// A token's text is "<id>"; a stop string such as "<7>" is that token.
class SimText final : public router::TextMaker {
 public:
  std::unique_ptr<router::ChoiceText> NewChoice(const v1::SamplingParams& sampling) const override {
    return std::make_unique<Choice>(sampling);
  }
  std::string TokenBytes(int32_t id) const override { return absl::StrCat("<", id, ">"); }

 private:
  class Choice final : public router::ChoiceText {
   public:
    explicit Choice(const v1::SamplingParams& s) : stops_(s.stop().begin(), s.stop().end()) {}
    router::TextPiece Push(int32_t id) override {
      const std::string text = absl::StrCat("<", id, ">");
      if (stops_.count(text) > 0) return {"", text};
      return {text, std::nullopt};
    }
    router::TextPiece PushStop(int32_t) override { return {}; }
    router::TextPiece Flush() override { return {}; }

   private:
    const std::set<std::string> stops_;
  };
};

class SimTimer final : public router::Timer {
 public:
  explicit SimTimer(std::shared_ptr<bool> wanted) : wanted_(std::move(wanted)) {}
  ~SimTimer() override { *wanted_ = false; }

 private:
  const std::shared_ptr<bool> wanted_;
};

}  // namespace

SimRouter::SimRouter(Network* network, ProcessPtr process, FindWorker find)
    : network_(network),
      process_(std::move(process)),
      find_(std::move(find)),
      view_(ViewOptions(), process_->world()->clock(),
            [this](const router::WorkerId& id, const std::string& why) { OnGone(id, why); }),
      placement_(&view_, process_->world()->clock(), {}, process_->world()->Random() >> 1),
      router_metrics_(&metrics_, "hash", "fingerprint"),
      text_(std::make_unique<SimText>()),
      context_{&table_, &placement_, this, &router_metrics_, text_.get(), process_->world()->clock(), this} {}

SimRouter::~SimRouter() { TearDown(); }

void SimRouter::TearDown() {
  process_->Die();
  for (const auto& drop : drop_calls_) drop();
  drop_calls_.clear();
}

void SimRouter::Tick() {
  view_.ExpireSilent();
  placement_.Tick();
  process_->After(kTick, [this] { Tick(); });
}

void SimRouter::OnGone(const router::WorkerId& id, const std::string& why) {
  process_->world()->Note(absl::StrCat("gone ", id.name, " ", id.incarnation));
  gone_.insert(id);
  for (const std::shared_ptr<router::RequestDriver>& driver : table_.Running()) driver->WorkerGone(id, why);
}

std::shared_ptr<router::RequestDriver> SimRouter::Submit(router::AdmittedRequest request, absl::Time deadline,
                                                         std::unique_ptr<router::ClientStream> client) {
  const std::string key = request.request_id;
  std::shared_ptr<router::RequestDriver> driver = router::RequestDriver::Create(
      &context_, key, deadline, [&](const std::shared_ptr<router::RequestDriver>&) { return std::move(client); });
  drivers_.push_back(driver);
  if (absl::Status s = table_.Add(key, driver); !s.ok()) {
    driver->Reject(std::move(s));
  } else {
    driver->Admit(std::move(request));
  }
  return driver;
}

SimWorker::Router SimRouter::membership() {
  return {process_, &view_, [this] { placement_.Changed(); }};
}

bool SimRouter::Has(const router::WorkerId& id) const {
  for (const router::WorkerSnapshot& w : view_.Snapshot()) {
    if (w.id == id) return w.state == router::WorkerState::kReady && !w.suspect;
  }
  return false;
}

bool SimRouter::IsCurrent(const Source& source) const {
  const auto it = newest_epoch_.find(source.request_id);
  return it != newest_epoch_.end() && it->second == source.epoch && gone_.count(source.worker) == 0;
}

uint32_t SimRouter::attempts(const std::string& request_id) const {
  const auto it = newest_epoch_.find(request_id);
  return it == newest_epoch_.end() ? 0 : it->second;
}

template <class Event, class Request>
std::shared_ptr<router::WorkerCall> SimRouter::Open(
    const router::WorkerRef& worker, const Request& request, absl::Time deadline, std::function<void(Event&)> on_event,
    OnEnd on_end, std::function<void(SimWorker*, const rpc::MakeEventStream<Event>&)> serve) {
  newest_epoch_[request.request_id()] = std::max(newest_epoch_[request.request_id()], request.epoch());
  gone_.erase(worker.id);  // placed there, so it is a member again
  process_->world()->Note(absl::StrCat("open ", worker.id.name, " ", worker.id.incarnation, " ", request.request_id(),
                                       " e", request.epoch()));
  SimWorker* target = find_(worker.id);
  const Source source{request.request_id(), request.epoch(), worker.id};
  auto call = std::make_shared<SimCall<Event>>(
      network_, process_, target->process(),
      [this, source, on_event = std::move(on_event)](Event& event) {
        source_ = &source;
        on_event(event);
        source_ = nullptr;
      },
      std::move(on_end));
  const std::weak_ptr<SimCall<Event>> weak = call;
  drop_calls_.push_back([weak] {
    if (const auto c = weak.lock()) c->DropClient();
  });
  if (!target->process()->alive()) {
    // Nobody listens there.
    process_->After(absl::Milliseconds(process_->world()->Below(20)),
                    [call] { call->Refused(); });
    return call;
  }
  target->drop_calls.push_back([weak] {
    if (const auto c = weak.lock()) c->DropServer();
  });
  call->Start(deadline, [target, serve = std::move(serve)](const rpc::MakeEventStream<Event>& make) {
    serve(target, make);
  });
  return call;
}

std::shared_ptr<router::WorkerCall> SimRouter::Prefill(router::StartPrefill command, absl::Time deadline,
                                                       std::function<void(v1::PrefillEvent&)> on_event,
                                                       OnEnd on_end) {
  const v1::PrefillRequest request = std::move(command.request);
  return Open<v1::PrefillEvent>(command.worker, request, deadline, std::move(on_event), std::move(on_end),
                                [request, deadline](SimWorker* worker, const auto& make) {
                                  worker->prefill()->Serve(request, deadline, make);
                                });
}

std::shared_ptr<router::WorkerCall> SimRouter::Decode(router::StartDecode command, absl::Time deadline,
                                                      OnDecodeEvents on_events, OnEnd on_end) {
  const v1::DecodeRequest request = std::move(command.request);
  const auto on_event = [on_events = std::move(on_events)](v1::DecodeEvent& event) {
    v1::DecodeEvent* one = &event;
    on_events({&one, 1});
  };
  return Open<v1::DecodeEvent>(command.worker, request, deadline, on_event, std::move(on_end),
                               [request, deadline](SimWorker* worker, const auto& make) {
                                 worker->decode()->Serve(request, deadline, make);
                               });
}

void SimRouter::Update(const router::UpdateDecode& command, absl::Time deadline, OnEnd failed) {
  SimWorker* target = find_(command.worker.id);
  const absl::Time latest = process_->world()->now() + kUpdateTimeout;
  const bool own = latest < deadline;
  SimUnary::Start(
      network_, process_, target->process(), std::min(deadline, latest),
      [target, request = command.request](SimUnary::Reply reply) { reply(target->decode()->Update(request)); },
      [failed = std::move(failed), own](absl::Status status) {
        if (absl::IsNotFound(status)) status = absl::AbortedError(status.message());
        if (own && absl::IsDeadlineExceeded(status)) status = absl::UnavailableError("did not take an update in 10 s");
        if (!status.ok()) failed(std::move(status));
      });
}

void SimRouter::Offer(const router::OfferHistory& command) {
  SimWorker* target = find_(command.worker.id);
  SimUnary::Start(
      network_, process_, target->process(), process_->world()->now() + kUpdateTimeout,
      [target, request = command.request](SimUnary::Reply reply) {
        target->prefill()->Import(request,
                                  [reply](const absl::Status& s, const v1::ImportHistoryResponse&) { reply(s); });
      },
      [](const absl::Status&) {});
}

std::unique_ptr<router::Timer> SimRouter::After(absl::Duration delay, std::function<void()> then) {
  auto wanted = std::make_shared<bool>(true);
  process_->After(delay, [wanted, then = std::move(then)] {
    if (*wanted) then();
  });
  return std::make_unique<SimTimer>(std::move(wanted));
}

std::string SimRouter::Held() {
  std::string held;
  const auto add = [&held](absl::string_view what, uint64_t n) {
    if (n != 0) absl::StrAppend(&held, n, " ", what, "; ");
  };
  add("requests in the table", table_.running());
  uint64_t alive = 0;
  for (const auto& driver : drivers_) alive += !driver.expired();
  add("drivers", alive);
  const router::QueueState queue = placement_.queue();
  add("queued tokens", queue.tokens);
  for (const router::WorkerSnapshot& w : view_.Snapshot()) {
    add(absl::StrCat("requests in flight on ", w.id.name), w.in_flight);
    add(absl::StrCat("blocks promised on ", w.id.name), w.promised_blocks);
    add(absl::StrCat("sequences promised on ", w.id.name), w.promised_sequences);
  }
  const double running = metrics_.Gauge("baton_requests_in_flight", "Requests the router is working on").Value();
  if (running != 0) absl::StrAppend(&held, running, " in the gauge of running requests; ");
  return held;
}

}  // namespace baton::sim
