// Two, five and ten times the requests that a cluster of real processes can answer, open loop. Every request gets its whole
// answer, the undisturbed one, or a refusal that says when to come back; nothing is lost or left behind. Goodput beside its
// peak, how fast refusals come, and how soon all is as before are printed, and pass or fail nothing.
// BATON_OVERLOAD_SECONDS: of each load (default 2; figures worth quoting need 20 and a quiet machine).
// BATON_OVERLOAD_LAYERS: of the model (default 24). All share two cores here, so what it takes to ask and to refuse is taken from
// answers; the deeper the model, the fewer requests are ten times too many, and the less that is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

constexpr absl::Duration kPromise = absl::Milliseconds(1000);  // of the first token
constexpr int kRequests = 8, kPromptTokens = 160, kAnswerTokens = 48;

v1::GenerateRequest Request(int i) {
  v1::GenerateRequest request;
  for (int t = 0; t < kPromptTokens; ++t) request.mutable_token_ids()->add_ids((t * 37 + i * 101 + 11) % 256);
  request.mutable_sampling()->set_max_tokens(kAnswerTokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
  request.mutable_sampling()->set_temperature(0.8f);
  return request;
}

struct Window {
  double seconds = 0;
  double workers_cpu = 0, router_cpu = 0, own_cpu = 0;  // seconds of a core; own: this process's, which asks
  int offered = 0, answered = 0, in_time = 0;
  std::vector<absl::Duration> refused;  // how long each took
  double goodput() const { return in_time / seconds; }
};

class OverloadTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model = absl::StrCat(getenv("TEST_TMPDIR") != nullptr ? getenv("TEST_TMPDIR") : "/tmp", "/deep.gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({.num_layers = FromEnvironment("BATON_OVERLOAD_LAYERS", 24)}, model).ok());
    auto cluster = Cluster::Start({.model = model,
                                   .prefill = 1,
                                   .decode = 1,
                                   .flags = {"--kv-memory-mib=64", "--prefix-cache=false",
                                             absl::StrCat("--ttft-slo-ms=", absl::ToInt64Milliseconds(kPromise))},
                                   .mode = "auto"});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (int i = 0; i < kRequests; ++i) {
      load_.requests.push_back(Request(i));
      load_.want.push_back(cluster_->Generate(load_.requests.back()));
      ASSERT_TRUE(load_.want.back().status.ok()) << load_.want.back().status.error_message();
    }
  }

  struct Asked {
    size_t index = 0;  // in the workload
    absl::Time start;
    absl::Time first = absl::InfiniteFuture();  // token
  };

  v1::GenerateRequest Next(int number, Asked* asked) {
    asked->index = static_cast<size_t>(number % kRequests);
    asked->start = absl::Now();
    v1::GenerateRequest request = load_.requests[asked->index];
    request.set_request_id(absl::StrCat("load-", ++next_id_));
    return request;
  }

  static Cluster::OnEvent Watch(Asked* asked) {
    return [asked](grpc::ClientContext*, const v1::GenerateResponse& event) {
      if (event.has_token()) asked->first = std::min(asked->first, absl::Now());
    };
  }

  void Judge(const Generation& got, const Asked& asked, Window* window) {
    const absl::Duration took = absl::Now() - asked.start;
    MutexLock lock(&mu_);
    ++window->offered;
    if (got.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(got.status)).has_value()) << got.status.error_message();
      EXPECT_TRUE(got.choices[0].token_ids.empty()) << "refused in the middle of its answer";
      window->refused.push_back(took);
      return;
    }
    EXPECT_EQ(Difference(got, load_.want[asked.index]), "");
    ++window->answered;
    window->in_time += asked.first - asked.start <= kPromise;
  }

  // As many as the cluster takes from `clients` at a time: what it can do.
  Window Closed(int clients, absl::Duration length) {
    Window window;
    const absl::Time begin = absl::Now();
    std::vector<std::thread> threads;
    for (int c = 0; c < clients; ++c) {
      threads.emplace_back([&, c] {
        for (int i = c; absl::Now() < begin + length; ++i) {
          Asked asked;
          const v1::GenerateRequest request = Next(i, &asked);
          Judge(cluster_->Generate(request, absl::Seconds(60), Watch(&asked)), asked, &window);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    window.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    return window;
  }

  double WorkersCpu() {
    double seconds = 0;
    for (const auto& worker : cluster_->workers()) seconds += CpuSeconds(worker->process->pid());
    return seconds;
  }

  // `rate` a second, whatever becomes of them. No thread waits for any of them: the cores are the cluster's.
  Window Open(double rate, absl::Duration length) {
    Window window;
    int left = 0;
    Mutex mu;
    CondVar none_left;
    const absl::Time begin = absl::Now();
    const double workers_cpu = WorkersCpu(), router_cpu = CpuSeconds(cluster_->router().pid()), own_cpu = CpuSeconds(getpid());
    for (int i = 0; absl::Seconds(i / rate) < length; ++i) {
      const absl::Time due = begin + absl::Seconds(i / rate);
      if (due > absl::Now()) absl::SleepFor(due - absl::Now());
      {
        MutexLock lock(&mu);
        ++left;
      }
      const auto asked = std::make_shared<Asked>();
      const v1::GenerateRequest request = Next(i, asked.get());
      const auto done = [this, asked, &window, &left, &mu, &none_left](const Generation& got) {
        Judge(got, *asked, &window);
        MutexLock lock(&mu);
        if (--left == 0) none_left.Signal();
      };
      cluster_->StartGenerate(request, absl::Seconds(60), Watch(asked.get()), done);
    }
    window.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    MutexLock lock(&mu);
    while (left > 0) none_left.Wait(&mu);
    window.workers_cpu = WorkersCpu() - workers_cpu;
    window.router_cpu = CpuSeconds(cluster_->router().pid()) - router_cpu;
    window.own_cpu = CpuSeconds(getpid()) - own_cpu;
    return window;
  }

  static void Print(const std::string& what, const Window& w, double peak) {
    const auto slow = std::count_if(w.refused.begin(), w.refused.end(),
                                    [](absl::Duration took) { return took > absl::Milliseconds(50); });
    printf("%s: %d offered, %d answered, goodput %.1f/s (%.0f %% of its peak), refusals: %s, %d later than 50 ms",
           what.c_str(), w.offered, w.answered, w.goodput(), 100 * w.goodput() / peak, Percentiles(w.refused).c_str(),
           static_cast<int>(slow));
    if (w.own_cpu > 0) {
      printf("; of a core: workers %.0f %%, router %.0f %%, clients %.0f %%", 100 * w.workers_cpu / w.seconds,
             100 * w.router_cpu / w.seconds, 100 * w.own_cpu / w.seconds);
    }
    printf("\n");
  }

  std::unique_ptr<Cluster> cluster_;
  Workload load_;
  std::atomic<int> next_id_{0};
  Mutex mu_;
};

TEST_F(OverloadTest, EveryRequestIsAnsweredOrToldWhenToComeBack) {
  const absl::Duration length = absl::Seconds(FromEnvironment("BATON_OVERLOAD_SECONDS", 2));
  Closed(8, length / 2);  // workers measure their costs
  const Window able = Closed(8, length);
  ASSERT_GT(able.answered, 0);
  const double capacity = able.answered / able.seconds;
  const double peak = able.goodput();
  Print("closed loop of 8", able, peak);
  size_t refused = 0;
  for (const int times : {1, 2, 5, 10}) {
    const Window w = Open(times * capacity, length);
    Print(absl::StrCat(times, "x capacity"), w, peak);
    EXPECT_GT(w.answered, 0);
    refused += w.refused.size();
  }
  EXPECT_GT(refused, 0u) << "ten times the capacity was no overload";
  const absl::Time over = absl::Now();
  for (int i = 0; i < 3;) {  // in a row
    const Window w = Closed(1, absl::Milliseconds(1));
    i = w.refused.empty() && w.in_time == w.offered ? i + 1 : 0;
    ASSERT_LT(absl::Now() - over, absl::Seconds(60)) << "a lonely request is still refused or late";
  }
  printf("three lonely requests in a row in time %.0f ms after the overload\n", absl::ToDoubleMilliseconds(absl::Now() - over));
  ExpectNothingHeld(cluster_.get());
}

}  // namespace
}  // namespace baton::e2e
