// Tools through the door: rendered by the template, found in the output, streamed as deltas.
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using fakes::Script;
using fakes::ScriptedWorker;

constexpr char kTemplate[] =
    "{% if tools %}Tools:{% for tool in tools %} {{ tool.function.name }}{{ tool | tojson }}{% endfor %} <tool_call>\n"
    "{% endif %}{% for m in messages %}{{ m.role }}: {% if m.content is not none %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{{ '\\n' }}{% "
    "endfor %}";

class ToolsTest : public HttpFixture {
 protected:
  void SetUp() override {
    HttpFixture::SetUp();
    ASSERT_TRUE(fakes::WriteTinyGguf({.context_length = 2048, .chat_template = kTemplate}, model_path_).ok());
    StartRouter();
  }
  void AddPair(const std::string& output) {
    Script script;
    script.texts = {output};
    prefill_ = AddWorker("p0", "prefill", script);
    AddWorker("d0", "decode", script);
    max_tokens_ = static_cast<int>(output.size());
  }
  HttpReply Ask(Json body) {
    body["max_tokens"] = max_tokens_;
    if (!body.contains("tools")) {
      body["tools"] = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])");
    }
    return Chat(body);
  }
  std::string Prompt() {
    const v1::PrefillRequest request = prefill_->prefills().back();
    const auto& ids = request.prompt_token_ids();
    return Parse(Post("/detokenize", Json{{"tokens", std::vector<int32_t>(ids.begin(), ids.end())}}.dump()))["prompt"];
  }
  ScriptedWorker* prefill_ = nullptr;
  int max_tokens_ = 0;
};

constexpr char kCall[] = "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";

TEST_F(ToolsTest, InOnePiece) {
  AddPair(kCall);
  const Json choice = Parse(Ask({}))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Well.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["id"].get<std::string>().substr(0, 5), "call_");
  EXPECT_EQ(call["function"], (Json{{"name", "f"}, {"arguments", "{\"x\": 1}"}}));
  EXPECT_FALSE(call.contains("index"));
  EXPECT_EQ(Prompt(),
            "Tools: f{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"z\": 1, \"a\": 2}}} "
            "<tool_call>\nuser: hello\n");
}

TEST_F(ToolsTest, AsAStream) {
  AddPair(kCall);
  std::string content, arguments, name, id, finish;
  for (const Json& event : Events(Ask({{"stream", true}}))) {
    const Json& choice = event["choices"][0];
    content += choice["delta"].value("content", "");
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      EXPECT_EQ(call["index"], 0);
      if (call.contains("id")) {
        EXPECT_EQ(id, "");
        id = call["id"];
        name = call["function"]["name"];
      }
      arguments += call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(content, "Well.");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, "{\"x\": 1}");
  EXPECT_EQ(finish, "length") << "max_tokens ended it";
}

TEST_F(ToolsTest, ACallThatTheModelEndsHasItsFinishReason) {
  AddPair(std::string(kCall) + "!rest");
  EXPECT_EQ(Parse(Ask({{"stop", "!"}}))["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ToolsTest, ChoiceNoneShowsAndFindsNone) {
  AddPair(kCall);
  const Json choice = Parse(Ask({{"tool_choice", "none"}}))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], kCall);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(Prompt(), "user: hello\n");
}

TEST_F(ToolsTest, OnlyOneCallWhenAskedFor) {
  const std::string one = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  AddPair(one + one);
  EXPECT_EQ(Parse(Ask({}))["choices"][0]["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(Parse(Ask({{"parallel_tool_calls", false}}))["choices"][0]["message"]["tool_calls"].size(), 1u);
}

// What a worker was told that the answer must be.
const v1::Constraint::EnclosedJson& Enclosed(const v1::PrefillRequest& request) {
  return request.sampling().constraint().enclosed();
}

TEST_F(ToolsTest, ARequiredCallIsAConstraintForTheWorkers) {
  AddPair("<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>");
  const Json tools = Json::parse(R"([
      {"type":"function","function":{"name":"f","parameters":{"type":"object","$defs":{"d":{"type":"integer"}},
       "properties":{"a":{"$ref":"#/$defs/d"},"self":{"$ref":"#"},"b":{"enum":[{"$ref":"#/x"}]}}}}},
      {"type":"function","function":{"name":"g"}}])");
  const Json choice = Parse(Ask({{"tools", tools}, {"tool_choice", "required"}}))["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "g");
  const v1::PrefillRequest request = prefill_->prefills().back();
  EXPECT_EQ(Enclosed(request).before(), "<tool_call>\n");
  EXPECT_EQ(Enclosed(request).after(), "\n</tool_call>");
  EXPECT_EQ(Json::parse(Enclosed(request).json_schema()), Json::parse(R"({"anyOf":[
      {"type":"object","properties":{"name":{"const":"f"},"arguments":{"type":"object","$defs":{"d":{"type":"integer"}},
       "properties":{"a":{"$ref":"#/anyOf/0/properties/arguments/$defs/d"},"self":{"$ref":"#/anyOf/0/properties/arguments"},
                     "b":{"enum":[{"$ref":"#/x"}]}}}},
       "required":["name","arguments"],"additionalProperties":false},
      {"type":"object","properties":{"name":{"const":"g"},"arguments":{"type":"object"}},
       "required":["name","arguments"],"additionalProperties":false}]})"));
}

TEST_F(ToolsTest, ANamedToolIsTheOnlyOneThatCanBeCalled) {
  AddPair("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  const Json named = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"g"}},{"type":"function","function":{"name":"f"}}])");
  ASSERT_EQ(Ask({{"tools", tools}, {"tool_choice", named}}).status, 200);
  const v1::PrefillRequest request = prefill_->prefills().back();
  const Json schema = Json::parse(Enclosed(request).json_schema());
  ASSERT_EQ(schema["anyOf"].size(), 1u);
  EXPECT_EQ(schema["anyOf"][0]["properties"]["name"]["const"], "f");
  EXPECT_NE(Prompt().find("Tools: g"), std::string::npos) << "the model sees all of them";
}

TEST_F(ToolsTest, AnswersOfToolsAreRendered) {
  AddPair("ok");
  const Json messages = Json::parse(
      R"([{"role":"user","content":"q"},
          {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}}]},
          {"role":"tool","tool_call_id":"c1","content":"42"}])");
  EXPECT_EQ(Ask({{"messages", messages}, {"tools", Json::array()}}).status, 200);
  EXPECT_EQ(Prompt(), "user: q\nassistant: [f {\"b\": 1, \"a\": [2]}]\ntool: 42\n");
}

// Models whose template knows no tools hear of them in words, and their calls are found.
TEST_F(HttpFixture, ToolsAreToldInWordsWhereTheTemplateKnowsNone) {
  const std::string chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  ASSERT_TRUE(fakes::WriteTinyGguf({.context_length = 4096, .chat_template = chat_template}, model_path_).ok());
  StartRouter();
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  Script script;
  script.texts = {call};
  ScriptedWorker* prefill = AddWorker("p0", "prefill", script);
  AddWorker("d0", "decode", script);
  const Json messages = Json::parse(
      R"([{"role":"system","content":"Be kind."},{"role":"user","content":"q"},
          {"role":"assistant","content":"Hm.","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1}"}}]},
          {"role":"tool","tool_call_id":"c1","content":"42"},{"role":"tool","tool_call_id":"c2","content":"43"}])");
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  const Json choice = Parse(Chat({{"messages", messages}, {"tools", tools}, {"max_tokens", static_cast<int>(call.size())}}))
      ["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"], (Json{{"name", "f"}, {"arguments", "{}"}}));
  const v1::PrefillRequest request = prefill->prefills().back();
  const auto& ids = request.prompt_token_ids();
  const std::string prompt =
      Parse(Post("/detokenize", Json{{"tokens", std::vector<int32_t>(ids.begin(), ids.end())}}.dump()))["prompt"];
  EXPECT_EQ(prompt.substr(0, 17), "[system]Be kind.\n");
  EXPECT_NE(prompt.find("<tools>\n{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}\n</tools>"), std::string::npos) << prompt;
  EXPECT_EQ(prompt.substr(prompt.find("[user]")),
            "[user]q[assistant]Hm.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"b\":1}}\n</tool_call>"
            "[user]<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n"
            "</tool_response>");
}

// Clients repeat a call with its content null; a template that adds content to a text could not render that.
TEST_F(HttpFixture, NullContentBesideToolCallsIsRenderedByTemplatesThatKnowNoNone) {
  const std::string chat_template = "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}";
  ASSERT_TRUE(fakes::WriteTinyGguf({.context_length = 2048, .chat_template = chat_template}, model_path_).ok());
  StartRouter();
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c",)"
      R"("type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c",)"
      R"("content":"b"}]})";
  const HttpReply reply = Post("/tokenize", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json prompt = Parse(Post("/detokenize", Json{{"tokens", Parse(reply)["tokens"]}}.dump()));
  EXPECT_EQ(prompt["prompt"], "user:aassistant:tool:b");
}

}  // namespace
}  // namespace baton::router
