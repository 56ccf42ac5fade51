// Several routers over the same workers, which find them in a real etcd.
// BATON_ROUTER_KILLS sets how often a router is killed (default 5; the long count is 50).
#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/common/membership/etcd_process.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

constexpr absl::Duration kLease = absl::Seconds(5);

// A router beside the cluster's own.
class SecondRouter {
 public:
  SecondRouter(const std::string& model, const std::vector<std::string>& flags) : model_(model), flags_(flags) { Start(); }

  void Start() {
    std::vector<std::string> argv = {"router/router", absl::StrCat("--model=", model_), "--listen=127.0.0.1:0",
                                     "--http=127.0.0.1:0"};
    argv.insert(argv.end(), flags_.begin(), flags_.end());
    auto process = Process::Start(argv);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    auto ready = process_->WaitEvent("ready", absl::Seconds(60));
    ASSERT_TRUE(ready.ok()) << ready.status();
    auto channel = grpc::CreateChannel(ready->value("listen", ""), grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel);
    cluster_ = v1::Cluster::NewStub(channel);
  }
  int Ready() {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    v1::ClusterStatus status;
    if (!cluster_->GetClusterStatus(&context, {}, &status).ok()) return -1;
    int ready = 0;
    for (const auto& worker : status.workers()) ready += worker.state() == "ready";
    return ready;
  }
  ::testing::AssertionResult WaitReady(int workers) {
    for (int i = 0; i < 3000; ++i) {
      if (Ready() == workers) return ::testing::AssertionSuccess();
      absl::SleepFor(absl::Milliseconds(10));
    }
    return ::testing::AssertionFailure() << Ready() << " workers ready; router says:\n" << process_->stderr_text();
  }
  // Token ids of choice 0; `on_token` is told how many there are.
  grpc::Status Generate(const v1::GenerateRequest& request, std::vector<int32_t>* token_ids,
                        const std::function<void(size_t)>& on_token = {}) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    auto stream = inference_->Generate(&context, request);
    v1::GenerateResponse event;
    while (stream->Read(&event)) {
      if (!event.has_token()) continue;
      token_ids->push_back(event.token().token_id());
      if (on_token) on_token(token_ids->size());
    }
    return stream->Finish();
  }
  void Kill() {
    process_->Signal(SIGKILL);
    (void)process_->WaitExit(absl::Seconds(10));
  }

 private:
  const std::string model_;
  const std::vector<std::string> flags_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
};

class MembershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    flags_ = {"--membership=etcd", absl::StrCat("--etcd-endpoints=", etcd_.endpoint()), "--etcd-lease-s=2",
              absl::StrCat("--kv-lease-ms=", absl::ToInt64Milliseconds(kLease))};
    auto cluster = Cluster::Start({.model = model_.path, .prefill = 1, .decode = 1, .flags = flags_});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (int i = 0; i < 24; ++i) request_.mutable_token_ids()->add_ids(3 + i);
    request_.mutable_sampling()->set_max_tokens(64);
    request_.mutable_sampling()->set_temperature(0);
    request_.mutable_sampling()->set_ignore_eos(true);
    undisturbed_ = cluster_->Generate(request_);
    ASSERT_TRUE(undisturbed_.status.ok()) << undisturbed_.status.error_message();
    ASSERT_EQ(undisturbed_.choices[0].token_ids.size(), 64u);
  }

  const ModelUnderTest model_ = ChooseModel();
  membership::testing::EtcdProcess etcd_;
  std::vector<std::string> flags_;
  std::unique_ptr<Cluster> cluster_;
  v1::GenerateRequest request_;
  Generation undisturbed_;
};

TEST_F(MembershipTest, ARouterIsKilledTheOtherServesAndTheWorkersAreFree) {
  const char* count = getenv("BATON_ROUTER_KILLS");
  const int kills = count != nullptr ? atoi(count) : 5;
  SecondRouter second(model_.path, flags_);
  for (int i = 0; i < kills; ++i) {
    ASSERT_TRUE(second.WaitReady(2)) << "kill " << i;
    // Anywhere in the answer, its beginning more often.
    const size_t at = static_cast<size_t>(1 + (i * 7) % 40);
    std::vector<int32_t> cut;
    const grpc::Status status = second.Generate(request_, &cut, [&](size_t tokens) {
      if (tokens == at) second.Kill();
    });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    ASSERT_LE(cut.size(), 64u);
    EXPECT_TRUE(std::equal(cut.begin(), cut.end(), undisturbed_.choices[0].token_ids.begin())) << "kill " << i;
    const absl::Time killed = absl::Now();
    const Generation other = cluster_->Generate(request_);
    EXPECT_TRUE(other.status.ok()) << other.status.error_message();
    EXPECT_EQ(other.choices[0].token_ids, undisturbed_.choices[0].token_ids) << "kill " << i;
    EXPECT_TRUE(cluster_->WaitQuiet(kLease - (absl::Now() - killed)).ok()) << "kill " << i;
    second.Start();
  }
}

TEST_F(MembershipTest, WithoutEtcdTrafficGoesOnAndAfterItARouterIsFound) {
  etcd_.Kill();
  for (int i = 0; i < 4; ++i) {
    const Generation g = cluster_->Generate(request_);
    EXPECT_TRUE(g.status.ok()) << g.status.error_message();
    EXPECT_EQ(g.choices[0].token_ids, undisturbed_.choices[0].token_ids);
    absl::SleepFor(absl::Seconds(1));  // past the lease of the router's key
  }
  SecondRouter second(model_.path, flags_);  // starts without etcd, and is not found
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(second.Ready(), 0);
  etcd_.Restart(/*empty=*/true);
  EXPECT_TRUE(second.WaitReady(2));
  EXPECT_TRUE(cluster_->WaitReady(absl::Seconds(5)).ok());
  std::vector<int32_t> tokens;
  const grpc::Status status = second.Generate(request_, &tokens);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens, undisturbed_.choices[0].token_ids);
}

}  // namespace
}  // namespace baton::e2e
