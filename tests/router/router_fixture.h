// A whole router in this process, on a tiny model's text, with scripted workers behind it.
#ifndef BATON_TESTS_ROUTER_ROUTER_FIXTURE_H_
#define BATON_TESTS_ROUTER_ROUTER_FIXTURE_H_

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "router/router.h"
#include "tests/fakes/scripted_worker.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::router {

// What one Generate call gave.
struct Answer {
  absl::Status status;
  v1::Started started;
  std::vector<v1::TokenEvent> tokens;
  std::map<uint32_t, std::string> text;  // by choice
  std::map<uint32_t, v1::ChoiceFinished> finished;
  v1::Summary summary;

  // Ids of one choice; records a failure when indices are not 0, 1, 2, ...
  std::vector<int32_t> Ids(uint32_t choice) const {
    std::vector<int32_t> ids;
    for (const v1::TokenEvent& token : tokens) {
      if (token.choice_index() != choice) continue;
      EXPECT_EQ(token.token_index(), ids.size()) << "choice " << choice;
      ids.push_back(token.token_id());
    }
    return ids;
  }
};

class RouterFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    model_path_ = absl::StrCat(::testing::TempDir(), "/router_test_", getpid(), ".gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model_path_).ok());
    config_.set_model(model_path_);
    config_.set_served_model_name("tiny");
    config_.set_listen("127.0.0.1:0");
    config_.set_http("127.0.0.1:0");
    config_.set_mode("disaggregated");
    config_.set_max_queue(100);
    config_.set_max_queue_tokens(1 << 20);
    config_.set_queue_timeout_ms(20000);
    config_.set_prefill_backlog_tokens(4096);
    config_.set_heartbeat_ms(500);
    config_.set_worker_timeout_ms(60000);  // tests that lose workers say so
    config_.set_drain_timeout_ms(20000);
    config_.set_default_deadline_ms(60000);
  }
  void TearDown() override {
    if (router_ != nullptr) {
      EXPECT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
      for (const WorkerSnapshot& worker : router_->view()->Snapshot()) {
        EXPECT_EQ(worker.in_flight, 0u) << worker.id.name;
        EXPECT_EQ(worker.promised_blocks, 0u) << worker.id.name;
        EXPECT_EQ(worker.promised_sequences, 0u) << worker.id.name;
      }
    }
    EXPECT_TRUE(Eventually([&] { return book_.outstanding() == 0; })) << book_.outstanding() << " tickets are left";
    for (const auto& worker : workers_) {
      EXPECT_TRUE(Eventually([&] { return worker->open() == 0; })) << "calls are left on a worker";
    }
    router_.reset();
    workers_.clear();
    std::remove(model_path_.c_str());
  }

  void StartRouter() {
    auto router = Router::Start(config_, &metrics_, Clock::Real());
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    channel_ = rpc::CreateChannel(router_->address());
    inference_ = v1::Inference::NewStub(channel_);
    cluster_ = v1::Cluster::NewStub(channel_);
  }
  fakes::ScriptedWorker* AddWorker(const std::string& name, const std::string& role, fakes::Script script = {}) {
    workers_.push_back(std::make_unique<fakes::ScriptedWorker>(name, role, &book_, std::move(script)));
    const absl::Status status = Register(Info(*workers_.back()));
    EXPECT_TRUE(status.ok()) << status;
    return workers_.back().get();
  }
  v1::WorkerInfo Info(const fakes::ScriptedWorker& worker) {
    v1::WorkerInfo info = worker.info();
    info.set_model_name("tiny");
    info.mutable_fingerprint()->set_tokenizer(router_->view()->options().tokenizer_fingerprint);
    return info;
  }
  absl::Status Register(const v1::WorkerInfo& info) {
    grpc::ClientContext context;
    v1::RegisterRequest request;
    *request.mutable_worker() = info;
    v1::RegisterResponse response;
    return FromGrpcStatus(cluster_->Register(&context, request, &response));
  }

  static v1::GenerateRequest Prompt(const std::string& text = "hello", int max_tokens = 8) {
    v1::GenerateRequest request;
    request.set_prompt(text);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_seed(7);
    return request;
  }
  // `on_event` may cancel through the context.
  Answer Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(30),
                  const std::function<void(const v1::GenerateResponse&)>& on_event = nullptr,
                  grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    if (context == nullptr) context = &own;
    rpc::SetDeadline(context, absl::Now() + timeout);
    Answer answer;
    auto reader = inference_->Generate(context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_started()) answer.started = response.started();
      std::vector<v1::TokenEvent> tokens(response.tokens().tokens().begin(), response.tokens().tokens().end());
      if (response.has_token()) tokens.push_back(response.token());
      for (const v1::TokenEvent& token : tokens) {
        answer.tokens.push_back(token);
        answer.text[token.choice_index()] += token.text();
      }
      if (response.has_finished()) {
        answer.finished[response.finished().choice_index()] = response.finished();
        answer.text[response.finished().choice_index()] += response.finished().text();
      }
      if (response.has_summary()) answer.summary = response.summary();
      if (on_event) on_event(response);
    }
    answer.status = FromGrpcStatus(reader->Finish());
    return answer;
  }

  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  std::string model_path_;
  v1::Config config_;
  Metrics metrics_;
  fakes::TicketBook book_;
  std::vector<std::unique_ptr<fakes::ScriptedWorker>> workers_;
  std::unique_ptr<Router> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_ROUTER_FIXTURE_H_
