// What a router costs: the real process, alone on one core, between workers that compute nothing and clients that only
// read, which share another core. Its own processor time per token is the steady figure; one core's tokens a second is
// the inverse, whatever the load on the other side can do.
//   bazel run //tests/bench:router_bench [-- --seconds 10 --streams 500]
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "model/fingerprint.h"
#include "model/gguf.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/bench/router_load.h"
#include "tests/e2e/process.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::bench {
namespace {

struct Options {
  std::string router = "router/router";
  int seconds = 8;
  int streams = 500;
  int workers = 32;
  int connections = 8;
  double rate = 2000;
  int core = 0;
  bool rate_only = false;
};

void PinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) fprintf(stderr, "cannot pin to core %d\n", core);
}

double Quantile(std::vector<float>* values, double q) {
  if (values->empty()) return 0;
  const auto at = values->begin() + static_cast<ptrdiff_t>(q * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), at, values->end());
  return *at;
}

absl::Status Register(const std::string& router, const std::vector<v1::WorkerInfo>& infos) {
  const auto stub = v1::Cluster::NewStub(rpc::CreateChannel(router));
  for (const v1::WorkerInfo& info : infos) {
    grpc::ClientContext context;
    v1::RegisterRequest request;
    *request.mutable_worker() = info;
    v1::RegisterResponse response;
    const grpc::Status status = stub->Register(&context, request, &response);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
  }
  return absl::OkStatus();
}

struct Run {
  const char* name;
  double rate;             // tokens a second; 0: as many as go
  int tokens_per_message;  // that clients allow; 0: without the router
};

struct Latency {
  double p50 = 0, p99 = 0;
};

Latency Measure(const Run& run, const Options& options, pid_t router, IdleWorkers* workers, Readers* readers) {
  workers->SetPace({run.rate});
  readers->Start(run.tokens_per_message);
  absl::SleepFor(absl::Seconds(2));
  readers->Take();
  const double cpu = e2e::CpuSeconds(router), own = e2e::CpuSeconds(getpid());
  const absl::Time begin = absl::Now();
  absl::SleepFor(absl::Seconds(options.seconds));
  Seen seen = readers->Take();
  const double wall = absl::ToDoubleSeconds(absl::Now() - begin);
  const double router_s = e2e::CpuSeconds(router) - cpu, own_s = e2e::CpuSeconds(getpid()) - own;
  readers->Stop();
  const double tokens = static_cast<double>(std::max<uint64_t>(seen.tokens, 1));
  printf("%-22s %8.0f tokens/s, %4.1f tokens a message; router: %5.2f us a token = %7.0f tokens/s of one core (%.0f %% busy, "
         "load generator %.0f %%)\n",
         run.name, static_cast<double>(seen.tokens) / wall, tokens / static_cast<double>(std::max<uint64_t>(seen.messages, 1)),
         router_s / tokens * 1e6, tokens / router_s, router_s / wall * 100, own_s / wall * 100);
  const Latency latency = {Quantile(&seen.latency_ms, 0.5), Quantile(&seen.latency_ms, 0.99)};
  printf("%-22s from worker to client p50 %.3f ms, p99 %.3f ms; %lu answers, %lu failures %s\n", "", latency.p50,
         latency.p99, static_cast<unsigned long>(seen.answers), static_cast<unsigned long>(seen.failures),
         seen.failure.c_str());
  fflush(stdout);
  return latency;
}

int Main(const Options& options) {
  const std::string model = absl::StrCat("/tmp/router_bench_", getpid(), ".gguf");
  if (!fakes::WriteTinyGguf({}, model).ok()) return 1;
  PinTo(options.core);
  auto router = e2e::Process::Start({options.router, "--model=" + model, "--served-model-name=tiny", "--listen=127.0.0.1:0",
                                     "--http=127.0.0.1:0", "--mode=aggregated", "--warm-up=false", "--max-queue=4096",
                                     absl::StrCat("--max-context=", kAnswerTokens + 64), "--worker-timeout-ms=600000",
                                     "--log-level=error"});
  PinTo(1 - options.core);
  if (!router.ok()) return 1;
  const auto ready = (*router)->WaitEvent("ready", absl::Seconds(30));
  if (!ready.ok()) {
    fprintf(stderr, "%s\n", ready.status().ToString().c_str());
    return 1;
  }
  const std::string address = ready->value("listen", "");
  SendTimes times(options.streams);
  auto workers = IdleWorkers::Start(options.workers, &times);
  if (!workers.ok()) return 1;
  std::vector<v1::WorkerInfo> infos = (*workers)->infos();
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(model);
  const absl::StatusOr<std::string> tokenizer = model::TokenizerFingerprint(*file);
  for (v1::WorkerInfo& info : infos) {
    info.set_model_name("tiny");
    info.mutable_fingerprint()->set_tokenizer(*tokenizer);
  }
  if (absl::Status s = Register(address, infos); !s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    return 1;
  }
  std::vector<std::string> addresses;
  for (const v1::WorkerInfo& info : infos) addresses.push_back(info.address());
  Readers readers(address, addresses, options.streams, options.connections, &times);
  printf("%d streams, %d workers\n", options.streams, options.workers);
  const auto measure = [&](const Run& run) { return Measure(run, options, (*router)->pid(), workers->get(), &readers); };
  if (!options.rate_only) {
    measure({"one token a message", 0, 1});
    measure({"backlog coalesces", 0, 16});
  }
  // By turns, so that what else the machine does meets both.
  for (int turn = 0; turn < 2; ++turn) {
    const Latency direct = measure({"without the router", options.rate, 0});
    const Latency routed = measure({"at a set rate", options.rate, 1});
    printf("the router adds p50 %.3f ms, p99 %.3f ms at %.0f tokens/s\n", routed.p50 - direct.p50, routed.p99 - direct.p99,
           options.rate);
  }
  unlink(model.c_str());
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Options options;
  CLI::App app("What a router costs a token");
  app.add_option("--router", options.router, "the router's binary");
  app.add_option("--seconds", options.seconds, "of each measurement");
  app.add_option("--streams", options.streams, "clients at once");
  app.add_option("--workers", options.workers, "simulated decode workers");
  app.add_option("--connections", options.connections, "of the clients");
  app.add_option("--rate", options.rate, "tokens a second of the last measurement");
  app.add_option("--core", options.core, "the router's, 0 or 1; the other one is the rest's");
  app.add_flag("--rate-only", options.rate_only, "without the two measurements of throughput");
  CLI11_PARSE(app, argc, argv);
  return baton::bench::Main(options);
}
