// A gateway's part of vllm.grpc.engine.VllmEngine against real workers of a tiny model: a prefill leg, then a decode leg that
// carries what it answered. Tokens must be those of the cluster's own router, whatever becomes of the KV in between.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/compat/vllm_engine.grpc.pb.h"
#include "proto/engine_handoff.pb.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

namespace pb = ::vllm::grpc::engine;

struct Leg {
  grpc::Status status;
  std::map<uint32_t, std::vector<uint32_t>> chunks;  // by choice
  std::map<uint32_t, pb::GenerateComplete> complete;
};

class VllmEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string model = absl::StrCat(getenv("TEST_TMPDIR"), "/tiny.gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
    auto cluster = Cluster::Start({.model = model, .flags = {"--kv-memory-mib=64", "--kv-lease-ms=3000"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (const char* role : {"prefill", "decode"}) {
      engines_[role] = pb::VllmEngine::NewStub(
          grpc::CreateChannel(Worker(role).address, grpc::InsecureChannelCredentials()));
    }
  }
  WorkerProcess& Worker(const std::string& role) {
    for (auto& worker : cluster_->workers()) {
      if (worker->role == role) return *worker;
    }
    abort();
  }

  pb::GenerateRequest Request(int prompt_tokens = 50, uint32_t max_tokens = 12) {
    pb::GenerateRequest request;
    request.set_request_id(absl::StrCat("gateway-", next_id_++));
    for (int i = 0; i < prompt_tokens; ++i) {
      request.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(3 + (i * 7 + next_id_) % 250));
    }
    request.set_stream(true);
    pb::SamplingParams* sampling = request.mutable_sampling_params();
    sampling->set_max_tokens(max_tokens);
    sampling->set_temperature(0.9f);
    sampling->set_seed(17);
    sampling->set_ignore_eos(true);
    return request;
  }

  Leg Generate(const std::string& role, const pb::GenerateRequest& request,
               const std::function<void(grpc::ClientContext*)>& on_chunk = {}) {
    Leg leg;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    auto stream = engines_[role]->Generate(&context, request);
    for (pb::GenerateResponse response; stream->Read(&response);) {
      if (response.has_complete()) {
        EXPECT_EQ(leg.complete.count(response.complete().index()), 0u) << "completed twice";
        leg.complete[response.complete().index()] = response.complete();
        continue;
      }
      std::vector<uint32_t>& ids = leg.chunks[response.chunk().index()];
      ids.insert(ids.end(), response.chunk().token_ids().begin(), response.chunk().token_ids().end());
      EXPECT_EQ(response.chunk().completion_tokens(), ids.size());
      if (on_chunk) on_chunk(&context);
    }
    leg.status = stream->Finish();
    return leg;
  }

  // As gateways do it: the same request, for one token.
  Leg Prefill(pb::GenerateRequest request) {
    request.mutable_sampling_params()->set_max_tokens(1);
    request.mutable_sampling_params()->set_n(1);
    request.set_stream(false);
    request.set_kv_transfer_params_json(R"({"do_remote_decode":true,"do_remote_prefill":false})");
    return Generate("prefill", request);
  }
  static pb::GenerateRequest WithParams(pb::GenerateRequest request, const Leg& prefill) {
    request.set_kv_transfer_params_json(prefill.complete.at(0).kv_transfer_params_json());
    return request;
  }
  Leg BothLegs(const pb::GenerateRequest& request) {
    const Leg prefill = Prefill(request);
    EXPECT_TRUE(prefill.status.ok()) << prefill.status.error_message();
    if (!prefill.status.ok()) return prefill;
    EXPECT_EQ(prefill.complete.at(0).output_ids_size(), 1);
    EXPECT_TRUE(prefill.complete.at(0).has_kv_transfer_params_json());
    return Generate("decode", WithParams(request, prefill));
  }

  // Of the cluster's own router.
  std::vector<std::vector<uint32_t>> Own(const pb::GenerateRequest& request) {
    const pb::SamplingParams& from = request.sampling_params();
    v1::GenerateRequest own;
    for (const uint32_t id : request.tokenized().input_ids()) {
      own.mutable_token_ids()->add_ids(static_cast<int32_t>(id));
    }
    v1::SamplingParams* to = own.mutable_sampling();
    to->set_max_tokens(static_cast<int32_t>(from.max_tokens()));
    to->set_temperature(from.temperature());
    to->set_seed(static_cast<uint64_t>(from.seed()));
    to->set_ignore_eos(from.ignore_eos());
    if (from.n() > 0) to->set_n(static_cast<int32_t>(from.n()));
    for (const uint32_t id : from.stop_token_ids()) to->add_stop_token_ids(static_cast<int32_t>(id));
    *to->mutable_logit_bias() = from.logit_bias();
    const Generation generation = cluster_->Generate(own);
    EXPECT_TRUE(generation.status.ok()) << generation.status.error_message();
    std::vector<std::vector<uint32_t>> ids;
    for (const auto& choice : generation.choices) ids.emplace_back(choice.token_ids.begin(), choice.token_ids.end());
    return ids;
  }
  void ExpectOwn(const Leg& leg, const pb::GenerateRequest& request) {
    ASSERT_TRUE(leg.status.ok()) << leg.status.error_message();
    const auto want = Own(request);
    ASSERT_EQ(leg.complete.size(), want.size());
    for (const auto& [index, complete] : leg.complete) {
      EXPECT_EQ(std::vector<uint32_t>(complete.output_ids().begin(), complete.output_ids().end()), want[index]);
      EXPECT_EQ(leg.chunks.count(index), request.stream() ? 1u : 0u);
      EXPECT_TRUE(!request.stream() || leg.chunks.at(index) == want[index]);
      EXPECT_EQ(complete.completion_tokens(), want[index].size());
      EXPECT_EQ(complete.prompt_tokens(), static_cast<uint32_t>(request.tokenized().input_ids_size()));
    }
  }
  double Count(const std::string& prompt) {
    return cluster_->Metric(Worker("decode").http, absl::StrCat("baton_vllm_requests_total{prompt=\"", prompt, "\"}"));
  }
  void ExpectQuiet() {
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(30));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }

  std::unique_ptr<Cluster> cluster_;
  std::map<std::string, std::unique_ptr<pb::VllmEngine::Stub>> engines_;
  int next_id_ = 0;
};

TEST_F(VllmEngineTest, BothLegsGiveTheRoutersTokens) {
  for (const bool stream : {true, false}) {
    for (const int prompt : {1, 16, 50, 200}) {
      for (const uint32_t max_tokens : {1u, 2u, 12u}) {
        pb::GenerateRequest request = Request(prompt, max_tokens);
        request.set_stream(stream);
        SCOPED_TRACE(request.ShortDebugString());
        const Leg leg = BothLegs(request);
        ExpectOwn(leg, request);
        EXPECT_EQ(leg.complete.at(0).finish_reason(), "length");
      }
    }
  }
  EXPECT_EQ(Count("fetched"), 24);
  EXPECT_EQ(Count("local") + Count("recomputed"), 0);
  ExpectQuiet();
}

TEST_F(VllmEngineTest, TheSeedThatPrefillChoseGoesAlong) {
  pb::GenerateRequest request = Request();
  request.mutable_sampling_params()->clear_seed();
  const Leg prefill = Prefill(request);
  ASSERT_TRUE(prefill.status.ok());
  const auto json = nlohmann::json::parse(prefill.complete.at(0).kv_transfer_params_json());
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(json["baton"].get<std::string>(), &bytes));
  v1::EngineHandoff handoff;
  ASSERT_TRUE(handoff.ParseFromString(bytes));
  const Leg leg = Generate("decode", WithParams(request, prefill));
  ASSERT_TRUE(leg.status.ok()) << leg.status.error_message();
  v1::GenerateRequest own;
  for (const uint32_t id : request.tokenized().input_ids()) own.mutable_token_ids()->add_ids(static_cast<int32_t>(id));
  own.mutable_sampling()->set_max_tokens(12);
  own.mutable_sampling()->set_temperature(request.sampling_params().temperature());
  own.mutable_sampling()->set_ignore_eos(true);
  own.mutable_sampling()->set_seed(handoff.seed());
  const Generation generation = cluster_->Generate(own);
  EXPECT_EQ(leg.chunks.at(0), std::vector<uint32_t>(generation.choices[0].token_ids.begin(), generation.choices[0].token_ids.end()));
}

TEST_F(VllmEngineTest, ATokenThatStopsAtOnceIsSaidByDecode) {
  pb::GenerateRequest request = Request();
  request.mutable_sampling_params()->add_stop_token_ids(77);
  (*request.mutable_sampling_params()->mutable_logit_bias())[77] = 100;
  const Leg leg = BothLegs(request);
  ExpectOwn(leg, request);
  EXPECT_EQ(leg.complete.at(0).finish_reason(), "stop");
  EXPECT_EQ(leg.complete.at(0).matched_token_id(), 77u);
  EXPECT_EQ(leg.complete.at(0).output_ids_size(), 1);
  ExpectQuiet();
}

TEST_F(VllmEngineTest, LogprobsReachFromIndexZeroOn) {
  pb::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_logprobs(2);
  const Leg leg = BothLegs(request);
  ASSERT_TRUE(leg.status.ok()) << leg.status.error_message();
  const pb::OutputLogProbs& logprobs = leg.complete.at(0).output_logprobs();
  ASSERT_EQ(logprobs.token_logprobs_size(), 12);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(logprobs.token_ids(i), leg.complete.at(0).output_ids(i));
    EXPECT_LT(logprobs.token_logprobs(i), 0);
    EXPECT_EQ(logprobs.top_logprobs(i).values_size(), 2);
  }
}

TEST_F(VllmEngineTest, WithoutAHandoffDecodeComputesThePrompt) {
  pb::GenerateRequest request = Request();
  ExpectOwn(Generate("decode", request), request);
  request = Request();
  request.mutable_sampling_params()->set_n(3);
  ExpectOwn(Generate("decode", request), request);
  request = Request();
  request.set_kv_transfer_params_json(R"({"remote_engine_id":"somebody else's"})");
  ExpectOwn(Generate("decode", request), request);
  EXPECT_EQ(Count("local"), 3);
  ExpectQuiet();
}

TEST_F(VllmEngineTest, KvThatIsGoneIsComputedAgain) {
  // Fetched already.
  pb::GenerateRequest request = Request();
  const Leg once = Prefill(request);
  ExpectOwn(Generate("decode", WithParams(request, once)), request);
  ExpectOwn(Generate("decode", WithParams(request, once)), request);
  EXPECT_EQ(Count("recomputed"), 1);
  // Its lease is over.
  request = Request();
  const Leg late = Prefill(request);
  ExpectQuiet();
  ExpectOwn(Generate("decode", WithParams(request, late)), request);
  EXPECT_EQ(Count("recomputed"), 2);
  // Its worker died.
  request = Request();
  const auto want = Own(request);
  const Leg died = Prefill(request);
  ASSERT_TRUE(died.status.ok());
  Worker("prefill").process->Signal(SIGKILL);
  const Leg leg = Generate("decode", WithParams(request, died));
  ASSERT_TRUE(leg.status.ok()) << leg.status.error_message();
  EXPECT_EQ(leg.chunks.at(0), want[0]);
  EXPECT_EQ(Count("recomputed"), 3);
}

TEST_F(VllmEngineTest, AHandoffForSomethingElseIsRefused) {
  const pb::GenerateRequest request = Request();
  const Leg prefill = Prefill(request);
  ASSERT_TRUE(prefill.status.ok());
  pb::GenerateRequest other_prompt = WithParams(request, prefill);
  other_prompt.mutable_tokenized()->set_input_ids(3, 99);
  EXPECT_EQ(Generate("decode", other_prompt).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  pb::GenerateRequest other_id = WithParams(request, prefill);
  other_id.set_request_id("somebody-else");
  EXPECT_EQ(Generate("decode", other_id).status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // A ticket that no worker of this cluster signed.
  auto json = nlohmann::json::parse(prefill.complete.at(0).kv_transfer_params_json());
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(json["baton"].get<std::string>(), &bytes));
  v1::EngineHandoff handoff;
  ASSERT_TRUE(handoff.ParseFromString(bytes));
  handoff.mutable_ticket()->set_lease_ms(handoff.ticket().lease_ms() + 1);
  json["baton"] = absl::Base64Escape(handoff.SerializeAsString());
  pb::GenerateRequest forged = request;
  forged.set_kv_transfer_params_json(json.dump());
  EXPECT_EQ(Generate("decode", forged).status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  for (const char* bad : {"[]", "{", "7", R"({"baton":7})", R"({"baton":"***"})", R"({"baton":"AAAA"})", R"({"baton":""})"}) {
    pb::GenerateRequest garbled = request;
    garbled.set_kv_transfer_params_json(bad);
    EXPECT_EQ(Generate("decode", garbled).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad;
  }
  // After all that it is still good.
  ExpectOwn(Generate("decode", WithParams(request, prefill)), request);
  ExpectQuiet();
}

TEST_F(VllmEngineTest, WhatIsNotUnderstoodIsRefusedByName) {
  const auto refused = [this](const pb::GenerateRequest& request, const std::string& field) {
    for (const char* role : {"prefill", "decode"}) {
      const grpc::Status status = Generate(role, request).status;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field << " " << status.error_message();
      EXPECT_NE(status.error_message().find(field), std::string::npos) << status.error_message();
    }
  };
  pb::GenerateRequest request = Request();
  request.set_text("some words");
  refused(request, "text");
  request = Request();
  request.clear_tokenized();
  refused(request, "tokenized");
  request = Request(/*prompt_tokens=*/0);
  request.mutable_tokenized();
  refused(request, "token_ids");
  request = Request();
  request.mutable_tokenized()->set_input_ids(0, 1u << 31);
  refused(request, "token_ids");
  request = Request();
  request.mutable_sampling_params()->set_structural_tag("{}");
  refused(request, "structural_tag");
  request = Request();
  request.mutable_sampling_params()->set_prompt_logprobs(1);
  refused(request, "prompt_logprobs");
  request = Request();
  request.mutable_sampling_params()->set_n(1000);
  refused(request, "sampling.n");
  request = Request();
  request.mutable_mm_inputs();
  refused(request, "mm_inputs");
  request = Request();
  EXPECT_EQ(Generate("prefill", request).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(VllmEngineTest, AbortAndCancelFreeEverything) {
  pb::GenerateRequest request = Request(/*prompt_tokens=*/40, /*max_tokens=*/400);
  bool asked = false;
  const Leg aborted = Generate("decode", WithParams(request, Prefill(request)), [&](grpc::ClientContext*) {
    if (std::exchange(asked, true)) return;
    pb::AbortRequest abort;
    abort.add_request_ids("nobody knows this one");
    abort.add_request_ids(request.request_id());
    for (auto& [role, engine] : engines_) {
      grpc::ClientContext context;
      pb::AbortResponse response;
      EXPECT_TRUE(engine->Abort(&context, abort, &response).ok());
    }
  });
  EXPECT_EQ(aborted.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(aborted.complete.empty());
  request = Request(40, 400);
  const Leg cancelled = Generate("decode", WithParams(request, Prefill(request)),
                                 [](grpc::ClientContext* context) { context->TryCancel(); });
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED);
  Prefill(Request());  // and nobody comes for it: its lease ends
  ExpectQuiet();
}

TEST_F(VllmEngineTest, WhatGatewaysAskAtTheStart) {
  for (auto& [role, engine] : engines_) {
    grpc::ClientContext health, model, server, loads;
    pb::HealthCheckResponse healthy;
    ASSERT_TRUE(engine->HealthCheck(&health, {}, &healthy).ok());
    EXPECT_TRUE(healthy.healthy());
    pb::GetModelInfoResponse info;
    ASSERT_TRUE(engine->GetModelInfo(&model, {}, &info).ok());
    EXPECT_EQ(info.served_model_name(), "tiny");
    EXPECT_TRUE(info.is_generation());
    EXPECT_GT(info.vocab_size(), 0u);
    EXPECT_GT(info.max_context_length(), 0u);
    EXPECT_GT(info.eos_token_ids_size(), 0);
    pb::GetServerInfoResponse process;
    ASSERT_TRUE(engine->GetServerInfo(&server, {}, &process).ok());
    EXPECT_EQ(process.server_type(), "vllm-grpc");
    EXPECT_EQ(process.kv_connector(), "NixlConnector");
    EXPECT_EQ(process.kv_role(), role == "prefill" ? "kv_producer" : "kv_consumer");
    pb::GetLoadsResponse load;
    ASSERT_TRUE(engine->GetLoads(&loads, {}, &load).ok());
    ASSERT_EQ(load.loads_size(), 1);
    EXPECT_GT(load.loads(0).max_total_num_tokens(), 0);
  }
}

}  // namespace
}  // namespace baton::e2e
