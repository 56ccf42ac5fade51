// What one placement costs the router: policy, prefix match, bookkeeping and the record for `status --why`, with 1,000
// workers (500 of each role) that hold 100,000 cached blocks. Argument: blocks of the prompt; label: what is cached.
#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "router/placement.h"

namespace baton::router {
namespace {

enum class Cached { kDifferent, kOneEverywhere };

struct Bench {
  explicit Bench(int workers, int blocks, Cached cached)
      : view({.max_workers = workers}, &clock, [](const WorkerId&, const std::string&) {}) {
    for (int i = 0; i < workers; ++i) {
      v1::WorkerInfo info;
      info.set_name(absl::StrCat("worker-", i));
      info.set_incarnation("0123456789abcdef0123456789abcdef");
      info.set_role(i % 2 == 0 ? "prefill" : "decode");
      info.set_address(absl::StrCat("10.0.0.", i, ":50051"));
      info.set_model_name("m");
      info.set_max_context(8192);
      info.set_total_blocks(10000);
      auto* f = info.mutable_fingerprint();
      f->set_weights("w");
      f->set_config("c");
      f->set_tokenizer("t");
      f->set_numerics_class("int");
      auto* l = info.mutable_layout();
      l->set_dtype("f16");
      l->set_block_size(16);
      l->set_num_layers(30);
      l->set_num_kv_heads(3);
      l->set_head_dim(64);
      if (!view.Register(info).ok()) std::abort();
      v1::HeartbeatRequest beat;
      beat.set_name(info.name());
      beat.set_incarnation(info.incarnation());
      beat.mutable_load()->set_running(static_cast<uint32_t>(i % 7));
      beat.mutable_load()->set_pending_tokens(static_cast<uint64_t>(i * 37 % 2000));
      beat.mutable_load()->mutable_ledger()->set_free(10000);
      beat.mutable_load()->mutable_cost()->set_per_row_us(100);
      beat.mutable_load()->mutable_cost()->set_samples(1);
      if (i % 2 == 0) {
        beat.mutable_prefixes()->set_version(1);
        const int each = blocks / (workers / 2);
        for (int b = 0; b < each; ++b) {
          beat.mutable_prefixes()->add_added(cached == Cached::kOneEverywhere ? b + 1 : i * 100000 + b + 1);
        }
      }
      if (!view.Heartbeat(beat).ok()) std::abort();
    }
  }
  SimulatedClock clock;
  ClusterView view;
  Placement placement{&view, &clock, PlacementOptions{}, 1};
};

void BM_Place(benchmark::State& state, Cached cached) {
  Bench bench(static_cast<int>(state.range(0)), 100000, cached);
  PlaceRequest request;
  request.need.prompt_tokens = static_cast<uint64_t>(state.range(1)) * 16 + 5;
  request.need.total_tokens = request.need.prompt_tokens + 128;
  request.need.output_tokens = 128;
  const int worker = cached == Cached::kOneEverywhere ? 0 : 42;
  for (int b = 0; b < state.range(1); ++b) request.need.prefix_names.push_back(worker * 100000 + b + 1);
  uint64_t id = 0;
  for (auto _ : state) {
    request.request_id = absl::StrCat("request-", id++);
    auto placed = bench.placement.Place(request);
    if (!placed.ok()) state.SkipWithError("not placed");
    benchmark::DoNotOptimize(placed);
  }
}
BENCHMARK_CAPTURE(BM_Place, different_prefixes, Cached::kDifferent)->Args({10, 64})->Args({100, 64})->Args({1000, 64});
BENCHMARK_CAPTURE(BM_Place, one_prefix_everywhere, Cached::kOneEverywhere)->Args({1000, 64})->Args({1000, 200});

void BM_PrefixNames(benchmark::State& state) {
  Bench bench(2, 0, Cached::kDifferent);
  const std::vector<int32_t> prompt(static_cast<size_t>(state.range(0)), 7);
  for (auto _ : state) benchmark::DoNotOptimize(bench.placement.PrefixNames("tenant", prompt));
}
BENCHMARK(BM_PrefixNames)->Arg(1024)->Arg(8192);

}  // namespace
}  // namespace baton::router

BENCHMARK_MAIN();
