// Overload, simulated from a seed: open-loop arrivals at a multiple of what the workers can do, through the router's own
// admission and placement. Workers compute a prompt token in a fixed time and a decode step in a time that grows with
// its sequences; they report every 500 ms, as real ones do.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "router/placement.h"

namespace baton::router {
namespace {

struct Scenario {
  const char* name;
  double us_per_token = 500;       // prefill
  double step_fixed_us = 4000;     // decode
  double step_row_us = 500;
  uint64_t decode_blocks = 4000;   // of one worker
  uint32_t max_sequences = 0;      // likewise; beyond, a request waits at the worker before its prefill; 0: no limit
  double capacity = 7.8;           // requests a second that the workers can do; measured by the 1x run
  absl::Duration ttft = absl::Seconds(2);
  absl::Duration itl = absl::Milliseconds(100);
};

constexpr int kPrompt = 512, kOutput = 64, kWorkers = 2;

struct Window {
  int offered = 0, good = 0, late = 0, refused = 0, refused_slowly = 0;
  double worst_ttft_ms = 0;
};

class Simulation {
 public:
  Simulation(const Scenario& s, uint64_t seed)
      : s_(s), random_(seed), view_({}, &clock_, [](const WorkerId&, const std::string&) {}) {
    PlacementOptions options;
    options.policy.max_backlog_tokens = 1024;
    for (Promise& promise : options.admission.promises) promise = {s.ttft, s.itl};
    placement_ = std::make_unique<Placement>(&view_, &clock_, options, seed);
    for (const char* role : {"prefill", "decode"}) {
      for (int w = 0; w < kWorkers; ++w) {
        v1::WorkerInfo info;
        info.set_name(absl::StrCat(role, w));
        info.set_incarnation("i");
        info.set_role(role);
        info.set_address("127.0.0.1:1");
        info.set_model_name("m");
        info.set_max_context(100000);
        info.set_total_blocks(s.decode_blocks);
        info.set_max_sequences(s.max_sequences);
        auto* f = info.mutable_fingerprint();
        f->set_weights("w");
        f->set_config("c");
        f->set_tokenizer("t");
        f->set_numerics_class("n");
        auto* l = info.mutable_layout();
        l->set_dtype("f16");
        l->set_block_size(16);
        l->set_num_layers(1);
        l->set_num_kv_heads(1);
        l->set_head_dim(1);
        EXPECT_TRUE(view_.Register(info).ok());
      }
    }
    at(0, [this] { Beat(); });
    at(10e3, [this] { Tick(); });
  }

  // Offers `rate` requests a second for `seconds`.
  Window Run(double rate, double seconds) {
    window_ = {};
    const double end = now_ + seconds * 1e6;
    at(now_, [this, rate, end] { Arrive(rate, end); });
    while (!events_.empty() && events_.begin()->first <= end) Next();
    return window_;
  }

 private:
  struct Request {
    uint64_t id = 0;
    double arrival = 0, placed = 0;
    absl::Duration forecast;  // of token 0, from then on
    InFlightHold prefill, decode;
    int at = 0;       // decode worker
    int prefills = 0;  // prefill worker
    int left = kOutput - 1;
  };

  void at(double us, std::function<void()> what) { events_.emplace(us, std::move(what)); }
  void Next() {
    auto node = events_.extract(events_.begin());
    now_ = node.key();
    const absl::Time target = absl::UnixEpoch() + absl::Microseconds(now_);
    if (target > clock_.Now()) clock_.Advance(target - clock_.Now());
    node.mapped()();
  }
  void Tick() {
    placement_->Tick();
    at(now_ + 50e3, [this] { Tick(); });
  }
  void Beat() {
    for (int w = 0; w < kWorkers; ++w) {
      v1::HeartbeatRequest beat;
      beat.set_incarnation("i");
      beat.set_name(absl::StrCat("prefill", w));
      beat.mutable_load()->set_pending_tokens(
          static_cast<uint64_t>(std::max(0.0, busy_until_[w] - now_) / s_.us_per_token));
      beat.mutable_load()->mutable_cost()->set_per_row_us(s_.us_per_token);
      beat.mutable_load()->mutable_cost()->set_samples(steps_);
      EXPECT_TRUE(view_.Heartbeat(beat).ok());
      beat.Clear();
      beat.set_incarnation("i");
      beat.set_name(absl::StrCat("decode", w));
      beat.mutable_load()->set_running(static_cast<uint32_t>(decoding_[w].size()));
      beat.mutable_load()->set_waiting(static_cast<uint32_t>(waiting_[w].size()));
      beat.mutable_load()->mutable_ledger()->set_free(s_.decode_blocks - decoding_[w].size() * 36);
      beat.mutable_load()->mutable_cost()->set_fixed_us(s_.step_fixed_us);
      beat.mutable_load()->mutable_cost()->set_per_row_us(s_.step_row_us);
      beat.mutable_load()->mutable_cost()->set_samples(steps_);
      EXPECT_TRUE(view_.Heartbeat(beat).ok());
    }
    placement_->Changed();
    at(now_ + 500e3, [this] { Beat(); });
  }

  void Arrive(double rate, double end) {
    ++window_.offered;
    auto request = std::make_shared<Request>();
    request->id = placement_->NewId();
    request->arrival = now_;
    PlaceRequest ask;
    ask.request_id = absl::StrCat(request->id);
    ask.need.prompt_tokens = kPrompt;
    ask.need.output_tokens = kOutput;
    ask.need.total_tokens = kPrompt + kOutput;
    ask.arrival = clock_.Now();
    placement_->Ask(request->id, std::move(ask), [this, request](absl::StatusOr<PlacedHolds> placed) {
      if (!placed.ok()) {
        EXPECT_TRUE(RetryAfterOf(placed.status()).has_value()) << placed.status();
        ++window_.refused;
        window_.refused_slowly += now_ - request->arrival > 50e3;
        // Not from inside the callback of the object it calls.
        return at(now_, [this, request] { placement_->Leave(request->id); });
      }
      request->prefill = std::move(placed->prefill);
      request->decode = std::move(placed->decode);
      request->forecast = placed->ttft;
      request->placed = now_;
      request->at = placed->pair.decode.id.name.back() - '0';
      request->prefills = placed->pair.prefill.id.name.back() - '0';
      waiting_[request->at].push_back(request);
      Reserve(request->at);
    });
    const double next = now_ + std::exponential_distribution<double>(rate / 1e6)(random_);
    if (next < end) at(next, [this, rate, end] { Arrive(rate, end); });
  }

  // Those that wait for a place of the decode worker, in turn.
  void Reserve(int w) {
    while (!waiting_[w].empty() && (s_.max_sequences == 0 || taken_[w] < s_.max_sequences)) {
      const std::shared_ptr<Request> request = waiting_[w].front();
      waiting_[w].pop_front();
      ++taken_[w];
      ++steps_;
      double& busy = busy_until_[request->prefills];
      busy = std::max(busy, now_) + kPrompt * s_.us_per_token;
      at(busy, [this, request] { FirstToken(request); });
    }
  }

  void FirstToken(const std::shared_ptr<Request>& request) {
    placement_->ReportFirstToken(request->forecast, absl::Microseconds(now_ - request->placed));
    const double ttft = now_ - request->arrival;
    window_.worst_ttft_ms = std::max(window_.worst_ttft_ms, ttft / 1000);
    (ttft <= absl::ToDoubleMicroseconds(s_.ttft) ? window_.good : window_.late) += 1;
    request->prefill = {};
    placement_->Changed();
    auto& batch = decoding_[request->at];
    batch.push_back(request);
    if (batch.size() == 1) at(now_ + Step(request->at), [this, w = request->at] { Decode(w); });
  }

  double Step(int w) const { return s_.step_fixed_us + s_.step_row_us * static_cast<double>(decoding_[w].size()); }
  void Decode(int w) {
    ++steps_;
    std::vector<std::shared_ptr<Request>> ended;
    for (auto& request : decoding_[w]) {
      if (--request->left == 0) ended.push_back(request);
    }
    std::erase_if(decoding_[w], [](const auto& r) { return r->left == 0; });
    taken_[w] -= static_cast<uint32_t>(ended.size());
    Reserve(w);
    for (auto& request : ended) {
      request->decode = {};
      placement_->Leave(request->id);
    }
    if (!ended.empty()) placement_->Changed();
    if (!decoding_[w].empty()) at(now_ + Step(w), [this, w] { Decode(w); });
  }

  const Scenario s_;
  std::mt19937_64 random_;
  SimulatedClock clock_;
  ClusterView view_;
  std::unique_ptr<Placement> placement_;
  double now_ = 0;
  uint64_t steps_ = 1000;  // of all workers: costs are known, and of now while there is work
  std::multimap<double, std::function<void()>> events_;
  double busy_until_[kWorkers] = {};
  std::vector<std::shared_ptr<Request>> decoding_[kWorkers];
  std::deque<std::shared_ptr<Request>> waiting_[kWorkers];  // for a place
  uint32_t taken_[kWorkers] = {};
  Window window_;
};

void Print(const char* name, double times, const Window& w, double seconds) {
  printf("%-15s %4.1fx  offered %6.1f/s  good %5.2f/s  late %4d  refused %6d (slowly %4d)  worst TTFT %6.0f ms\n", name,
         times, w.offered / seconds, w.good / seconds, w.late, w.refused, w.refused_slowly, w.worst_ttft_ms);
}

class OverloadSimTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(OverloadSimTest, GoodputHoldsAndComesBack) {
  const Scenario& s = GetParam();
  double peak = 0;
  for (const double times : {0.8, 1.0, 1.2}) {
    const Window w = Simulation(s, 7).Run(s.capacity * times, 60);
    Print(s.name, times, w, 60);
    peak = std::max(peak, w.good / 60.0);
  }
  for (const double times : {2.0, 5.0, 10.0}) {
    Simulation simulation(s, 7);
    const Window w = simulation.Run(s.capacity * times, 60);
    Print(s.name, times, w, 60);
    EXPECT_GE(w.good / 60.0, 0.9 * peak) << times;
    EXPECT_LE(w.late, 0.02 * w.good) << times;
    // A refusal comes at once, but for the first moments of a queue whose speed is not known yet.
    EXPECT_LE(w.refused_slowly, 0.03 * w.refused) << times;
    // Back to a load that fits: after 5 s as if nothing had been.
    simulation.Run(s.capacity * 0.5, 5);
    const Window calm = simulation.Run(s.capacity * 0.5, 20);
    Print("  afterwards", 0.5, calm, 20);
    EXPECT_EQ(calm.late, 0);
    EXPECT_EQ(calm.refused, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bottlenecks, OverloadSimTest,
    ::testing::Values(Scenario{.name = "prefill-bound"},
                      // 10 sequences fit each worker's KV: 20 in 63 steps of 29 ms.
                      Scenario{.name = "KV-bound", .us_per_token = 50, .step_fixed_us = 24000, .decode_blocks = 370,
                               .capacity = 10.9},
                      // 12 places on each worker: 24 in 63 steps of 30 ms.
                      Scenario{.name = "place-bound", .us_per_token = 50, .step_fixed_us = 24000, .max_sequences = 12,
                               .capacity = 12.7},
                      // Steps above 40 ms are not promised to anybody: 19 sequences a worker.
                      Scenario{.name = "ITL-bound", .us_per_token = 50, .step_fixed_us = 2000, .step_row_us = 2000,
                               .capacity = 15.0, .itl = absl::Milliseconds(40)}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace baton::router
