// Placement under load, simulated from a seed: the router's own view, policy and bookkeeping, with workers that compute
// a token in a fixed time, keep their prefixes in an LRU cache, and report as real ones do, every 500 ms.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <list>
#include <map>
#include <queue>
#include <random>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "kvcache/prefix_journal.h"
#include "router/placement.h"

namespace baton::router {
namespace {

constexpr int kBlock = 16;

struct Scenario {
  uint64_t seed = 1;
  PlacementRule rule = PlacementRule::kCost;
  int workers = 8;
  int requests = 4000;
  double utilisation = 0.8;      // of all workers, if nothing were cached
  int num_prefixes = 50;         // shared beginnings of prompts
  double skew = 1.2;             // Zipf's exponent of their popularity
  int prefix_blocks = 32;        // tokens: times 16
  int own_blocks = 8;            // not shared
  size_t cache_blocks = 32 * 20;
  double us_per_token = 200;
  int routers = 1;
};

struct Outcome {
  double mean_ttft_ms = 0;
  double p99_ttft_ms = 0;
  double hit_rate = 0;       // of prompt tokens
  double max_over_mean = 0;  // computed tokens of a worker
  std::vector<double> share;
};

class Simulation {
 public:
  explicit Simulation(const Scenario& s) : s_(s), random_(s.seed) {
    for (int r = 0; r < s.routers; ++r) {
      Router& router = *routers_.emplace_back(std::make_unique<Router>());
      router.view = std::make_unique<ClusterView>(ClusterViewOptions{}, &clock_,
                                                  [](const WorkerId&, const std::string&) {});
      router.placement =
          std::make_unique<Placement>(router.view.get(), &clock_, PlacementOptions{.policy = {.rule = s.rule}}, s.seed + r * 1000);
      router.placement->SetRouters(s.routers);
    }
    for (int w = 0; w < s.workers; ++w) {
      workers_.emplace_back();
      for (auto& router : routers_) EXPECT_TRUE(router->view->Register(Info(w)).ok());
    }
    double weight = 0;
    for (int p = 0; p < s.num_prefixes; ++p) popularity_.push_back(weight += std::pow(p + 1, -s.skew));
  }

  Outcome Run() {
    const int tokens = (s_.prefix_blocks + s_.own_blocks) * kBlock;
    const double rate = s_.utilisation * s_.workers / (tokens * s_.us_per_token);  // requests a microsecond
    double at = 0;
    std::exponential_distribution<double> gap(rate);
    double next_beat = 0;
    for (int i = 0; i < s_.requests; ++i) {
      at += gap(random_);
      for (; next_beat <= at; next_beat += 500e3 / s_.workers) {
        AdvanceTo(next_beat);
        Beat(beats_++ % s_.workers);
      }
      AdvanceTo(at);
      Arrive(i);
    }
    AdvanceTo(at + 1e12);
    return Report();
  }

 private:
  struct Router {
    std::unique_ptr<ClusterView> view;
    std::unique_ptr<Placement> placement;
  };
  struct Job {
    double arrival = 0, end = 0;
    uint64_t computed = 0;
    InFlightHold hold;
  };
  struct Worker {
    double busy_until = 0;
    uint64_t computed = 0;
    uint64_t requests = 0;
    std::deque<Job> jobs;
    std::list<uint64_t> lru;  // latest first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> cached;
    kvcache::PrefixJournal journal;
    std::vector<uint64_t> version;  // [router]
  };

  static v1::WorkerInfo Info(int w) {
    v1::WorkerInfo info;
    info.set_name(absl::StrCat("p", w));
    info.set_incarnation("i");
    info.set_role("prefill");
    info.set_address("127.0.0.1:1");
    info.set_model_name("m");
    info.set_max_context(100000);
    for (auto* part : {info.mutable_fingerprint()->mutable_weights(), info.mutable_fingerprint()->mutable_config(),
                       info.mutable_fingerprint()->mutable_tokenizer(),
                       info.mutable_fingerprint()->mutable_numerics_class()}) {
      *part = "x";
    }
    auto* l = info.mutable_layout();
    l->set_dtype("f16");
    l->set_block_size(kBlock);
    l->set_num_layers(1);
    l->set_num_kv_heads(1);
    l->set_head_dim(1);
    return info;
  }

  void AdvanceTo(double us) {
    for (Worker& worker : workers_) {
      while (!worker.jobs.empty() && worker.jobs.front().end <= us) {
        ttft_.push_back((worker.jobs.front().end - worker.jobs.front().arrival) / 1000);
        worker.jobs.pop_front();
      }
    }
    const absl::Time target = absl::UnixEpoch() + absl::Microseconds(us);
    if (target > clock_.Now()) clock_.Advance(target - clock_.Now());
  }

  void Beat(int w) {
    Worker& worker = workers_[w];
    worker.version.resize(routers_.size());
    v1::HeartbeatRequest beat;
    beat.set_name(absl::StrCat("p", w));
    beat.set_incarnation("i");
    const double now = absl::ToDoubleMicroseconds(clock_.Now() - absl::UnixEpoch());
    beat.mutable_load()->set_pending_tokens(
        static_cast<uint64_t>(std::max(0.0, worker.busy_until - now) / s_.us_per_token));
    beat.mutable_load()->mutable_cost()->set_per_row_us(s_.us_per_token);
    beat.mutable_load()->mutable_cost()->set_samples(1);
    for (size_t r = 0; r < routers_.size(); ++r) {
      const auto report = worker.journal.Since(worker.version[r]);
      beat.mutable_prefixes()->set_base_version(report.base_version);
      beat.mutable_prefixes()->set_version(report.version);
      beat.mutable_prefixes()->mutable_added()->Assign(report.added.begin(), report.added.end());
      beat.mutable_prefixes()->mutable_removed()->Assign(report.removed.begin(), report.removed.end());
      EXPECT_TRUE(routers_[r]->view->Heartbeat(beat, &worker.version[r]).ok());
    }
  }

  void Arrive(int i) {
    const double draw = std::uniform_real_distribution<double>(0, popularity_.back())(random_);
    const auto prefix =
        static_cast<uint64_t>(std::lower_bound(popularity_.begin(), popularity_.end(), draw) - popularity_.begin());
    PlaceRequest request;
    request.request_id = absl::StrCat("r", i);
    request.needs_decode = false;
    for (int b = 0; b < s_.prefix_blocks; ++b) request.need.prefix_names.push_back((prefix + 1) << 20 | b);
    for (int b = 0; b < s_.own_blocks; ++b) request.need.prefix_names.push_back((uint64_t(i) + 1) << 40 | b);
    request.need.prompt_tokens = request.need.prefix_names.size() * kBlock + 3;
    request.need.total_tokens = request.need.prompt_tokens + 1;
    auto placed = routers_[i % routers_.size()]->placement->Place(request);
    ASSERT_TRUE(placed.ok()) << placed.status();
    Worker& worker = workers_[std::stoi(placed->pair.prefill.id.name.substr(1))];
    const double now = absl::ToDoubleMicroseconds(clock_.Now() - absl::UnixEpoch());
    Job job;
    job.arrival = now;
    job.hold = std::move(placed->prefill);
    size_t hit = 0;
    while (hit < request.need.prefix_names.size() && worker.cached.count(request.need.prefix_names[hit]) > 0) ++hit;
    job.computed = request.need.prompt_tokens - hit * kBlock;
    for (const uint64_t name : request.need.prefix_names) Touch(&worker, name);
    worker.busy_until = std::max(worker.busy_until, now) + static_cast<double>(job.computed) * s_.us_per_token;
    job.end = worker.busy_until;
    worker.computed += job.computed;
    ++worker.requests;
    computed_ += job.computed;
    prompt_ += request.need.prompt_tokens;
    worker.jobs.push_back(std::move(job));
  }

  void Touch(Worker* worker, uint64_t name) {
    if (const auto it = worker->cached.find(name); it != worker->cached.end()) worker->lru.erase(it->second);
    else worker->journal.Added(name);
    worker->lru.push_front(name);
    worker->cached[name] = worker->lru.begin();
    if (worker->lru.size() <= s_.cache_blocks) return;
    worker->cached.erase(worker->lru.back());
    worker->journal.Removed(worker->lru.back());
    worker->lru.pop_back();
  }

  Outcome Report() {
    Outcome out;
    std::sort(ttft_.begin(), ttft_.end());
    for (const double t : ttft_) out.mean_ttft_ms += t / static_cast<double>(ttft_.size());
    out.p99_ttft_ms = ttft_[ttft_.size() * 99 / 100];
    out.hit_rate = 1 - static_cast<double>(computed_) / static_cast<double>(prompt_);
    double most = 0;
    for (const Worker& worker : workers_) {
      most = std::max(most, static_cast<double>(worker.computed));
      out.share.push_back(static_cast<double>(worker.requests) / s_.requests);
    }
    out.max_over_mean = most * s_.workers / static_cast<double>(computed_);
    EXPECT_EQ(ttft_.size(), static_cast<size_t>(s_.requests));
    for (auto& router : routers_) {
      for (const WorkerSnapshot& w : router->view->Snapshot()) EXPECT_EQ(w.in_flight, 0u);
    }
    return out;
  }

  const Scenario s_;
  std::mt19937_64 random_;
  SimulatedClock clock_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::deque<Worker> workers_;
  std::vector<double> popularity_;
  std::vector<double> ttft_;
  uint64_t beats_ = 0, computed_ = 0, prompt_ = 0;
};

void Print(const char* name, const Outcome& o) {
  printf("%-14s mean TTFT %8.1f ms  p99 %8.1f ms  hit rate %.2f  busiest/mean %.2f\n", name, o.mean_ttft_ms,
         o.p99_ttft_ms, o.hit_rate, o.max_over_mean);
}

TEST(PlacementSimTest, SkewedPrefixesMeetTheirCachesWithoutHotSpots) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::map<PlacementRule, Outcome> by_rule;
    for (const PlacementRule rule : {PlacementRule::kCost, PlacementRule::kRoundRobin, PlacementRule::kRandom,
                                     PlacementRule::kLeastLoaded}) {
      by_rule[rule] = Simulation({.seed = seed, .rule = rule}).Run();
      Print(std::string(Name(rule)).c_str(), by_rule[rule]);
    }
    const Outcome& cost = by_rule[PlacementRule::kCost];
    for (const auto& [rule, outcome] : by_rule) {
      if (rule == PlacementRule::kCost) continue;
      EXPECT_LT(cost.mean_ttft_ms, 0.8 * outcome.mean_ttft_ms) << Name(rule) << ", seed " << seed;
      EXPECT_GT(cost.hit_rate, outcome.hit_rate) << Name(rule) << ", seed " << seed;
    }
    EXPECT_LT(cost.max_over_mean, 1.4) << "seed " << seed;
  }
}

TEST(PlacementSimTest, OnePrefixForAllSpreadsOverTheWorkers) {
  const Outcome o = Simulation({.utilisation = 2.0, .num_prefixes = 1}).Run();
  Print("one prefix", o);
  EXPECT_GT(o.hit_rate, 0.75);  // 0.8 are shared
  EXPECT_LT(o.max_over_mean, 1.2);
  for (const double share : o.share) EXPECT_GT(share, 0.5 / 8);
}

TEST(PlacementSimTest, WithoutReuseTheLoadIsEven) {
  const Outcome o = Simulation({.num_prefixes = 1 << 20, .skew = 0}).Run();
  Print("no reuse", o);
  EXPECT_LT(o.max_over_mean, 1.1);
}

TEST(PlacementSimTest, SeveralRoutersDoNotRushToOneWorker) {
  const Outcome o = Simulation({.num_prefixes = 1 << 20, .skew = 0, .routers = 4}).Run();
  Print("four routers", o);
  EXPECT_LT(o.max_over_mean, 1.2);
}

TEST(PlacementSimTest, TheSameSeedGivesTheSameRun) {
  const Outcome a = Simulation({.seed = 9, .requests = 1000}).Run(), b = Simulation({.seed = 9, .requests = 1000}).Run();
  EXPECT_EQ(a.mean_ttft_ms, b.mean_ttft_ms);
  EXPECT_EQ(a.share, b.share);
}

}  // namespace
}  // namespace baton::router
