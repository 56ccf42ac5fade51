#include "router/warm_up.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"

namespace baton::router {
namespace {

constexpr int kPromptTokens = 8;  // less than a block: nothing stays in a prefix cache
constexpr int kTokens = 4;
constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);  // doubled after each failure
constexpr absl::Duration kLongestPause = absl::Seconds(5);

}  // namespace

// Collects the tokens.
class WarmUp::Client : public ClientStream {
 public:
  Client(WarmUp* owner, std::shared_ptr<RequestDriver> driver, WorkerId worker, PlacedPair pair)
      : owner_(owner), driver_(std::move(driver)), worker_(std::move(worker)), pair_(std::move(pair)) {}
  void Push(v1::GenerateResponse response) override {
    if (response.has_token()) tokens_.push_back(response.token().token_id());
  }
  void Finish(absl::Status status) override {
    if (status.ok() && tokens_.size() != kTokens) {
      status = absl::InternalError(absl::StrCat(tokens_.size(), " tokens came, and ", kTokens, " were asked for"));
    }
    owner_->End(worker_, pair_, status.ok() ? absl::StatusOr<std::vector<int32_t>>(tokens_) : status);
    driver_.reset();  // whoever calls this holds it
  }

 private:
  WarmUp* const owner_;
  std::shared_ptr<RequestDriver> driver_;
  const WorkerId worker_;
  const PlacedPair pair_;
  std::vector<int32_t> tokens_;
};

WarmUp::WarmUp(ServingMode mode, ClusterView* view, const DriverContext& shared, Metrics* metrics)
    : mode_(mode),
      view_(view),
      metrics_(metrics),
      uncounted_metrics_(&uncounted_, "", ""),
      table_(1 << 20),
      context_(shared) {
  context_.table = &table_;
  context_.metrics = &uncounted_metrics_;
  context_.log = nullptr;
  context_.load = nullptr;
}

WarmUp::~WarmUp() {
  for (const std::shared_ptr<RequestDriver>& driver : table_.Running()) driver->Stop();
  table_.WaitUntilGone();
}

std::optional<PlacedPair> WarmUp::PairFor(const WorkerSnapshot& worker, const std::vector<WorkerSnapshot>& workers,
                                          int turn) const {
  const WorkerRef self = {worker.id, worker.address};
  const bool decode = worker.role == Role::kDecode;
  if (decode && mode_ == ServingMode::kAggregated) return PlacedPair{{}, self};
  std::vector<WorkerRef> ready, warming;
  for (const WorkerSnapshot& w : workers) {
    if (w.role == worker.role || w.suspect) continue;
    if (w.state == WorkerState::kReady) ready.push_back({w.id, w.address});
    if (w.state == WorkerState::kWarming) warming.push_back({w.id, w.address});
  }
  // Another one each time, in case the partner is what fails.
  ready.insert(ready.end(), warming.begin(), warming.end());
  if (ready.empty()) {
    if (decode && mode_ == ServingMode::kAuto) return PlacedPair{{}, self};
    return std::nullopt;
  }
  const WorkerRef& partner = ready[static_cast<size_t>(turn) % ready.size()];
  return decode ? PlacedPair{partner, self} : PlacedPair{self, partner};
}

void WarmUp::Tick() {
  const std::vector<WorkerSnapshot> workers = view_->Snapshot();
  std::vector<std::pair<WorkerId, PlacedPair>> begin;
  {
    MutexLock lock(&mu_);
    std::map<WorkerId, Attempt> kept;
    bool any_ready = false;
    for (const WorkerSnapshot& w : workers) {
      any_ready |= w.state == WorkerState::kReady || w.state == WorkerState::kDraining;
      if (w.state != WorkerState::kWarming) continue;
      Attempt& attempt = kept[w.id] = attempts_[w.id];
      if (attempt.running || w.suspect || context_.clock->Now() < attempt.due) continue;
      std::optional<PlacedPair> pair = PairFor(w, workers, attempt.failures);
      if (!pair.has_value()) continue;
      attempt.running = true;
      begin.emplace_back(w.id, *std::move(pair));
    }
    attempts_ = std::move(kept);
    if (!any_ready) expected_.clear();  // those that come next may be of another model
  }
  for (const auto& [worker, pair] : begin) Begin(worker, pair);
}

void WarmUp::Begin(const WorkerId& worker, const PlacedPair& pair) {
  AdmittedRequest request;
  request.request_id = absl::StrCat("warm-up-", worker.name, "-", worker.incarnation.substr(0, 8), "-", next_++);
  request.tenant = "baton warm-up";
  for (int i = 1; i <= kPromptTokens; ++i) request.prompt_token_ids.push_back(i);
  request.sampling.set_temperature(0);
  request.sampling.set_seed(1);
  request.sampling.set_n(1);
  request.sampling.set_max_tokens(kTokens);
  request.sampling.set_ignore_eos(true);
  const std::string key = request.request_id;
  const std::shared_ptr<RequestDriver> driver = RequestDriver::Create(
      &context_, key, context_.clock->Now() + kTimeout,
      [&](const std::shared_ptr<RequestDriver>& self) { return std::make_unique<Client>(this, self, worker, pair); }, pair);
  if (absl::Status status = table_.Add(key, driver); !status.ok()) return driver->Reject(std::move(status));
  driver->Admit(std::move(request));
}

void WarmUp::End(const WorkerId& worker, const PlacedPair& pair, absl::StatusOr<std::vector<int32_t>> tokens) {
  bool passed = tokens.ok();
  absl::Status why = tokens.status();
  {
    MutexLock lock(&mu_);
    if (passed && expected_.empty()) expected_ = *tokens;
    if (passed && *tokens != expected_) {
      passed = false;
      why = absl::InternalError("it gave other tokens than the workers before it; their arithmetic differs");
    }
    if (const auto it = attempts_.find(worker); it != attempts_.end()) {
      it->second.running = false;
      const absl::Duration pause = kFirstPause * (1 << std::min(it->second.failures, 6));
      it->second.failures += !passed;
      it->second.due = context_.clock->Now() + std::min(pause, kLongestPause);
    }
  }
  metrics_
      ->Counter("baton_warm_ups_total", "Generations through workers that joined, before their first request",
                {{"result", passed ? "passed" : "failed"}})
      .Increment();
  if (!passed) {
    LogWarn("a worker that joined gets no requests yet: a generation through it failed",
            {{"worker", worker.name}, {"prefill_worker", pair.prefill.id.name}, {"decode_worker", pair.decode.id.name},
             {"why", why.message()}});
    return;
  }
  for (const WorkerRef* member : {&pair.prefill, &pair.decode}) {
    if (!member->id.name.empty()) view_->MarkWarm(member->id);
  }
  context_.placement->Changed();
}

}  // namespace baton::router
