// OpenAI's API over a real router with scripted workers.
#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using fakes::Pause;
using fakes::Script;
using fakes::ScriptedWorker;
using ::testing::HasSubstr;

class OpenAiTest : public HttpFixture {
 protected:
  void SetUp() override {
    HttpFixture::SetUp();
    StartRouter();
  }
  void AddPair(const Script& script = {}) {
    AddWorker("p0", "prefill", script);
    decode_ = AddWorker("d0", "decode", script);
  }
  ScriptedWorker* decode_ = nullptr;
};

TEST_F(OpenAiTest, AChatInOnePiece) {
  AddPair();
  const HttpReply reply = Chat({{"model", "tiny"}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json answer = Parse(reply);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_GT(answer["created"].get<int64_t>(), 1600000000);
  ASSERT_EQ(answer["choices"].size(), 1u);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"], (Json{{"role", "assistant"}, {"content", "abcde"}, {"refusal", nullptr}}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["completion_tokens"], 5);
  EXPECT_GT(usage["prompt_tokens"].get<int>(), 10);
  EXPECT_EQ(usage["total_tokens"].get<int>(), usage["prompt_tokens"].get<int>() + 5);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(OpenAiTest, AChatAsAStream) {
  AddPair();
  const HttpReply reply = Chat({{"stream", true}, {"max_tokens", 3}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(reply.headers.at("x-accel-buffering"), "no");
  const std::vector<Json> events = Events(reply);
  ASSERT_EQ(events.size(), 6u) << reply.body;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], (Json{{"content", "a"}}));
  EXPECT_EQ(events[2]["choices"][0]["delta"], (Json{{"content", "b"}}));
  EXPECT_EQ(events[3]["choices"][0]["delta"], (Json{{"content", "c"}}));
  EXPECT_EQ(events[4]["choices"][0]["delta"], Json::object());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(events[i]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(events[4]["choices"][0]["finish_reason"], "length");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(events[i].contains("usage") && events[i]["usage"].is_null());
  EXPECT_TRUE(events[5]["choices"].empty());
  EXPECT_EQ(events[5]["usage"]["completion_tokens"], 3);
}

// The class could be said over gRPC only: here it was read and forgotten.
TEST_F(OpenAiTest, PriorityReachesAdmission) {
  // Requests wait for workers that were there, each in its class.
  AddPair();
  for (const auto& worker : workers_) {
    grpc::ClientContext context;
    v1::DeregisterRequest leaves;
    leaves.set_name(worker->info().name());
    leaves.set_incarnation(worker->info().incarnation());
    v1::DeregisterResponse response;
    ASSERT_TRUE(cluster_->Deregister(&context, leaves, &response).ok());
  }
  const auto queued = [&](const std::string& name) {
    return absl::StrContains(metrics_.Expose(), absl::StrCat("baton_router_queued_requests{class=\"", name, "\"} 1"));
  };
  RawHttp high(port()), standard(port()), batch(port());
  high.SendRequest("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"priority":-7})");
  EXPECT_TRUE(Eventually([&] { return queued("high"); }));
  standard.SendRequest("POST", "/v1/completions", R"({"prompt":"x","priority":0})");
  EXPECT_TRUE(Eventually([&] { return queued("standard"); }));
  batch.SendRequest("POST", "/v1/completions", R"({"prompt":"x","priority":3})");
  EXPECT_TRUE(Eventually([&] { return queued("batch"); }));
  EXPECT_TRUE(queued("high") && queued("standard"));
  for (const char* wrong : {R"({"prompt":"x","priority":"high"})", R"({"prompt":"x","priority":0.5})"}) {
    const HttpReply reply = Post("/v1/completions", wrong);
    EXPECT_EQ(reply.status, 400) << wrong;
    EXPECT_EQ(Parse(reply)["error"]["param"], "priority") << wrong;
  }
}

TEST_F(OpenAiTest, UsageOnEveryChunkOnlyWhenAskedFor) {
  AddPair();
  for (const Json& event : Events(Chat({{"stream", true}}))) EXPECT_FALSE(event.contains("usage"));
  const Json options = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<Json> events = Events(Chat({{"stream", true}, {"max_tokens", 3}, {"stream_options", options}}));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(events[3]["usage"]["prompt_tokens"], events[5]["usage"]["prompt_tokens"]);
}

TEST_F(OpenAiTest, ChoicesOfAChatEachBeginWithTheirRole) {
  Script script;
  script.texts = {"one END rest", "two END more"};
  AddPair(script);
  const std::vector<Json> events =
      Events(Chat({{"stream", true}, {"n", 2}, {"max_tokens", 12}, {"stop", {" END", "never"}}}));
  std::map<int, std::string> text, finish;
  std::map<int, int> roles;
  for (const Json& event : events) {
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    if (choice["delta"].contains("role")) {
      EXPECT_EQ(text.count(index), 0u);
      ++roles[index];
    }
    text[index] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) {
      finish[index] = choice["finish_reason"];
      EXPECT_EQ(choice["stop_reason"], " END");
    }
  }
  EXPECT_EQ(text, (std::map<int, std::string>{{0, "one"}, {1, "two"}}));
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(finish, (std::map<int, std::string>{{0, "stop"}, {1, "stop"}}));
}

TEST_F(OpenAiTest, CompletionsTakeEveryFormOfPrompt) {
  AddPair();
  Json answer = Parse(Complete({{"prompt", "hi"}, {"echo", true}}));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_THAT(answer["id"].get<std::string>(), HasSubstr("cmpl-"));
  EXPECT_EQ(answer["choices"][0]["text"], "hiabcde");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);
  answer = Parse(Complete({{"prompt", {'h', 'i', '!'}}, {"echo", true}}));
  EXPECT_EQ(answer["choices"][0]["text"], "hi!abcde");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  answer = Parse(Complete({{"prompt", {"x", "yy"}}, {"n", 2}, {"echo", true}}));
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"].get<std::string>().substr(0, 2), i < 2 ? "xa" : "yy");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 20);
  answer = Parse(Complete({{"prompt", {{'a'}, {'b', 'c'}}}}));
  EXPECT_EQ(answer["choices"].size(), 2u);
}

TEST_F(OpenAiTest, ACompletionWithoutMaxTokensHasSixteen) {
  AddPair();
  const Json answer = Parse(Post("/v1/completions", R"({"prompt":"hi"})"));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
}

TEST_F(OpenAiTest, CompletionsAsAStream) {
  AddPair();
  const std::vector<Json> events =
      Events(Complete({{"prompt", {"p", "q"}}, {"stream", true}, {"max_tokens", 2}, {"echo", true}}));
  std::map<int, std::string> text, finish;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "text_completion");
    const Json& choice = event["choices"][0];
    text[choice["index"]] += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null()) finish[choice["index"]] = choice["finish_reason"];
  }
  EXPECT_EQ(text, (std::map<int, std::string>{{0, "pab"}, {1, "qab"}}));
  EXPECT_EQ(finish, (std::map<int, std::string>{{0, "length"}, {1, "length"}}));
}

TEST_F(OpenAiTest, SamplingReachesTheWorkers) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  Json body = {{"temperature", 0.5},
               {"top_p", 0.9},
               {"top_k", 7},
               {"min_p", 0.1},
               {"seed", -3},
               {"n", 3},
               {"min_tokens", 2},
               {"repetition_penalty", 1.5},
               {"ignore_eos", true},
               {"user", "someone"},
               {"presence_penalty", 0.25},
               {"frequency_penalty", -0.25},
               {"max_completion_tokens", 4},
               {"max_tokens", 400},
               {"stop_token_ids", {5, 6}},
               {"logit_bias", {{"7", -100}, {"8", 1.5}}},
               {"stop", nullptr},
               {"unheard_of", 1}};
  ASSERT_EQ(Chat(body).status, 200);
  const v1::PrefillRequest request = p0->prefills()[0];
  const v1::SamplingParams& s = request.sampling();
  EXPECT_EQ(s.temperature(), 0.5f);
  EXPECT_EQ(s.top_p(), 0.9f);
  EXPECT_EQ(s.top_k(), 7);
  EXPECT_EQ(s.min_p(), 0.1f);
  EXPECT_EQ(s.seed(), static_cast<uint64_t>(-3));
  EXPECT_EQ(s.n(), 3);
  EXPECT_EQ(s.min_tokens(), 2);
  EXPECT_EQ(s.max_tokens(), 4);
  EXPECT_EQ(s.repetition_penalty(), 1.5f);
  EXPECT_EQ(s.presence_penalty(), 0.25f);
  EXPECT_EQ(s.frequency_penalty(), -0.25f);
  EXPECT_TRUE(s.ignore_eos());
  EXPECT_EQ(s.stop_token_ids_size(), 2);
  EXPECT_EQ(s.logit_bias().at(7), -100);
  EXPECT_EQ(s.logit_bias().at(8), 1.5f);
  EXPECT_FALSE(s.has_logprobs());
}

TEST_F(OpenAiTest, MessagesAreRenderedByTheTemplate) {
  AddPair();
  const Json messages = {
      {{"role", "developer"}, {"content", "Be brief."}},
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}};
  const Json answer = Parse(Post("/tokenize", Json{{"messages", messages}, {"return_token_strs", true}}.dump()));
  std::string text;
  for (const Json& token : answer["token_strs"]) text += token.get<std::string>();
  EXPECT_EQ(text, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(answer["count"], answer["tokens"].size());
  const Json chat = Parse(Chat({{"messages", messages}}));
  EXPECT_EQ(chat["usage"]["prompt_tokens"], answer["count"]);
}

TEST_F(OpenAiTest, TokenizeAndDetokenize) {
  AddPair();
  const Json answer = Parse(Post("/tokenize", R"({"prompt":"h\u00e9"})"));
  EXPECT_EQ(answer["tokens"], (Json{'h', 0xc3, 0xa9}));
  EXPECT_EQ(answer["max_model_len"], 512);
  EXPECT_EQ(Parse(Post("/detokenize", Json{{"tokens", answer["tokens"]}}.dump()))["prompt"], "h\u00e9");
  EXPECT_EQ(Parse(Post("/detokenize", R"({"tokens":[1,-1]})"))["error"]["param"], "tokens[1]");
  EXPECT_EQ(Post("/tokenize", R"({})").status, 400);
}

TEST_F(OpenAiTest, ModelsAndTheRest) {
  AddPair();
  const Json list = Parse(Get("/v1/models"));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Parse(Get("/v1/models/tiny"))["object"], "model");
  const HttpReply unknown = Get("/v1/models/gpt-17");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Parse(unknown)["error"]["code"], "model_not_found");
  EXPECT_EQ(Parse(Get("/ping")), Json::object());  // its type says JSON
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_TRUE(Parse(Get("/version"))["version"].is_string());
  EXPECT_EQ(Parse(Get("/openapi.json"))["openapi"], "3.1.0");
  EXPECT_EQ(Post("/v1/embeddings", "{}").status, 404);
  EXPECT_EQ(Parse(Post("/v1/responses", "{}"))["error"]["code"], "not_found");
  EXPECT_EQ(Get("/v1/completions").status, 405);
  Chat({});
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("baton_http_requests_total{code=\"200\",path=\"/v1/chat/completions\"} 1"));
}

TEST_F(OpenAiTest, RequestIdsAreEchoedAndReachTheWorkers) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1})";
  HttpReply reply = Post("/v1/chat/completions", body, "X-Request-Id: my.id_1-2\r\n");
  EXPECT_EQ(reply.headers.at("x-request-id"), "my.id_1-2");
  EXPECT_EQ(p0->prefills()[0].request_id(), Parse(reply)["id"]);
  EXPECT_THAT(p0->prefills()[0].request_id(), HasSubstr("chatcmpl-my.id_1-2-"));
  for (const std::string& bad : {std::string(129, 'a'), std::string("a b"), std::string("\xc3\xa4")}) {
    reply = Post("/v1/chat/completions", body, "X-Request-Id: " + bad + "\r\n");
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.headers.at("x-request-id"), HasSubstr("chatcmpl-"));
  }
}

TEST_F(OpenAiTest, TokenIdsWhenAskedFor) {
  AddPair();
  const Json answer = Parse(Complete({{"return_token_ids", true}}));
  EXPECT_EQ(answer["choices"][0]["token_ids"], (Json{'a', 'b', 'c', 'd', 'e'}));
  Json ids = Json::array();
  for (const Json& event : Events(Chat({{"return_token_ids", true}, {"stream", true}}))) {
    for (const Json& id : event["choices"][0].value("token_ids", Json::array())) ids.push_back(id);
  }
  EXPECT_EQ(ids, answer["choices"][0]["token_ids"]);
}

TEST_F(OpenAiTest, WithoutWorkersTheClientHearsWhenToComeBack) {
  router_.reset();
  config_.set_queue_timeout_ms(0);  // a request would wait for a worker
  StartRouter();
  const HttpReply reply = Chat({});
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.headers.at("x-should-retry"), "true");
  EXPECT_EQ(Parse(reply)["error"]["type"], "server_error");
  EXPECT_EQ(Chat({{"stream", true}}).status, 503) << "nothing was sent, so the status can still be said";
}

TEST_F(OpenAiTest, AnErrorWithinAStreamIsAnEvent) {
  Script script;
  script.pause = Pause::kInDecode;
  AddPair(script);
  RawHttp client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":20,"stream":true})");
  ASSERT_TRUE(client.Await("data: "));  // from now on the status is sent
  ASSERT_TRUE(Eventually([&] { return decode_->paused() == 1; }));
  decode_->Resume(absl::InvalidArgumentError("no good"));
  const std::vector<Json> events = Events(client.ReadReply());
  ASSERT_GE(events.size(), 2u);
  const Json& error = events.back()["error"];
  EXPECT_EQ(error["code"], 400);
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("no good"));
  script.after_pause = absl::InvalidArgumentError("no good");
  decode_->set_script(script);
  EXPECT_EQ(Chat({{"max_tokens", 20}}).status, 400);
}

TEST_F(OpenAiTest, OneBadPromptFailsTheCallAndEndsTheOthers) {
  AddPair();
  const HttpReply reply = Complete({{"prompt", {"good", ""}}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Parse(reply)["error"]["param"], "prompt");
}

TEST_F(OpenAiTest, AClientThatHangsUpEndsItsRequestOnTheWorkers) {
  Script script;
  script.pause = Pause::kInDecode;
  AddPair(script);
  for (const bool stream : {true, false}) {
    RawHttp client(port());
    const Json body = {{"prompt", {"x", "y"}}, {"max_tokens", 20}, {"stream", stream}};
    client.SendRequest("POST", "/v1/completions", body.dump());
    ASSERT_TRUE(Eventually([&] { return decode_->paused() == 2; }));
    EXPECT_EQ(router_->requests_in_flight(), 2u);
    client.Close();
    EXPECT_TRUE(Eventually([&] { return decode_->open() == 0 && router_->requests_in_flight() == 0; }));
  }
}

TEST_F(OpenAiTest, DrainingFinishesStreamsAndRefusesTheNext) {
  Script script;
  script.pause = Pause::kInDecode;
  AddPair(script);
  RawHttp client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":20,"stream":true})");
  ASSERT_TRUE(Eventually([&] { return decode_->paused() == 1; }));
  std::thread drain([&] { EXPECT_TRUE(router_->Drain().ok()); });
  EXPECT_TRUE(Eventually([&] { return Get("/health").status == 503; }));
  const HttpReply refused = Complete({});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Parse(refused)["error"]["code"], "draining");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  decode_->Resume();
  const HttpReply reply = client.ReadReply();
  drain.join();
  std::string text;
  for (const Json& event : Events(reply)) text += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, "abcdefghijklmnopqrst");
}

TEST_F(OpenAiTest, StoppingTheRouterEndsWhatRuns) {
  Script script;
  script.pause = Pause::kInDecode;
  AddPair(script);
  RawHttp client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":20})");
  ASSERT_TRUE(Eventually([&] { return decode_->paused() == 1; }));
  router_.reset();
  EXPECT_EQ(client.ReadReply().status, 503);
}

TEST_F(OpenAiTest, ManyClientsAtOnceEachGetTheirOwn) {
  Script script;
  script.texts = {"first choice", "second choice"};
  AddPair(script);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      RawHttp client(port());
      for (int k = 0; k < 5; ++k) {
        const Json body = {{"prompt", "x"}, {"max_tokens", 13}, {"n", 2}, {"stop", "choice"}, {"stream", i % 2 == 0}};
        const HttpReply reply = client.Ask("POST", "/v1/completions", body.dump());
        std::map<int, std::string> text;
        if (i % 2 == 0) {
          for (const Json& event : Events(reply)) {
            text[event["choices"][0]["index"]] += event["choices"][0]["text"].get<std::string>();
          }
        } else {
          const Json answer = Parse(reply);
          for (const Json& choice : answer["choices"]) text[choice["index"]] = choice["text"].get<std::string>();
        }
        good += text == std::map<int, std::string>{{0, "first "}, {1, "second "}};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

}  // namespace
}  // namespace baton::router
