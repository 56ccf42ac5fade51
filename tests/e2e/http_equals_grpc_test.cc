// The same request through both doors gives the same tokens, texts and counts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

using Json = nlohmann::ordered_json;
using testing::HttpReply;
using testing::RawHttp;

struct Choice {
  std::vector<int32_t> ids;
  std::string text;
  std::string finish;
  bool operator==(const Choice&) const = default;
};

std::string Name(v1::FinishReason reason) { return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop"; }

std::vector<Choice> FromWhole(const Json& answer, bool chat) {
  std::vector<Choice> choices;
  for (const Json& c : answer["choices"]) {
    choices.push_back({c["token_ids"], chat ? c["message"]["content"] : c["text"], c["finish_reason"]});
  }
  return choices;
}

std::vector<Choice> FromStream(const HttpReply& reply, bool chat, size_t n) {
  std::vector<Choice> choices(n);
  for (const std::string& chunk : reply.chunks) {
    const Json event = Json::parse(chunk.substr(6), nullptr, false);
    if (event.is_discarded()) continue;  // [DONE]
    const Json& c = event["choices"][0];
    Choice& choice = choices.at(c["index"]);
    choice.text += chat ? c["delta"].value("content", "") : c["text"].get<std::string>();
    for (const Json& id : c.value("token_ids", Json::array())) choice.ids.push_back(id);
    if (!c["finish_reason"].is_null()) choice.finish = c["finish_reason"];
  }
  return choices;
}

TEST(HttpEqualsGrpcTest, TokensTextsAndCounts) {
  const ModelUnderTest model = ChooseModel();
  auto cluster = Cluster::Start({.model = model.path, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string& http = (*cluster)->router_http();
  const int port = std::atoi(http.c_str() + http.rfind(':') + 1);
  RawHttp client(port);
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const bool chat = i % 2 == 0;
    v1::GenerateRequest request;
    Json body = {{"return_token_ids", true}};
    const std::string words = absl::StrCat("Count to ", i + 3, ", slowly: one,");
    if (chat) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role("user");
      message->set_content(words);
      body["messages"] = {{{"role", "user"}, {"content", words}}};
    } else {
      request.set_prompt(words);
      body["prompt"] = words;
    }
    v1::SamplingParams* s = request.mutable_sampling();
    s->set_seed(1000 + i);
    s->set_temperature(i < 2 ? 0.0f : 1.25f);
    s->set_top_p(0.75f);
    s->set_top_k(i == 3 ? 5 : 0);
    s->set_max_tokens(10 + i);
    s->set_n(1 + i % 3);
    s->set_repetition_penalty(1.25f);
    s->add_stop("e,");
    body["seed"] = s->seed();
    body["temperature"] = s->temperature();
    body["top_p"] = s->top_p();
    body["top_k"] = s->top_k();
    body["max_tokens"] = s->max_tokens();
    body["n"] = s->n();
    body["repetition_penalty"] = s->repetition_penalty();
    body["stop"] = "e,";
    const Generation native = (*cluster)->Generate(request);
    ASSERT_TRUE(native.status.ok()) << native.status.error_message();
    std::vector<Choice> expected;
    for (const Generation::Choice& c : native.choices)
      expected.push_back({c.token_ids, c.text, Name(c.finished.reason())});
    const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
    const HttpReply whole = client.Ask("POST", path, body.dump());
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json answer = Json::parse(whole.body);
    EXPECT_EQ(FromWhole(answer, chat), expected);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], native.summary.usage().prompt_tokens());
    EXPECT_EQ(answer["usage"]["completion_tokens"], native.summary.usage().completion_tokens());
    body["stream"] = true;
    const HttpReply stream = client.Ask("POST", path, body.dump());
    ASSERT_EQ(stream.status, 200) << stream.body;
    EXPECT_EQ(FromStream(stream, chat, expected.size()), expected);
  }
  EXPECT_TRUE((*cluster)->WaitQuiet(absl::Seconds(20)).ok());
}

}  // namespace
}  // namespace baton::e2e
