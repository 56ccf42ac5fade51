#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "proto/compat/kserve.grpc.pb.h"
#include "router/kserve/infer_request.h"
#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

using fakes::Pause;
using fakes::Script;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using ::testing::HasSubstr;

constexpr char kText[] = "abcdefghijklmnopqrstuvwxyz";

std::string Raw(const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

ModelInferRequest::InferInputTensor* AddInput(ModelInferRequest* request, const std::string& name,
                                              const std::string& datatype) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(1);
  return input;
}

// With its contents in the message; `parameters`: of sampling, as JSON.
ModelInferRequest Request(const std::string& id, const std::string& text, const std::string& parameters = "",
                          bool stream = false) {
  ModelInferRequest request;
  request.set_model_name("tiny");
  request.set_id(id);
  AddInput(&request, "text_input", "BYTES")->mutable_contents()->add_bytes_contents(text);
  if (!parameters.empty()) {
    AddInput(&request, "sampling_parameters", "BYTES")->mutable_contents()->add_bytes_contents(parameters);
  }
  if (stream) AddInput(&request, "stream", "BOOL")->mutable_contents()->add_bool_contents(true);
  return request;
}

std::string TextOf(const ModelInferResponse& response) {
  if (response.outputs_size() == 0) return "";
  EXPECT_EQ(response.outputs(0).name(), "text_output");
  EXPECT_EQ(response.raw_output_contents_size(), 1);
  const std::string& raw = response.raw_output_contents(0);
  EXPECT_EQ(Raw(raw.substr(4)), raw);
  return raw.substr(4);
}

bool IsFinal(const ModelInferResponse& response) {
  const auto found = response.parameters().find("triton_final_response");
  return found != response.parameters().end() && found->second.bool_param();
}

TEST(InferRequestTest, RawAndTypedContentsAreTheSame) {
  ModelInferRequest raw;
  AddInput(&raw, "text_input", "BYTES");
  raw.add_raw_input_contents(Raw("hello"));
  AddInput(&raw, "max_tokens", "INT32");
  raw.add_raw_input_contents(std::string("\x07\0\0\0", 4));
  AddInput(&raw, "exclude_input_in_output", "BOOL");
  raw.add_raw_input_contents(std::string("\1", 1));
  const auto parsed = kserve::ParseInferRequest(raw, false);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->generate.prompt(), "hello");
  EXPECT_EQ(parsed->generate.sampling().max_tokens(), 7);
  EXPECT_FALSE(parsed->echo);
}

TEST(InferRequestTest, NumbersMayBeStrings) {
  const auto parsed = kserve::ParseInferRequest(
      Request("", "x", R"({"max_tokens":"64","temperature":"0.5","ignore_eos":"true","stop":["7"],"seed":3})"), false);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->generate.sampling().max_tokens(), 64);
  EXPECT_EQ(parsed->generate.sampling().temperature(), 0.5f);
  EXPECT_TRUE(parsed->generate.sampling().ignore_eos());
  EXPECT_EQ(parsed->generate.sampling().stop(0), "7");
  EXPECT_EQ(parsed->generate.sampling().seed(), 3u);
  EXPECT_TRUE(parsed->echo);  // as Triton's vLLM backend
}

// The parameter is Triton's (1 is the first of its levels, 0 the default), the sampling parameter vLLM's.
TEST(InferRequestTest, APriorityIsOneOfThreeClasses) {
  const auto parse = [](const ModelInferRequest& request) {
    const auto parsed = kserve::ParseInferRequest(request, false);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->generate.priority();
  };
  EXPECT_EQ(parse(Request("", "x")), v1::PRIORITY_STANDARD);
  EXPECT_EQ(parse(Request("", "x", R"({"priority":"-1"})")), v1::PRIORITY_HIGH);
  EXPECT_EQ(parse(Request("", "x", R"({"priority":4})")), v1::PRIORITY_BATCH);
  const std::vector<std::pair<int, v1::Priority>> levels = {
      {1, v1::PRIORITY_HIGH}, {2, v1::PRIORITY_STANDARD}, {3, v1::PRIORITY_BATCH}};
  for (const auto& [level, priority] : levels) {
    ModelInferRequest request = Request("", "x", R"({"priority":4})");
    (*request.mutable_parameters())["priority"].set_uint64_param(static_cast<uint64_t>(level));
    EXPECT_EQ(parse(request), priority) << level;
    (*request.mutable_parameters())["priority"].set_int64_param(level);
    EXPECT_EQ(parse(request), priority) << level;
  }
  ModelInferRequest request = Request("", "x", R"({"priority":-1})");
  (*request.mutable_parameters())["priority"].set_uint64_param(0);
  EXPECT_EQ(parse(request), v1::PRIORITY_HIGH) << "0 says nothing";
  for (const int64_t wrong : {int64_t{4}, int64_t{-1}, INT64_MAX}) {
    (*request.mutable_parameters())["priority"].set_int64_param(wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(kserve::ParseInferRequest(request, false).status())) << wrong;
  }
}

TEST(InferRequestTest, WhatIsWrongIsNamed) {
  const auto fails = [](const ModelInferRequest& request, const std::string& words) {
    const auto parsed = kserve::ParseInferRequest(request, false);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(words));
  };
  fails(ModelInferRequest(), "text_input");
  fails(Request("", "x", "{"), "sampling_parameters");
  fails(Request("", "x", "[]"), "sampling_parameters");
  fails(Request("", "x", R"({"prompt":"y"})"), "sampling_parameters");
  fails(Request("", "x", R"({"wish":1})"), "wish");
  fails(Request("", "x", R"({"n":"many"})"), "n");
  fails(Request("", "x", R"({"temperature":"hot"})"), "temperature");
  fails(Request("", "x", "", /*stream=*/true), "ModelStreamInfer");
  ModelInferRequest request = Request("", "x");
  AddInput(&request, "image", "UINT8");
  fails(request, "text_input, stream");
  request = Request("", "x");
  *request.add_inputs() = request.inputs(0);
  fails(request, "twice");
  request = Request("", "x");
  request.mutable_inputs(0)->add_shape(2);
  fails(request, "shape");
  request = Request("", "x");
  request.mutable_inputs(0)->set_datatype("INT32");
  fails(request, "must be BYTES");
  request = Request("", "x");
  request.add_raw_input_contents("abc");
  fails(request, "length");
  request.set_raw_input_contents(0, std::string("\xff\xff\xff\xff", 4) + "abc");
  fails(request, "one element");
  request.add_raw_input_contents("more");
  fails(request, "2 entries for 1");
  request = Request("", "x");
  (*request.mutable_parameters())["timeout"].set_int64_param(-1);
  fails(request, "timeout");
  (*request.mutable_parameters())["timeout"].set_uint64_param(UINT64_MAX);
  EXPECT_TRUE(kserve::ParseInferRequest(request, false).ok());
}

class KServeTest : public RouterFixture {
 protected:
  void StartWithWorkers(Script script = {}) {
    StartRouter();
    AddWorker("p0", "prefill", script);
    AddWorker("d0", "decode", script);
    stub_ = inference::GRPCInferenceService::NewStub(channel_);
  }
  absl::Status Infer(const ModelInferRequest& request, ModelInferResponse* response,
                     absl::Duration timeout = absl::Seconds(20)) {
    grpc::ClientContext context;
    rpc::SetDeadline(&context, absl::Now() + timeout);
    return FromGrpcStatus(stub_->ModelInfer(&context, request, response));
  }
  // All answers by request id; the stream's end is OK.
  std::map<std::string, std::vector<ModelStreamInferResponse>> Stream(const std::vector<ModelInferRequest>& requests) {
    grpc::ClientContext context;
    rpc::SetDeadline(&context, absl::Now() + absl::Seconds(20));
    auto stream = stub_->ModelStreamInfer(&context);
    for (const ModelInferRequest& request : requests) EXPECT_TRUE(stream->Write(request));
    stream->WritesDone();
    std::map<std::string, std::vector<ModelStreamInferResponse>> answers;
    ModelStreamInferResponse response;
    while (stream->Read(&response)) answers[response.infer_response().id()].push_back(response);
    EXPECT_TRUE(stream->Finish().ok());
    return answers;
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
};

TEST_F(KServeTest, SaysWhatIsServed) {
  StartWithWorkers();
  grpc::ClientContext c1, c2, c3, c4, c5, c6;
  inference::ServerReadyResponse ready;
  ASSERT_TRUE(stub_->ServerReady(&c1, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  inference::ModelMetadataRequest named;
  named.set_name("tiny");
  inference::ModelMetadataResponse metadata;
  ASSERT_TRUE(stub_->ModelMetadata(&c2, named, &metadata).ok());
  EXPECT_EQ(metadata.inputs(0).name(), "text_input");
  EXPECT_EQ(metadata.outputs(0).name(), "text_output");
  inference::ModelConfigResponse config;
  inference::ModelConfigRequest config_request;
  config_request.set_name("tiny");
  ASSERT_TRUE(stub_->ModelConfig(&c3, config_request, &config).ok());
  EXPECT_TRUE(config.config().model_transaction_policy().decoupled());
  EXPECT_EQ(config.config().max_batch_size(), 0);
  named.set_name("other");
  EXPECT_EQ(stub_->ModelMetadata(&c4, named, &metadata).error_code(), grpc::StatusCode::NOT_FOUND);
  inference::ModelReadyRequest which;
  inference::ModelReadyResponse model_ready;
  which.set_name("tiny");
  which.set_version("1");
  ASSERT_TRUE(stub_->ModelReady(&c5, which, &model_ready).ok());
  EXPECT_TRUE(model_ready.ready());
  which.set_version("2");
  ASSERT_TRUE(stub_->ModelReady(&c6, which, &model_ready).ok());
  EXPECT_FALSE(model_ready.ready());
}

TEST_F(KServeTest, NotReadyWithoutWorkers) {
  StartRouter();
  stub_ = inference::GRPCInferenceService::NewStub(channel_);
  grpc::ClientContext c1, c2;
  inference::ServerReadyResponse ready;
  ASSERT_TRUE(stub_->ServerReady(&c1, {}, &ready).ok());
  EXPECT_FALSE(ready.ready());
  inference::ServerLiveResponse live;
  ASSERT_TRUE(stub_->ServerLive(&c2, {}, &live).ok());
  EXPECT_TRUE(live.live());
}

TEST_F(KServeTest, OneAnswerHasThePromptBeforeItUnlessExcluded) {
  StartWithWorkers();
  ModelInferResponse response;
  ModelInferRequest request = Request("my id", "hello ", R"({"max_tokens":"5"})");
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(TextOf(response), "hello abcde");
  EXPECT_EQ(response.id(), "my id");
  EXPECT_EQ(response.model_name(), "tiny");
  EXPECT_TRUE(IsFinal(response));
  AddInput(&request, "exclude_input_in_output", "BOOL")->mutable_contents()->add_bool_contents(true);
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(TextOf(response), "abcde");
}

TEST_F(KServeTest, ErrorsHaveTheCodesOfTheOtherDoors) {
  StartWithWorkers();
  ModelInferResponse response;
  EXPECT_TRUE(absl::IsInvalidArgument(Infer(Request("", "x", R"({"temperature":-1})"), &response)));
  ModelInferRequest request = Request("", "x");
  request.set_model_name("other");
  EXPECT_TRUE(absl::IsNotFound(Infer(request, &response)));
  EXPECT_TRUE(absl::IsInvalidArgument(Infer(Request("", "x\xff"), &response)));
}

TEST_F(KServeTest, AStreamMarksItsLastAnswer) {
  StartWithWorkers();
  for (const bool empty_final : {false, true}) {
    ModelInferRequest request = Request("s", "x", R"({"max_tokens":6})", /*stream=*/true);
    (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(empty_final);
    auto answers = Stream({request})["s"];
    ASSERT_EQ(answers.size(), 7u);
    std::string text;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].error_message(), "");
      EXPECT_EQ(IsFinal(answers[i].infer_response()), i + 1 == answers.size()) << i;
      text += TextOf(answers[i].infer_response());
    }
    EXPECT_EQ(text, "abcdef");
    EXPECT_EQ(answers.back().infer_response().outputs_size(), empty_final ? 0 : 1);
  }
}

std::vector<std::string> TextsOf(const ModelInferResponse& response) {
  std::vector<std::string> texts;
  if (response.outputs_size() == 0) return texts;
  const std::string& raw = response.raw_output_contents(0);
  for (size_t at = 0; at + 4 <= raw.size();) {
    uint32_t length;
    std::memcpy(&length, raw.data() + at, sizeof(length));
    texts.push_back(raw.substr(at + 4, length));
    at += 4 + length;
  }
  EXPECT_EQ(response.outputs(0).shape(0), static_cast<int64_t>(texts.size()));
  return texts;
}

// As Triton's vLLM backend: text_output has an element for each choice, in a stream what each has said since.
TEST_F(KServeTest, SeveralChoicesAreElementsOfOneTensor) {
  StartWithWorkers();
  ModelInferResponse response;
  ASSERT_TRUE(Infer(Request("", "x ", R"({"n":3,"max_tokens":5})"), &response).ok());
  const std::vector<std::string> whole = TextsOf(response);
  ASSERT_EQ(whole.size(), 3u);
  for (const std::string& text : whole) EXPECT_EQ(text.substr(0, 2), "x ");
  for (const bool empty_final : {false, true}) {
    ModelInferRequest request = Request("s", "x ", R"({"n":3,"max_tokens":5})", /*stream=*/true);
    (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(empty_final);
    std::vector<std::string> joined(3, "x ");
    const auto answers = Stream({request})["s"];
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(IsFinal(answers[i].infer_response()), i + 1 == answers.size());
      const std::vector<std::string> pieces = TextsOf(answers[i].infer_response());
      if (i + 1 < answers.size() || !empty_final) {
        ASSERT_EQ(pieces.size(), 3u) << i;
      }
      for (size_t c = 0; c < pieces.size(); ++c) joined[c] += pieces[c];
    }
    EXPECT_EQ(joined, whole);
    EXPECT_GT(answers.size(), 5u);
  }
}

TEST_F(KServeTest, ManyRequestsShareAStreamAndAnErrorEndsOnlyItsOwn) {
  StartWithWorkers();
  std::vector<ModelInferRequest> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(Request(absl::StrCat("r", i), "x", absl::StrCat(R"({"max_tokens":)", 2 + i, "}"), i % 2 == 0));
  }
  requests.push_back(Request("bad", "x", R"({"top_p":7})", true));
  requests.push_back(Request("", "no id", R"({"max_tokens":1})", true));
  auto answers = Stream(requests);
  EXPECT_EQ(answers.size(), 22u);
  for (int i = 0; i < 20; ++i) {
    const auto& own = answers[absl::StrCat("r", i)];
    std::string text;
    for (const auto& answer : own) text += TextOf(answer.infer_response());
    EXPECT_EQ(text, (i % 2 == 0 ? "" : "x") + std::string(kText).substr(0, 2 + i)) << i;
    EXPECT_TRUE(IsFinal(own.back().infer_response()));
  }
  ASSERT_EQ(answers["bad"].size(), 1u);
  EXPECT_THAT(answers["bad"][0].error_message(), HasSubstr("INVALID_ARGUMENT: "));
  EXPECT_TRUE(IsFinal(answers["bad"][0].infer_response()));
}

TEST_F(KServeTest, ACancelledCallEndsItsRequests) {
  Script script;
  script.pause = Pause::kInDecode;
  StartWithWorkers(script);
  grpc::ClientContext context;
  auto stream = stub_->ModelStreamInfer(&context);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(stream->Write(Request(id, "x", R"({"max_tokens":20})", true)));
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  grpc::ClientContext one;
  std::thread unary([&] {
    ModelInferResponse ignored;
    EXPECT_EQ(stub_->ModelInfer(&one, Request("", "x", R"({"max_tokens":20})"), &ignored).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  ASSERT_TRUE(Eventually([&] { return router_->requests_in_flight() == 4; }));
  context.TryCancel();
  one.TryCancel();
  unary.join();
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
}

TEST_F(KServeTest, ATimeoutInMicrosecondsIsTheRequestsDeadline) {
  Script script;
  script.pause = Pause::kInDecode;
  StartWithWorkers(script);
  ModelInferRequest request = Request("t", "x", R"({"max_tokens":20})");
  (*request.mutable_parameters())["timeout"].set_int64_param(200000);
  ModelInferResponse response;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Infer(request, &response)));
  auto answers = Stream({request})["t"];
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0].error_message(), HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(KServeTest, KeysAreAskedForHereToo) {
  const std::string keys = model_path_ + ".keys";
  std::ofstream(keys) << "sk-alice-0123456789 alice\n";
  config_.set_api_keys_file(keys);
  StartWithWorkers();
  ModelInferResponse response;
  EXPECT_TRUE(absl::IsUnauthenticated(Infer(Request("", "x", R"({"max_tokens":2})"), &response)));
  grpc::ClientContext c1, c2;
  ModelStreamInferResponse answer;
  auto refused = stub_->ModelStreamInfer(&c1);
  EXPECT_FALSE(refused->Read(&answer));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  c2.AddMetadata("authorization", "Bearer sk-alice-0123456789");
  EXPECT_TRUE(stub_->ModelInfer(&c2, Request("", "x", R"({"max_tokens":2})"), &response).ok());
  std::remove(keys.c_str());
}

}  // namespace
}  // namespace baton::router
