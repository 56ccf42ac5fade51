// Bad requests through the front door: each a typed error with the limit in it; the cluster lives and holds nothing.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

struct BadRequest {
  std::string name;
  std::function<void(v1::GenerateRequest*)> spoil;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
  std::string says;  // must be in the message
};

std::vector<BadRequest> Corpus() {
  using R = v1::GenerateRequest;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  return {
      {"empty prompt", [](R* r) { r->set_prompt(""); }, grpc::StatusCode::INVALID_ARGUMENT, "prompt"},
      {"no input", [](R* r) { r->clear_input(); }, grpc::StatusCode::INVALID_ARGUMENT, ""},
      {"no token ids", [](R* r) { r->mutable_token_ids(); }, grpc::StatusCode::INVALID_ARGUMENT, "token_ids"},
      {"token id beyond the vocabulary", [](R* r) { r->mutable_token_ids()->add_ids(49152); },
       grpc::StatusCode::INVALID_ARGUMENT, "49152"},
      {"negative token id", [](R* r) { r->mutable_token_ids()->add_ids(-1); }, grpc::StatusCode::INVALID_ARGUMENT, "-1"},
      {"prompt over the limit",
       [](R* r) {
         for (int i = 0; i < 9000; ++i) r->mutable_token_ids()->add_ids(100);
       },
       grpc::StatusCode::INVALID_ARGUMENT, "9000"},
      {"no messages", [](R* r) { r->mutable_chat(); }, grpc::StatusCode::INVALID_ARGUMENT, "messages"},
      {"unknown model", [](R* r) { r->set_model("gpt-17"); }, grpc::StatusCode::NOT_FOUND, "gpt-17"},
      {"temperature NaN", [=](R* r) { r->mutable_sampling()->set_temperature(nan); },
       grpc::StatusCode::INVALID_ARGUMENT, "temperature"},
      {"temperature negative", [](R* r) { r->mutable_sampling()->set_temperature(-0.5f); },
       grpc::StatusCode::INVALID_ARGUMENT, "temperature"},
      {"temperature infinite", [=](R* r) { r->mutable_sampling()->set_temperature(inf); },
       grpc::StatusCode::INVALID_ARGUMENT, "temperature"},
      {"top_p zero", [](R* r) { r->mutable_sampling()->set_top_p(0); }, grpc::StatusCode::INVALID_ARGUMENT, "top_p"},
      {"top_k below -1", [](R* r) { r->mutable_sampling()->set_top_k(-2); }, grpc::StatusCode::INVALID_ARGUMENT, "top_k"},
      {"min_p over one", [](R* r) { r->mutable_sampling()->set_min_p(1.5f); }, grpc::StatusCode::INVALID_ARGUMENT, "min_p"},
      {"repetition_penalty zero", [](R* r) { r->mutable_sampling()->set_repetition_penalty(0); },
       grpc::StatusCode::INVALID_ARGUMENT, "repetition_penalty"},
      {"presence_penalty huge", [](R* r) { r->mutable_sampling()->set_presence_penalty(3); },
       grpc::StatusCode::INVALID_ARGUMENT, "presence_penalty"},
      {"frequency_penalty NaN", [=](R* r) { r->mutable_sampling()->set_frequency_penalty(nan); },
       grpc::StatusCode::INVALID_ARGUMENT, "frequency_penalty"},
      {"max_tokens zero", [](R* r) { r->mutable_sampling()->set_max_tokens(0); }, grpc::StatusCode::INVALID_ARGUMENT,
       "max_tokens"},
      {"max_tokens negative", [](R* r) { r->mutable_sampling()->set_max_tokens(std::numeric_limits<int32_t>::min()); },
       grpc::StatusCode::INVALID_ARGUMENT, "max_tokens"},
      {"min over max",
       [](R* r) {
         r->mutable_sampling()->set_max_tokens(4);
         r->mutable_sampling()->set_min_tokens(5);
       },
       grpc::StatusCode::INVALID_ARGUMENT, "min_tokens"},
      {"n zero", [](R* r) { r->mutable_sampling()->set_n(0); }, grpc::StatusCode::INVALID_ARGUMENT, "n"},
      {"n of a billion", [](R* r) { r->mutable_sampling()->set_n(1000000000); }, grpc::StatusCode::INVALID_ARGUMENT, "16"},
      {"logprobs 21", [](R* r) { r->mutable_sampling()->set_logprobs(21); }, grpc::StatusCode::INVALID_ARGUMENT, "logprobs"},
      {"logit_bias of an unknown id", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[49152] = 1; },
       grpc::StatusCode::INVALID_ARGUMENT, "logit_bias"},
      {"logit_bias NaN", [=](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = nan; },
       grpc::StatusCode::INVALID_ARGUMENT, "logit_bias"},
      {"empty stop string", [](R* r) { r->mutable_sampling()->add_stop(""); }, grpc::StatusCode::INVALID_ARGUMENT, "stop"},
      {"stop string too long", [](R* r) { r->mutable_sampling()->add_stop(std::string(257, 'a')); },
       grpc::StatusCode::INVALID_ARGUMENT, "256"},
      {"too many stop strings",
       [](R* r) {
         for (int i = 0; i < 17; ++i) r->mutable_sampling()->add_stop("x");
       },
       grpc::StatusCode::INVALID_ARGUMENT, "16"},
      {"stop id beyond the vocabulary", [](R* r) { r->mutable_sampling()->add_stop_token_ids(1 << 30); },
       grpc::StatusCode::INVALID_ARGUMENT, "stop_token_ids"},
      {"request id with control characters", [](R* r) { r->set_request_id("a\nb"); }, grpc::StatusCode::INVALID_ARGUMENT,
       "request_id"},
      {"request id too long", [](R* r) { r->set_request_id(std::string(129, 'a')); }, grpc::StatusCode::INVALID_ARGUMENT,
       "128"},
  };
}

TEST(BadInputTest, EachIsATypedErrorAndNothingLeaks) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const BadRequest& bad : Corpus()) {
    SCOPED_TRACE(bad.name);
    v1::GenerateRequest request;
    request.set_prompt("Hello");
    request.mutable_sampling()->set_max_tokens(4);
    bad.spoil(&request);
    Generation g = (*cluster)->Generate(request, absl::Seconds(20));
    EXPECT_EQ(g.status.error_code(), bad.code) << g.status.error_message();
    EXPECT_NE(g.status.error_message().find(bad.says), std::string::npos) << g.status.error_message();
    EXPECT_TRUE(g.choices[0].token_ids.empty());
  }
  // Alive, and still exact.
  v1::GenerateRequest good;
  good.set_prompt("The capital of France is");
  good.mutable_sampling()->set_max_tokens(4);
  good.mutable_sampling()->set_temperature(0);
  Generation g = (*cluster)->Generate(good);
  EXPECT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_TRUE((*cluster)->WaitQuiet(absl::Seconds(10)).ok());
}

// A field of type string carries UTF-8 by protobuf's rules; raw bytes below the generated code get around that.
TEST(BadInputTest, InvalidUtf8IsRefused) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::GenerateRequest request;
  request.set_prompt("abc\xff\xfe");
  request.mutable_sampling()->set_max_tokens(4);
  Generation g = (*cluster)->Generate(request, absl::Seconds(20));
  EXPECT_FALSE(g.status.ok());
  EXPECT_TRUE((*cluster)->WaitQuiet(absl::Seconds(10)).ok());
}

}  // namespace
}  // namespace baton::e2e
