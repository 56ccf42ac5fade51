// The corpus of bad requests, and what only JSON can get wrong, through the HTTP door.
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tests/common/bad_requests.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

// Raw bytes, UTF-8 or not.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += absl::StrFormat("\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Number(float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return absl::StrFormat("%.9g", value);
}

// The request in OpenAI's words.
std::string BodyOf(const v1::GenerateRequest& r) {
  std::vector<std::string> members;
  const auto add = [&](const std::string& name, const std::string& value) {
    members.push_back("\"" + name + "\":" + value);
  };
  if (!r.model().empty()) add("model", Quoted(r.model()));
  if (r.has_chat()) {
    std::string list;
    for (const v1::ChatMessage& m : r.chat().messages()) {
      list += std::string(list.empty() ? "" : ",") + "{\"role\":" + Quoted(m.role()) +
              ",\"content\":" + Quoted(m.content()) + "}";
    }
    add("messages", "[" + list + "]");
  } else if (r.has_token_ids()) {
    std::string list;
    for (const int32_t id : r.token_ids().ids()) list += (list.empty() ? "" : ",") + std::to_string(id);
    add("prompt", "[" + list + "]");
  } else if (r.input_case() == v1::GenerateRequest::kPrompt) {
    add("prompt", Quoted(r.prompt()));
  }
  const v1::SamplingParams& s = r.sampling();
  if (s.has_temperature()) add("temperature", Number(s.temperature()));
  if (s.has_top_p()) add("top_p", Number(s.top_p()));
  if (s.has_top_k()) add("top_k", std::to_string(s.top_k()));
  if (s.has_min_p()) add("min_p", Number(s.min_p()));
  if (s.has_repetition_penalty()) add("repetition_penalty", Number(s.repetition_penalty()));
  if (s.has_presence_penalty()) add("presence_penalty", Number(s.presence_penalty()));
  if (s.has_frequency_penalty()) add("frequency_penalty", Number(s.frequency_penalty()));
  if (s.has_max_tokens()) add("max_tokens", std::to_string(s.max_tokens()));
  if (s.has_min_tokens()) add("min_tokens", std::to_string(s.min_tokens()));
  if (s.has_logprobs()) add("logprobs", std::to_string(s.logprobs()));
  if (s.has_n()) add("n", std::to_string(s.n()));
  std::string stops, ids, bias;
  for (const std::string& stop : s.stop()) stops += std::string(stops.empty() ? "" : ",") + Quoted(stop);
  for (const int32_t id : s.stop_token_ids()) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  for (const auto& [id, value] : s.logit_bias()) {
    bias += std::string(bias.empty() ? "" : ",") + "\"" + std::to_string(id) + "\":" + Number(value);
  }
  if (!stops.empty()) add("stop", "[" + stops + "]");
  if (!ids.empty()) add("stop_token_ids", "[" + ids + "]");
  if (!bias.empty()) add("logit_bias", "{" + bias + "}");
  std::string body;
  for (const std::string& member : members) body += (body.empty() ? "" : ",") + member;
  return "{" + body + "}";
}

class BadHttpRequestsTest : public HttpFixture {
 protected:
  void SetUp() override {
    HttpFixture::SetUp();
    StartRouter();
    AddWorker("p0", "prefill");
    AddWorker("d0", "decode");
  }
  void ExpectAlive() {
    const HttpReply reply = Complete({});
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(workers_[0]->calls(), 1) << "a bad request reached a worker";
  }
};

TEST_F(BadHttpRequestsTest, TheCorpusOfAllDoors) {
  ModelLimits limits;
  limits.vocab_size = 280;
  limits.max_context = 512;
  limits.model_names = {"tiny"};
  RawHttp client(port());
  int judged_by_validator = 0;
  for (const testing::BadRequest& bad : testing::BadRequests(limits)) {
    if (bad.field == "request_id") continue;  // a header here, and a bad one is replaced
    SCOPED_TRACE(bad.name);
    v1::GenerateRequest request;
    request.set_prompt("hello");
    bad.spoil(&request);
    const std::string body = BodyOf(request);
    const std::string path = request.has_chat() ? "/v1/chat/completions" : "/v1/completions";
    const HttpReply reply = client.Ask("POST", path, body);
    EXPECT_EQ(reply.status, bad.code == absl::StatusCode::kNotFound ? 404 : 400) << reply.body;
    const Json error = Parse(reply)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    ASSERT_TRUE(error["message"].is_string());
    // What JSON cannot say is refused before anybody looks at fields.
    if (error["param"].is_null() && bad.code != absl::StatusCode::kNotFound) {
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("not valid JSON"));
      continue;
    }
    ++judged_by_validator;
    EXPECT_EQ(error["message"].get<std::string>().find("sampling."), std::string::npos);
    if (bad.code == absl::StatusCode::kNotFound) {
      EXPECT_EQ(error["code"], "model_not_found");
    }
    if (bad.name != "no input" && bad.name != "no token ids") {
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.says));
    }
  }
  EXPECT_GT(judged_by_validator, 50);
  ExpectAlive();
}

TEST_F(BadHttpRequestsTest, WhatOnlyJsonGetsWrong) {
  struct Case {
    const char* body;
    const char* param;  // nullptr: none
    const char* says;
  };
  const char* kChat = "/v1/chat/completions";
  const char* kText = "/v1/completions";
  const std::vector<std::pair<const char*, Case>> cases = {
      {kText, {"", nullptr, "not valid JSON"}},
      {kText, {"[]", nullptr, "must be a JSON object"}},
      {kText, {"{\"prompt\":\"a\"", nullptr, "not valid JSON"}},
      {kText, {"{\"prompt\":1}", "prompt", "must be a string"}},
      {kText, {"{\"prompt\":[\"a\",1]}", "prompt", "must be a string"}},
      {kText, {"{\"prompt\":[1.5]}", "prompt", "must be a string"}},
      {kText, {"{\"prompt\":[4294967296]}", "prompt", "must be a string"}},
      {kText, {"{\"prompt\":[]}", "prompt", "empty"}},
      {kText, {"{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature", "must be a number, and is of type string"}},
      {kText, {"{\"prompt\":\"a\",\"temperature\":true}", "temperature", "must be a number"}},
      {kText, {"{\"prompt\":\"a\",\"max_tokens\":1.5}", "max_tokens", "must be an integer"}},
      {kText, {"{\"prompt\":\"a\",\"max_tokens\":4294967297}", "max_tokens", "is not in"}},
      {kText, {"{\"prompt\":\"a\",\"max_tokens\":18446744073709551615}", "max_tokens", "is larger than"}},
      {kText, {"{\"prompt\":\"a\",\"stream\":\"yes\"}", "stream", "true or false"}},
      {kText, {"{\"prompt\":\"a\",\"stop\":{}}", "stop", "a string or a list"}},
      {kText, {"{\"prompt\":\"a\",\"stop\":[1]}", "stop", "a string or a list"}},
      {kText, {"{\"prompt\":\"a\",\"logit_bias\":[1]}", "logit_bias", "must be an object"}},
      {kText, {"{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", "token ids"}},
      {kText, {"{\"prompt\":\"a\",\"logit_bias\":{\"1\":\"y\"}}", "logit_bias", "numbers"}},
      {kText, {"{\"prompt\":\"a\",\"model\":7}", "model", "must be a string"}},
      {kText, {"{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", "not supported"}},
      {kText, {"{\"prompt\":\"a\",\"best_of\":2}", "best_of", "equal to n"}},
      {kText, {"{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", "echo", "logprobs"}},
      {kText, {"{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}", "stream_options", "stream: true"}},
      {kText, {"{\"prompt\":\"a\",\"guided_regex\":7}", "guided_regex", "must be a string"}},
      {kText, {"{\"prompt\":\"a\",\"guided_regex\":\"foo**\"}", "guided_regex", "nothing to repeat"}},
      {kText, {"{\"prompt\":\"a\",\"guided_regex\":\"(a{1000}){1000}\"}", "guided_regex", "too big"}},
      {kText, {"{\"prompt\":\"a\",\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]}", "guided_choice", "together with"}},
      {kText, {"{\"prompt\":\"a\",\"guided_choice\":[]}", "guided_choice", "empty list"}},
      {kText, {"{\"prompt\":\"a\",\"guided_choice\":[1]}", "guided_choice", "list of strings"}},
      {kText, {"{\"prompt\":\"a\",\"guided_json\":\"{\"}", "guided_json", "not valid JSON"}},
      {kText, {"{\"prompt\":\"a\",\"guided_json\":[]}", "guided_json", "must be a JSON Schema"}},
      {kText, {"{\"prompt\":\"a\",\"guided_json\":{\"$ref\":\"#\"}}", "guided_json", "refers to itself"}},
      {kText, {"{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"(\"}}", "structured_outputs.regex", ""}},
      {kText, {"{\"prompt\":\"a\",\"guided_grammar\":\"start: x\"}", "guided_grammar", "expected a rule"}},
      {kText, {"{\"prompt\":\"a\",\"structured_outputs\":{\"structural_tag\":\"x\"}}", "structured_outputs.structural_tag", "not supported"}},
      {kText, {"{\"prompt\":\"a\",\"structured_outputs\":{\"structural_tag\":\"x\"}}", "structured_outputs.structural_tag", "not supported"}},
      {kText, {"{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\"},\"ignore_eos\":true}", "ignore_eos", "contradicts"}},
      {kText, {"{\"prompt\":\"a\",\"cache_salt\":\"s\"}", "cache_salt", "not supported"}},
      {kText, {"{\"prompt\":\"a\",\"n\":1000000000}", "n", "is not in [1, 16]"}},
      {kChat, {"{}", "messages", "is missing"}},
      {kChat, {"{\"messages\":{}}", "messages", "must be an array"}},
      {kChat, {"{\"messages\":[1]}", "messages[0]", "must be an object"}},
      {kChat, {"{\"messages\":[{\"role\":1}]}", "messages[0].role", "must be a string"}},
      {kChat, {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content", "string or a list"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content[0]",
        "images"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", "top_logprobs", "needs logprobs"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs",
        "[0, 20]"}},
      {kChat, {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":1}", "logprobs", "true or false"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_schema\"}}",
        "response_format.json_schema.schema", "must be a JSON Schema"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
        "{\"name\":\"n\",\"schema\":{\"properties\":{\"a\":{\"uniqueItems\":true}}}}}}",
        "response_format.json_schema.schema", "/properties/a: \"uniqueItems\" is not supported"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"xml\"}}", "response_format.type",
        "json_object"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_object\"},\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}}]}", "tools", "response_format"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\"}", "tool_choice",
        "there are no tools"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{}}]}",
        "tools[0].function.name", "must be a string"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
        "tool_choice.function.name", "one of tools"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"not\":{}}}}}}],\"tool_choice\":\"required\"}",
        "tools", "\"not\" is not supported"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":\"f\"}}],\"tool_choice\":\"always\"}",
        "tool_choice", "must be none, auto, required"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template\":\"x\"}", "chat_template",
        "not supported"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"messages\":1}}",
        "chat_template_kwargs", "list of those allowed"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
        "messages[0].tool_calls", "only an assistant"}},
      {kChat,
       {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1\"}}]}]"
        "}",
        "messages[0].tool_calls[0].function.arguments", "not valid JSON"}},
  };
  RawHttp client(port());
  for (const auto& [path, c] : cases) {
    SCOPED_TRACE(c.body);
    const HttpReply reply = client.Ask("POST", path, c.body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json error = Parse(reply)["error"];
    EXPECT_EQ(error["param"], c.param == nullptr ? Json(nullptr) : Json(c.param));
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.says));
    EXPECT_TRUE(reply.headers.count("x-request-id") > 0);
  }
  ExpectAlive();
}

TEST_F(BadHttpRequestsTest, APromptOverTheContextSaysBothNumbers) {
  Json prompt = Json::array();
  for (int i = 0; i < 600; ++i) prompt.push_back(1);
  const HttpReply reply = Complete({{"prompt", prompt}});
  EXPECT_EQ(reply.status, 400);
  const Json error = Parse(reply)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("600 tokens"));
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("512"));
  EXPECT_EQ(Parse(Complete({{"prompt", std::string(100000, 'x')}}))["error"]["code"], "context_length_exceeded");
  ExpectAlive();
}

TEST_F(BadHttpRequestsTest, BombsEndQuickly) {
  RawHttp client(port());
  std::string deep = "{\"prompt\":" + std::string(3 << 20, '[');
  EXPECT_EQ(client.Ask("POST", "/v1/completions", deep).status, 400);
  std::string wide = "{\"prompt\":\"a\",\"logit_bias\":{";
  for (int i = 0; i < 300000; ++i) absl::StrAppend(&wide, i > 0 ? "," : "", "\"", i, "\":1");
  EXPECT_EQ(client.Ask("POST", "/v1/completions", wide + "}}").status, 400);
  std::string many = "{\"messages\":[";
  for (int i = 0; i < 100000; ++i) many += "{\"role\":\"user\",\"content\":\"a\"},";
  EXPECT_EQ(client.Ask("POST", "/v1/chat/completions", many + "{}]}").status, 400);
  RawHttp other(port());
  EXPECT_EQ(other.Ask("POST", "/v1/completions", std::string((8 << 20) + 1, ' ')).status, 413);
  ExpectAlive();
}

// A page of any origin may post a form; only one that asks first may post JSON.
TEST_F(BadHttpRequestsTest, OtherTypesThanJsonAreRefused) {
  RawHttp client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
  EXPECT_EQ(client.ReadReply().status, 415);
  client.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
  EXPECT_EQ(client.ReadReply().status, 415);
  ExpectAlive();
}

}  // namespace
}  // namespace baton::router
