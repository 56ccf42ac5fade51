#include "common/validate_request.h"

#include <gtest/gtest.h>

#include "common/status.h"
#include "tests/common/bad_requests.h"

namespace baton {
namespace {

const ModelLimits kLimits = {1000, 512, {"tiny"}};

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  request.set_prompt("Hello, \xf0\x9f\x8c\x8d");
  return request;
}

TEST(ValidateRequestTest, BadRequestsNameFieldAndLimit) {
  for (const testing::BadRequest& bad : testing::BadRequests(kLimits)) {
    v1::GenerateRequest request = Good();
    bad.spoil(&request);
    const absl::Status status = ValidateGenerateRequest(request, kLimits);
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    EXPECT_EQ(FieldOf(status), bad.field) << bad.name << ": " << status;
    EXPECT_NE(std::string(status.message()).find(bad.says), std::string::npos) << bad.name << ": " << status;
    EXPECT_LT(status.message().size(), 500u) << bad.name;
  }
}

TEST(ValidateRequestTest, TheEdgesOfEachRangeAreGood) {
  v1::GenerateRequest request = Good();
  auto* s = request.mutable_sampling();
  for (const bool low : {true, false}) {
    s->set_temperature(low ? 0 : 100);
    s->set_top_p(low ? 1e-6f : 1);
    s->set_top_k(low ? -1 : INT32_MAX);
    s->set_min_p(low ? 0 : 1);
    s->set_repetition_penalty(low ? 1e-6f : 100);
    s->set_presence_penalty(low ? -2 : 2);
    s->set_frequency_penalty(low ? -2 : 2);
    s->set_max_tokens(low ? 1 : INT32_MAX);
    s->set_min_tokens(low ? 0 : INT32_MAX);
    s->set_logprobs(low ? 0 : 20);
    s->set_n(low ? 1 : 16);
    s->clear_stop();
    for (int i = 0; i < (low ? 1 : 16); ++i) s->add_stop(std::string(low ? 1 : 256, 'a'));
    s->clear_stop_token_ids();
    for (int i = 0; i < (low ? 1 : 128); ++i) s->add_stop_token_ids(low ? 0 : 999);
    (*s->mutable_logit_bias())[low ? 0 : 999] = low ? -100 : 100;
    request.set_request_id(std::string(low ? 0 : 128, '~'));
    request.set_model(low ? "" : "tiny");
    const absl::Status status = ValidateGenerateRequest(request, kLimits);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ValidateRequestTest, SeveralModelsNeedAName) {
  const ModelLimits two = {1000, 512, {"a", "b"}};
  EXPECT_EQ(FieldOf(ValidateGenerateRequest(Good(), two)), "model");
}

TEST(ValidateRequestTest, PromptLengthNamesBothNumbers) {
  const v1::SamplingParams none;
  EXPECT_TRUE(ValidatePromptLength(511, none, kLimits).ok());
  const absl::Status over = ValidatePromptLength(512, none, kLimits);
  EXPECT_EQ(over.message(), "prompt: 512 tokens; with one token of output the limit is 511 (context of 512)");
  EXPECT_FALSE(ValidatePromptLength(0, none, kLimits).ok());
  v1::SamplingParams min;
  min.set_min_tokens(13);
  EXPECT_TRUE(ValidatePromptLength(499, min, kLimits).ok());
  EXPECT_EQ(FieldOf(ValidatePromptLength(500, min, kLimits)), "sampling.min_tokens");
}

TEST(ValidateRequestTest, DefaultsAreTheSchemas) {
  const v1::SamplingParams s = ResolveDefaults({}, 12, 77, kLimits);
  EXPECT_EQ(s.temperature(), 1);
  EXPECT_EQ(s.top_p(), 1);
  EXPECT_EQ(s.top_k(), 0);
  EXPECT_EQ(s.min_p(), 0);
  EXPECT_EQ(s.repetition_penalty(), 1);
  EXPECT_EQ(s.seed(), 77u);
  EXPECT_EQ(s.max_tokens(), 500);
  EXPECT_EQ(s.n(), 1);
  EXPECT_FALSE(s.has_logprobs());
  v1::SamplingParams given;
  given.set_seed(5);
  given.set_max_tokens(1 << 30);
  given.set_top_k(-1);
  const v1::SamplingParams kept = ResolveDefaults(given, 12, 77, kLimits);
  EXPECT_EQ(kept.seed(), 5u);
  EXPECT_EQ(kept.max_tokens(), 500);
  EXPECT_EQ(kept.top_k(), 0);
}

TEST(ValidateRequestTest, Utf8AgreesWithTheStandardsTable) {
  EXPECT_EQ(FirstInvalidUtf8(""), -1);
  EXPECT_EQ(FirstInvalidUtf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), -1);
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x8f\xbf\xbf"), -1);  // U+10FFFF
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x90\x80\x80"), 0);   // beyond it
  EXPECT_EQ(FirstInvalidUtf8("ab\xe0\x9f\xbf"), 2);     // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xf0\x8f\xbf\xbf"), 0);   // overlong
  EXPECT_EQ(FirstInvalidUtf8("a\xc3"), 1);              // cut
  EXPECT_EQ(FirstInvalidUtf8("\xc3("), 0);
  EXPECT_EQ(FirstInvalidUtf8(absl::string_view("a\0b", 3)), -1);
}

}  // namespace
}  // namespace baton
