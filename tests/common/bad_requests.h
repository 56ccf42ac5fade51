// Requests that every front door must refuse, with the code and a part of the message. The table is shared by the tests
// of all doors.
#ifndef BATON_TESTS_COMMON_BAD_REQUESTS_H_
#define BATON_TESTS_COMMON_BAD_REQUESTS_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/validate_request.h"
#include "proto/inference.pb.h"

namespace baton::testing {

struct BadRequest {
  std::string name;
  std::function<void(v1::GenerateRequest*)> spoil;  // a valid request with a text prompt
  std::string field;                                // path of the violation; "" for NOT_FOUND
  std::string says;                                 // part of the message
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

// `limits`: of the model behind the door. Nothing here needs a tokenizer.
inline std::vector<BadRequest> BadRequests(const ModelLimits& limits) {
  using R = v1::GenerateRequest;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const int32_t vocab = limits.vocab_size;
  const std::string v = std::to_string(vocab);
  std::vector<BadRequest> bad = {
      {"no input", [](R* r) { r->clear_input(); }, "input", "send prompt, token_ids or chat"},
      {"empty prompt", [](R* r) { r->set_prompt(""); }, "prompt", "empty"},
      {"no token ids", [](R* r) { r->mutable_token_ids(); }, "token_ids.ids", "empty"},
      {"negative id",
       [](R* r) {
         r->mutable_token_ids()->add_ids(0);
         r->mutable_token_ids()->add_ids(-1);
       },
       "token_ids.ids[1]", "token id -1 is not in [0, " + v + ")"},
      {"id beyond the vocabulary", [=](R* r) { r->mutable_token_ids()->add_ids(vocab); }, "token_ids.ids[0]", v},
      {"prompt not UTF-8", [](R* r) { r->set_prompt("ab\xff"); }, "prompt", "not valid UTF-8 at byte 2"},
      {"prompt ends inside a code point", [](R* r) { r->set_prompt("abc\xe2\x82"); }, "prompt", "at byte 3"},
      {"surrogate", [](R* r) { r->set_prompt("\xed\xa0\x80"); }, "prompt", "at byte 0"},
      {"overlong", [](R* r) { r->set_prompt("a\xc0\xaf"); }, "prompt", "at byte 1"},
      {"no messages", [](R* r) { r->mutable_chat(); }, "chat.messages", "empty"},
      {"too many messages",
       [](R* r) {
         for (int i = 0; i < 4097; ++i) r->mutable_chat()->add_messages()->set_role("user");
       },
       "chat.messages", "at most 4096"},
      {"unknown role",
       [](R* r) {
         r->mutable_chat()->add_messages()->set_role("user");
         r->mutable_chat()->add_messages()->set_role("root");
       },
       "chat.messages[1].role", "\"root\" is not one of"},
      {"message not UTF-8",
       [](R* r) {
         auto* m = r->mutable_chat()->add_messages();
         m->set_role("user");
         m->set_content("\x80");
       },
       "chat.messages[0].content", "at byte 0"},
      {"unknown model", [](R* r) { r->set_model("gpt-17"); }, "",
       "\"gpt-17\" is not served; served: ", absl::StatusCode::kNotFound},
      {"model with control characters", [](R* r) { r->set_model("a\n\x1b[31m"); }, "", "\"a??[31m\"",
       absl::StatusCode::kNotFound},
      {"long request id", [](R* r) { r->set_request_id(std::string(129, 'a')); }, "request_id", "at most 128"},
      {"request id with a line end", [](R* r) { r->set_request_id("a\nb"); }, "request_id", "byte 1"},
      {"request id not ASCII", [](R* r) { r->set_request_id("\xc3\xa4"); }, "request_id", "byte 0"},
      {"min over max",
       [](R* r) {
         r->mutable_sampling()->set_max_tokens(4);
         r->mutable_sampling()->set_min_tokens(5);
       },
       "sampling.min_tokens", "5 is more than max_tokens, which is 4"},
      {"empty stop", [](R* r) { r->mutable_sampling()->add_stop(""); }, "sampling.stop[0]", "empty"},
      {"long stop", [](R* r) { r->mutable_sampling()->add_stop(std::string(257, 'a')); }, "sampling.stop[0]",
       "257 bytes; at most 256"},
      {"stop not UTF-8", [](R* r) { r->mutable_sampling()->add_stop("\xf8"); }, "sampling.stop[0]", "at byte 0"},
      {"many stops",
       [](R* r) {
         for (int i = 0; i < 17; ++i) r->mutable_sampling()->add_stop("x");
       },
       "sampling.stop", "17 strings; at most 16"},
      {"stop id beyond", [=](R* r) { r->mutable_sampling()->add_stop_token_ids(vocab); }, "sampling.stop_token_ids[0]",
       v},
      {"many stop ids",
       [](R* r) {
         for (int i = 0; i < 129; ++i) r->mutable_sampling()->add_stop_token_ids(1);
       },
       "sampling.stop_token_ids", "at most 128"},
      {"bias beyond", [=](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[vocab] = 1; }, "sampling.logit_bias",
       v},
      {"bias of a negative id", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[-7] = 1; },
       "sampling.logit_bias", "token id -7"},
      {"bias NaN", [=](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = nan; }, "sampling.logit_bias[5]",
       "[-100, 100]"},
      {"bias huge", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = 101; }, "sampling.logit_bias[5]",
       "101 is not in"},
  };
  struct FloatField {
    const char* name;
    void (v1::SamplingParams::*set)(float);
    std::vector<float> wrong;
  };
  const FloatField floats[] = {
      {"temperature", &v1::SamplingParams::set_temperature, {-0.5f, 100.5f}},
      {"top_p", &v1::SamplingParams::set_top_p, {0, -0.1f, 1.01f}},
      {"min_p", &v1::SamplingParams::set_min_p, {-0.1f, 1.5f}},
      {"repetition_penalty", &v1::SamplingParams::set_repetition_penalty, {0, -1, 101}},
      {"presence_penalty", &v1::SamplingParams::set_presence_penalty, {-2.5f, 3}},
      {"frequency_penalty", &v1::SamplingParams::set_frequency_penalty, {-2.5f, 3}},
  };
  for (const FloatField& field : floats) {
    std::vector<float> wrong = field.wrong;
    for (const float always : {nan, inf, -inf, std::numeric_limits<float>::max()}) wrong.push_back(always);
    for (const float value : wrong) {
      bad.push_back({std::string(field.name) + " " + std::to_string(value),
                     [=](R* r) { (r->mutable_sampling()->*field.set)(value); }, std::string("sampling.") + field.name,
                     "is not in "});
    }
  }
  struct IntField {
    const char* name;
    void (v1::SamplingParams::*set)(int32_t);
    std::vector<int32_t> wrong;
  };
  const IntField ints[] = {
      {"top_k", &v1::SamplingParams::set_top_k, {-2, INT32_MIN}},
      {"max_tokens", &v1::SamplingParams::set_max_tokens, {0, -1, INT32_MIN}},
      {"min_tokens", &v1::SamplingParams::set_min_tokens, {-1, INT32_MIN}},
      {"logprobs", &v1::SamplingParams::set_logprobs, {-1, 21, INT32_MAX}},
      {"n", &v1::SamplingParams::set_n, {0, -1, 17, INT32_MAX}},
  };
  for (const IntField& field : ints) {
    for (const int32_t value : field.wrong) {
      bad.push_back({std::string(field.name) + " " + std::to_string(value),
                     [=](R* r) { (r->mutable_sampling()->*field.set)(value); }, std::string("sampling.") + field.name,
                     std::to_string(value) + " is not in ["});
    }
  }
  return bad;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_COMMON_BAD_REQUESTS_H_
