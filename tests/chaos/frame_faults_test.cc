// Frames of the KV transfer that are flipped, truncated, repeated, reordered or forged on their way between real
// processes, in both directions, by somebody between them (frame_mangler.h). Requests end with the right tokens or a
// typed error; workers live, and hold nothing afterwards. BATON_CHAOS_FRAMES: how many frames (1,000).
#include <signal.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/chaos/compare.h"
#include "tests/chaos/frame_mangler.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

constexpr int kRequests = 24;

v1::GenerateRequest Request(uint64_t i) {
  std::mt19937_64 random(i + 1);
  v1::GenerateRequest request;
  const int length = 60 + static_cast<int>(random() % 390);
  for (int k = 0; k < length; ++k) request.mutable_token_ids()->add_ids(static_cast<int>(random() % 280));
  request.mutable_sampling()->set_max_tokens(2 + static_cast<int>(random() % 8));
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(random());
  return request;
}

int KvPort(const v1::ClusterWorker& worker) {
  for (const v1::Endpoint& endpoint : worker.info().endpoints()) {
    if (endpoint.transport() == "grpc") return atoi(endpoint.address().substr(endpoint.address().rfind(':') + 1).c_str());
  }
  return 0;
}

class FrameFaultsTest : public testing::TestWithParam<bool> {};

TEST_P(FrameFaultsTest, NoManglingGivesAWrongTokenOrKillsAWorker) {
  const int wanted = FromEnvironment("BATON_CHAOS_FRAMES", 1000) / 2;
  const char* tmp = getenv("TEST_TMPDIR");
  const std::string model = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/tiny.gguf");
  ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
  auto started = Cluster::Start(
      {.model = model,
       .prefill = 2,
       .decode = 0,
       .flags = {"--kv-memory-mib=16", "--heartbeat-ms=100", "--kv-lease-ms=2000", "--prefix-cache=false",
                 "--kv-transport=grpc", absl::StrCat("--kv-block-tags=", GetParam() ? "true" : "false")}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  const auto status = cluster.Status();
  ASSERT_TRUE(status.ok());
  std::vector<std::unique_ptr<FrameMangler>> manglers;
  std::vector<std::string> redirects;
  for (const v1::ClusterWorker& worker : status->workers()) {
    const int port = KvPort(worker);
    ASSERT_GT(port, 0) << worker.ShortDebugString();
    manglers.push_back(std::make_unique<FrameMangler>(port, 1000 * manglers.size() + 1));
    redirects.push_back(absl::StrCat(port, ":", manglers.back()->port()));
  }
  setenv("LD_PRELOAD", "tests/chaos/libredirect_connect.so", 1);
  setenv("BATON_TEST_REDIRECT", absl::StrJoin(redirects, ",").c_str(), 1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(cluster.AddWorker("decode").ok());
  unsetenv("LD_PRELOAD");
  unsetenv("BATON_TEST_REDIRECT");
  ASSERT_TRUE(cluster.WaitReady(absl::Seconds(30)).ok());

  std::vector<v1::GenerateRequest> requests;
  std::vector<Generation> want;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(Request(static_cast<uint64_t>(i)));
    want.push_back(cluster.Generate(requests.back()));
    ASSERT_TRUE(want.back().status.ok()) << want.back().status.error_message();
  }
  const auto mangled = [&] {
    int64_t sum = 0;
    for (const auto& mangler : manglers) {
      for (int k = 0; k < kNumManglings; ++k) sum += mangler->done(static_cast<Mangling>(k));
    }
    return sum;
  };
  int64_t frames = 0;
  for (const auto& mangler : manglers) {
    frames += mangler->frames();
    mangler->SetRate(25);
  }
  ASSERT_GT(frames, kRequests) << "KV does not go this way";
  std::atomic<int> next{0}, equal{0}, failed{0};
  const absl::Time late = absl::Now() + absl::Seconds(1500);
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&] {
      while (mangled() < wanted && absl::Now() < late && !testing::Test::HasFailure()) {
        const int i = next++;
        v1::GenerateRequest request = requests[static_cast<size_t>(i % kRequests)];
        request.set_request_id(absl::StrCat("f", i));
        const absl::Time begun = absl::Now();
        const Generation got = cluster.Generate(request, absl::Seconds(30));
        EXPECT_LT(absl::Now() - begun, absl::Seconds(40)) << "hung";
        const Generation& right = want[static_cast<size_t>(i % kRequests)];
        if (got.status.ok()) {
          ++equal;
          EXPECT_EQ(Difference(got, right), "") << i;
        } else {
          ++failed;
          EXPECT_EQ(TokenDifference(got, right), "") << i;
          EXPECT_NE(got.status.error_code(), grpc::StatusCode::UNKNOWN) << got.status.error_message();
          EXPECT_NE(got.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << got.status.error_message();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& mangler : manglers) mangler->SetRate(0);
  const char* names[] = {"flipped", "truncated", "repeated", "reordered", "forged"};
  for (int k = 0; k < kNumManglings; ++k) {
    int64_t sum = 0;
    for (const auto& mangler : manglers) sum += mangler->done(static_cast<Mangling>(k));
    printf("%lld %s, ", static_cast<long long>(sum), names[k]);
    EXPECT_GT(sum, wanted / 10) << names[k];
  }
  printf("%d streams equal, %d typed errors, tags %d\n", equal.load(), failed.load(), GetParam());
  EXPECT_GE(mangled(), wanted);
  EXPECT_GT(equal, failed) << "most requests go elsewhere and end well";
  for (auto& worker : cluster.workers()) EXPECT_EQ(::kill(worker->process->pid(), 0), 0) << worker->name;
  // And still serves.
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest request = requests[static_cast<size_t>(i)];
    request.set_request_id(absl::StrCat("after-", i));
    EXPECT_EQ(Difference(cluster.Generate(request), want[static_cast<size_t>(i)]), "");
  }
  ExpectNothingHeld(&cluster);
}

INSTANTIATE_TEST_SUITE_P(Tags, FrameFaultsTest, testing::Bool());

}  // namespace
}  // namespace baton::e2e
