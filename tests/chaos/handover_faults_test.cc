// Faults aimed at the hand-over, with real processes of a tiny model: prompts of many chunks and short answers, so that
// most of a request's life is prefill and transfer. Workers are killed and frozen past the lease at random moments of it,
// clients give up at random moments; what comes is compared with the undisturbed stream, and afterwards nobody holds
// anything. BATON_HANDOVER_KILLS (of each role), BATON_HANDOVER_FREEZES, BATON_HANDOVER_CANCELS set the counts.
#include <signal.h>

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

constexpr int kVocabulary = 280;
constexpr int kRequests = 16;

class HandoverFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    seed_ = static_cast<uint64_t>(FromEnvironment("BATON_CHAOS_SEED", 1));
    printf("BATON_CHAOS_SEED=%d\n", static_cast<int>(seed_));
    random_.seed(seed_);
    const char* tmp = getenv("TEST_TMPDIR");
    const std::string model = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/tiny.gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
    auto cluster = Cluster::Start({.model = model,
                                   .prefill = 3,
                                   .decode = 3,
                                   .flags = {"--kv-memory-mib=16", "--heartbeat-ms=100", "--worker-timeout-ms=1000",
                                             "--kv-lease-ms=500", "--prefix-cache=false", "--max-batch-tokens=32"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint64_t i = 0; i < kRequests; ++i) {
      requests_.push_back(Request(i));
      want_.push_back(cluster_->Generate(requests_.back()));
      ASSERT_TRUE(want_.back().status.ok()) << want_.back().status.error_message();
      ASSERT_EQ(want_.back().violation, "");
    }
  }

  v1::GenerateRequest Request(uint64_t i) const {
    std::mt19937_64 random(seed_ * 1000 + i);
    v1::GenerateRequest request;
    const int length = 100 + static_cast<int>(random() % 350);
    for (int k = 0; k < length; ++k) request.mutable_token_ids()->add_ids(static_cast<int>(random() % kVocabulary));
    v1::SamplingParams* params = request.mutable_sampling();
    params->set_max_tokens(2 + static_cast<int>(random() % 10));
    params->set_ignore_eos(true);
    params->set_seed(random());
    params->set_n(random() % 4 == 0 ? 2 : 1);
    return request;
  }

  // Clients that ask over and over until told to stop. An error must be a typed one that a fault explains.
  class Clients {
   public:
    Clients(HandoverFaultsTest* test, int number) {
      for (int i = 0; i < number; ++i) threads_.emplace_back([this, test, i] { Run(test, i); });
    }
    ~Clients() { Stop(); }
    void Stop() {
      stop_ = true;
      for (std::thread& thread : threads_) {
        if (thread.joinable()) thread.join();
      }
    }
    int started() const { return started_; }
    int completed() const { return completed_; }
    int failed() const { return failed_; }

   private:
    void Run(HandoverFaultsTest* test, int number) {
      for (size_t turn = static_cast<size_t>(number); !stop_; ++turn) {
        const size_t i = turn * 7 % kRequests;
        v1::GenerateRequest request = test->requests_[i];
        request.set_request_id(absl::StrCat("c", number, "-", turn));
        const absl::Time begun = absl::Now();
        const Generation got =
            test->cluster_->Generate(request, absl::Seconds(30), [this](grpc::ClientContext*, const auto& event) {
              started_ += event.has_started();
            });
        EXPECT_LT(absl::Now() - begun, absl::Seconds(40)) << request.request_id() << " hung";
        if (got.status.ok()) {
          ++completed_;
          EXPECT_EQ(Difference(got, test->want_[i]), "") << request.request_id();
          continue;
        }
        ++failed_;
        printf("%s: %d %s\n", request.request_id().c_str(), got.status.error_code(), got.status.error_message().c_str());
        EXPECT_EQ(TokenDifference(got, test->want_[i]), "") << request.request_id();
        const bool poison = got.status.error_code() == grpc::StatusCode::INTERNAL &&
                            absl::StrContains(got.status.error_message(), "two workers in a row");
        EXPECT_TRUE(poison || got.status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    got.status.error_code() == grpc::StatusCode::ABORTED)
            << got.status.error_code() << " " << got.status.error_message();
      }
    }
    std::atomic<bool> stop_{false};
    std::atomic<int> started_{0}, completed_{0}, failed_{0};
    std::vector<std::thread> threads_;
  };

  // Somewhere in the hand-over of a request that has just begun.
  void WaitForAMoment(const Clients& clients) {
    const int before = clients.started();
    const absl::Time late = absl::Now() + absl::Seconds(10);
    while (clients.started() == before && absl::Now() < late) absl::SleepFor(absl::Microseconds(200));
    absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random_() % 25000)));
  }
  WorkerProcess& Victim(size_t role) { return *cluster_->workers()[role * 3 + random_() % 3]; }

  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<Generation> want_;
};

TEST_F(HandoverFaultsTest, KillsAtRandomMoments) {
  const int kills = FromEnvironment("BATON_HANDOVER_KILLS", 30);
  Clients clients(this, 4);
  for (int i = 0; i < kills && !HasFailure(); ++i) {
    // One of each role, each at its own moment.
    WorkerProcess* victims[] = {&Victim(0), &Victim(1)};
    const size_t first = random_() % 2;
    for (const size_t role : {first, 1 - first}) {
      WaitForAMoment(clients);
      victims[role]->process->Signal(SIGKILL);
    }
    // On this thread: a child dies with the thread that started it.
    for (WorkerProcess* victim : victims) ASSERT_TRUE(cluster_->Restart(*victim).ok());
    const absl::Status ready = cluster_->WaitReady(absl::Seconds(30));
    ASSERT_TRUE(ready.ok()) << ready;
  }
  clients.Stop();
  const double moves = cluster_->Metric(cluster_->router_http(), "baton_request_retries_total");
  printf("%d prefill and %d decode workers killed, %d streams equal, %d typed errors, %.0f moves\n", kills, kills,
         clients.completed(), clients.failed(), moves);
  EXPECT_GT(clients.completed(), kills);
  EXPECT_LE(clients.failed() * 20, clients.completed() + 20) << "a request goes elsewhere, as a rule";
  EXPECT_GT(moves, kills / 3) << "the kills hit nothing";
  ExpectNothingHeld(cluster_.get());
}

TEST_F(HandoverFaultsTest, FreezesPastTheLeaseAndBack) {
  const int freezes = FromEnvironment("BATON_HANDOVER_FREEZES", 10);
  Clients clients(this, 4);
  for (int i = 0; i < freezes && !HasFailure(); ++i) {
    WorkerProcess& victim = Victim(static_cast<size_t>(i % 2));
    WaitForAMoment(clients);
    victim.process->Signal(SIGSTOP);
    // The lease is 500 ms, the heartbeats' timeout 1 s.
    absl::SleepFor(absl::Milliseconds(600 + static_cast<int64_t>(random_() % 900)));
    victim.process->Signal(SIGCONT);
    const absl::Status ready = cluster_->WaitReady(absl::Seconds(30));
    ASSERT_TRUE(ready.ok()) << ready;
  }
  clients.Stop();
  printf("%d freezes, %d streams equal, %d typed errors\n", freezes, clients.completed(), clients.failed());
  EXPECT_GT(clients.completed(), freezes);
  EXPECT_LE(clients.failed() * 20, clients.completed() + 20);
  ExpectNothingHeld(cluster_.get());
}

TEST_F(HandoverFaultsTest, ClientsGiveUpAtRandomMoments) {
  const int cancels = FromEnvironment("BATON_HANDOVER_CANCELS", 100);
  std::atomic<int> next{0}, cancelled{0}, completed{0};
  const auto client = [&] {
    for (int i; (i = next++) < cancels;) {
      const size_t which = static_cast<size_t>(i) % kRequests;
      v1::GenerateRequest request = requests_[which];
      request.set_request_id(absl::StrCat("cancel-", i));
      std::mt19937_64 random(seed_ * 77 + static_cast<uint64_t>(i));
      std::unique_ptr<std::thread> canceller;
      const bool by_deadline = i % 4 == 0;
      const absl::Duration after = absl::Microseconds(static_cast<int64_t>(random() % 30000));
      const Generation got = cluster_->Generate(
          request, by_deadline ? after + absl::Milliseconds(1) : absl::Seconds(30),
          [&](grpc::ClientContext* context, const v1::GenerateResponse& event) {
            if (by_deadline || !event.has_started()) return;
            canceller = std::make_unique<std::thread>([context, after] {
              absl::SleepFor(after);
              context->TryCancel();
            });
            // The context must outlive it.
            if (random() % 8 == 0) absl::SleepFor(after);
          },
          [&] {
            if (canceller != nullptr) canceller->join();
          });
      EXPECT_EQ(TokenDifference(got, want_[which]), "") << request.request_id();
      got.status.ok() ? ++completed : ++cancelled;
      if (!got.status.ok()) {
        EXPECT_EQ(got.status.error_code(),
                  by_deadline ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED)
            << got.status.error_message();
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) clients.emplace_back(client);
  for (std::thread& thread : clients) thread.join();
  printf("%d clients gave up, %d answers came first\n", cancelled.load(), completed.load());
  EXPECT_GT(cancelled, cancels / 3);
  ExpectNothingHeld(cluster_.get());
}

}  // namespace
}  // namespace baton::e2e
