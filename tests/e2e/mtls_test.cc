// A whole cluster under mutual TLS: it answers, and lets in only who shows the right certificate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest Ask() {
  v1::GenerateRequest request;
  request.set_prompt("The capital of France is");
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

class MtlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = testing::TempDir() + "/certs";
    ASSERT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", dir_, " >/dev/null").c_str()), 0);
    auto cluster = Cluster::Start({.model = ChooseModel().path, .flags = {"--kv-memory-mib=64"}, .tls_dir = dir_});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  template <class Stub, class Method, class Request, class Response>
  static grpc::Status Call(Stub& stub, Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    return (stub.*method)(&context, request, response);
  }
  static grpc::Status AskRouter(const std::shared_ptr<grpc::Channel>& channel) {
    auto stub = v1::Inference::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    auto stream = stub->Generate(&context, Ask());
    v1::GenerateResponse event;
    while (stream->Read(&event)) {
    }
    return stream->Finish();
  }
  static std::string dir_;
  static Cluster* cluster_;
};
std::string MtlsTest::dir_;
Cluster* MtlsTest::cluster_ = nullptr;

TEST_F(MtlsTest, MembersAndClientsWithCertificatesAreServed) {
  const Generation g = cluster_->Generate(Ask());
  ASSERT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(g.violation, "");
  EXPECT_GT(g.summary.kv().bytes(), 0u);
  const grpc::Status as_client = AskRouter(OpenChannel(cluster_->router_address(), dir_, "router", "client"));
  EXPECT_TRUE(as_client.ok()) << as_client.error_message();
  EXPECT_TRUE(cluster_->WaitQuiet(absl::Seconds(20)).ok());
}

TEST_F(MtlsTest, WithoutACertificateNothingIsReached) {
  const auto plain = [](const std::string& address) { return OpenChannel(address, "", "", ""); };
  EXPECT_EQ(AskRouter(plain(cluster_->router_address())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(AskRouter(OpenChannel(cluster_->router_address(), dir_, "router", "")).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  for (auto& worker : cluster_->workers()) {
    const std::string role = worker->name.substr(0, worker->name.find('-'));
    auto stub = v1::Worker::NewStub(OpenChannel(worker->address, dir_, role, ""));
    v1::WorkerStatus status;
    EXPECT_EQ(Call(*stub, &v1::Worker::Stub::GetWorkerStatus, v1::GetWorkerStatusRequest(), &status).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(MtlsTest, AClientsCertificateDoesNotReachTheInside) {
  for (auto& worker : cluster_->workers()) {
    const std::string role = worker->name.substr(0, worker->name.find('-'));
    const auto channel = OpenChannel(worker->address, dir_, role, "client");
    v1::DrainResponse drained;
    auto stub = v1::Worker::NewStub(channel);
    const grpc::Status drain = Call(*stub, &v1::Worker::Stub::Drain, v1::DrainRequest(), &drained);
    EXPECT_EQ(drain.error_code(), grpc::StatusCode::PERMISSION_DENIED) << drain.error_message();
  }
  auto cluster = v1::Cluster::NewStub(OpenChannel(cluster_->router_address(), dir_, "router", "client"));
  v1::ClusterStatus status;
  EXPECT_EQ(Call(*cluster, &v1::Cluster::Stub::GetClusterStatus, v1::GetClusterStatusRequest(), &status).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(MtlsTest, AWorkerRegistersOnlyAsWhatItsCertificateSays) {
  auto stub = v1::Cluster::NewStub(OpenChannel(cluster_->router_address(), dir_, "router", "decode"));
  v1::RegisterRequest request;
  request.mutable_worker()->set_name("prefill-0");
  request.mutable_worker()->set_incarnation(std::string(32, 'f'));
  request.mutable_worker()->set_role("prefill");
  v1::RegisterResponse response;
  const grpc::Status status = Call(*stub, &v1::Cluster::Stub::Register, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("certificate of decode"));
}

TEST(KvTransportTest, OverEncryptedStreamsTheTokensAreThoseOfUcx) {
  const std::string dir = testing::TempDir() + "/kv_certs";
  ASSERT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", dir, " >/dev/null").c_str()), 0);
  const std::string model = ChooseModel().path;
  std::map<std::string, std::vector<std::vector<int32_t>>> tokens;
  for (const std::string transport : {"ucx", "grpc"}) {
    ClusterOptions options{.model = model, .flags = {"--kv-memory-mib=64", absl::StrCat("--kv-transport=", transport)}};
    if (transport == "grpc") options.tls_dir = dir;
    auto cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    // The pair has met before any request.
    std::string links;
    bool met = false;
    for (int i = 0; i < 500 && !met; ++i) {
      auto status = (*cluster)->Status();
      ASSERT_TRUE(status.ok()) << status.status();
      for (const auto& worker : status->workers()) {
        for (const auto& link : worker.load().links()) {
          links = link.ShortDebugString();
          met = met || (link.state() == "ok" && link.transport() == transport && link.gigabytes_per_second() > 0);
        }
      }
      if (!met) absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_TRUE(met) << links;
    for (const char* prompt : {"The capital of France is", "Once upon a time", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"}) {
      v1::GenerateRequest request = Ask();
      request.set_prompt(prompt);
      request.mutable_sampling()->set_max_tokens(24);
      request.mutable_sampling()->set_ignore_eos(true);
      const Generation g = (*cluster)->Generate(request);
      ASSERT_TRUE(g.status.ok()) << g.status.error_message();
      EXPECT_EQ(g.summary.kv().transport(), transport);
      if (transport == "grpc") {
        EXPECT_EQ(g.summary.kv().detail(), "tls");
      }
      tokens[transport].push_back(g.choices[0].token_ids);
    }
    EXPECT_TRUE((*cluster)->WaitQuiet(absl::Seconds(20)).ok());
  }
  EXPECT_EQ(tokens["ucx"], tokens["grpc"]);
}

TEST(MtlsStartTest, PlainTextBeyondLoopbackIsRefusedAtStart) {
  for (const std::string role : {"router", "prefill", "decode"}) {
    const std::string program = role == "router" ? "router/router" : absl::StrCat(role, "_worker/", role, "_worker");
    auto process = Process::Start({program, absl::StrCat("--model=", ChooseModel().path), "--listen=0.0.0.0:0",
                                   "--http=127.0.0.1:0"});
    ASSERT_TRUE(process.ok());
    EXPECT_NE((*process)->WaitExit(absl::Seconds(60)).value_or(0), 0) << role;
    EXPECT_THAT((*process)->stderr_text(), HasSubstr("tls_dir")) << role;
  }
}

// Last: from now on one worker's name does not say its role.
TEST_F(MtlsTest, AWorkerShowsTheCertificateOfTheRoleThatItChangesTo) {
  const auto worker = cluster_->AddWorker("decode", {"--role-dwell-ms=0"});
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE(cluster_->WaitReady(absl::Seconds(60)).ok());
  // Ready means that the router has generated through it, over channels to a prefill worker's certificate.
  const absl::Status changed = cluster_->ChangeRole(**worker, "prefill", absl::Seconds(60));
  ASSERT_TRUE(changed.ok()) << changed;
  const auto status = cluster_->WorkerStatusOf(**worker);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->role(), "prefill");
}

}  // namespace
}  // namespace baton::e2e
