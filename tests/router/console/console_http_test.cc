#include <cstdio>
#include <fstream>

#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using fakes::Script;
using ::testing::HasSubstr;
using ::testing::Not;

class ConsoleHttpTest : public HttpFixture {
 protected:
  void StartWithWorkers() {
    StartRouter();
    Script script;
    script.texts = {"Mombasa88 and so on"};
    AddWorker("p0", "prefill", script);
    AddWorker("d0", "decode", script);
  }
};

TEST_F(ConsoleHttpTest, TheRootLeadsToTheConsole) {
  StartRouter();
  for (const char* path : {"/", "/console"}) {
    const HttpReply reply = Get(path);
    EXPECT_EQ(reply.status, 302) << path;
    EXPECT_EQ(reply.headers.at("location"), "/console/") << path;
  }
  EXPECT_EQ(Get("/console/").status, 200);
  EXPECT_EQ(Get("/console/no-such-file.js").status, 404);
  EXPECT_EQ(Get("/console/../../etc/passwd").status, 404);
}

TEST_F(ConsoleHttpTest, EveryAnswerForbidsOtherPagesAndInlineCode) {
  StartWithWorkers();
  for (const char* path : {"/", "/console/", "/console/app.js", "/console/style.css", "/console/icon.svg",
                           "/baton/cluster", "/baton/requests", "/baton/requests/none", "/baton/load"}) {
    const HttpReply reply = Get(path);
    ASSERT_TRUE(reply.headers.count("content-security-policy")) << path;
    const std::string policy = reply.headers.at("content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'")) << path;
    EXPECT_THAT(policy, HasSubstr("script-src 'self';")) << path;
    EXPECT_THAT(policy, HasSubstr("style-src 'self';")) << path;
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'")) << path;
    EXPECT_THAT(policy, Not(HasSubstr("unsafe"))) << path;
    EXPECT_EQ(reply.headers.at("x-content-type-options"), "nosniff") << path;
    EXPECT_EQ(reply.headers.at("cross-origin-resource-policy"), "same-origin") << path;
    EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u) << path;
  }
}

TEST_F(ConsoleHttpTest, FilesHaveTheTypesThatNosniffNeeds) {
  StartRouter();
  EXPECT_EQ(Get("/console/").headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(Get("/console/app.js").headers.at("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(Get("/console/style.css").headers.at("content-type"), "text/css; charset=utf-8");
  EXPECT_EQ(Get("/console/icon.svg").headers.at("content-type"), "image/svg+xml");
  EXPECT_THAT(Get("/console/").body, Not(HasSubstr("<style")));
}

// No page may bring code or style that the policy stops, or make markup of text.
TEST_F(ConsoleHttpTest, ScriptsNeverParseHtml) {
  StartRouter();
  for (const char* file : {"app", "api", "chart", "cluster", "dom", "journey", "load", "play", "session", "stations",
                           "timeline", "tokens"}) {
    const HttpReply reply = Get(absl::StrCat("/console/", file, ".js"));
    ASSERT_EQ(reply.status, 200) << file;
    for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                            "DOMParser", "http://1", "https://"}) {
      EXPECT_THAT(reply.body, Not(HasSubstr(way))) << file;
    }
  }
}

TEST_F(ConsoleHttpTest, ARequestIsThereOnceItsAnswerIs) {
  StartWithWorkers();
  const Json answer = Parse(Chat({{"max_tokens", 6}, {"seed", 18446744073709551}}));
  const std::string id = answer["id"];
  const Json list = Parse(Get("/baton/requests"))["requests"];
  ASSERT_EQ(list.size(), 1u);  // warm-ups are not listed
  EXPECT_EQ(list[0]["id"], id);
  const Json one = Parse(Get("/baton/requests/" + id));
  EXPECT_EQ(one["code"], "OK");
  EXPECT_EQ(one["completion_tokens"], 6);
  EXPECT_EQ(one["prompt_tokens"], answer["usage"]["prompt_tokens"]);
  EXPECT_EQ(one["prefill_worker"], "p0");
  EXPECT_EQ(one["decode_worker"], "d0");
  EXPECT_EQ(one["seed"], "18446744073709551");
  EXPECT_EQ(one["finish_reasons"], Json({"length"}));
  EXPECT_EQ(one["token_ms"].size(), 6u);
  // In the order in which things happen.
  const Json& at = one["moments_ms"];
  double last = 0;
  for (const char* moment : {"tokenized", "placed", "reserved", "first_token", "prefilled", "kv_arrived", "ended"}) {
    ASSERT_TRUE(at[moment].is_number()) << moment << ": " << at.dump();
    EXPECT_GE(at[moment], last) << moment;
    last = at[moment];
  }
  EXPECT_EQ(one["token_ms"][0], static_cast<float>(at["first_token"].get<double>()));
  EXPECT_EQ(one["placement"]["decisions"][0]["prefill"][0]["worker"], "p0");
}

TEST_F(ConsoleHttpTest, OneTokenNeedsNoHandOver) {
  StartWithWorkers();
  const std::string id = Parse(Chat({{"max_tokens", 1}}))["id"];
  const Json one = Parse(Get("/baton/requests/" + id));
  EXPECT_TRUE(one["moments_ms"]["kv_arrived"].is_null());
  EXPECT_TRUE(one["stations_ms"]["logits"].is_null());
  EXPECT_EQ(one["kv"]["transport"], "none");
  EXPECT_EQ(one["decode_worker"], "");
}

TEST_F(ConsoleHttpTest, AFailureIsKeptWithItsCodeAndReason) {
  StartRouter();
  Script script;
  script.decode_error = absl::InternalError("it broke");
  AddWorker("p0", "prefill", {});
  AddWorker("d0", "decode", script)->set_script(script);
  EXPECT_EQ(Chat({{"max_tokens", 6}}).status, 500);
  const Json list = Parse(Get("/baton/requests"))["requests"];
  ASSERT_EQ(list.size(), 1u);
  const Json one = Parse(Get("/baton/requests/" + list[0]["id"].get<std::string>()));
  EXPECT_EQ(one["code"], "INTERNAL");
  EXPECT_THAT(one["message"].get<std::string>(), HasSubstr("it broke"));
}

TEST_F(ConsoleHttpTest, IdsAreFoundWhateverTheyHold) {
  StartWithWorkers();
  v1::GenerateRequest request = Prompt("hello", 2);
  request.set_request_id("a/b?c=d%20 e");
  ASSERT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(Parse(Get("/baton/requests/a%2Fb%3Fc%3Dd%2520%20e"))["id"], "a/b?c=d%20 e");
  EXPECT_EQ(Get("/baton/requests/unknown").status, 404);
  EXPECT_EQ(Get("/baton/requests/%").status, 404);
  EXPECT_EQ(Get("/baton/requests/%zz%4").status, 404);
}

TEST_F(ConsoleHttpTest, NoWordOfAPromptOrAnAnswerIsKept) {
  StartWithWorkers();
  const Json answer = Parse(Chat({{"messages", {{{"role", "user"}, {"content", "Tell me of Zanzibar77"}}}},
                                  {"max_tokens", 12}, {"stop", {"Zanzibar77", "and"}}}));
  EXPECT_THAT(answer.dump(), HasSubstr("Mombasa88"));
  for (const std::string& path : {std::string("/baton/requests"), "/baton/requests/" + answer["id"].get<std::string>(),
                                  std::string("/baton/load"), std::string("/baton/cluster")}) {
    const std::string body = Get(path).body;
    EXPECT_THAT(body, Not(HasSubstr("Zanzibar77"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("Mombasa88"))) << path;
  }
}

TEST_F(ConsoleHttpTest, TheClusterIsWhatStatusSays) {
  StartWithWorkers();
  const Json cluster = Parse(Get("/baton/cluster"));
  EXPECT_EQ(cluster["admin"], false);
  const Json& status = cluster["status"];
  EXPECT_EQ(status["model_name"], "tiny");
  ASSERT_EQ(status["workers"].size(), 2u);
  EXPECT_EQ(status["workers"][0]["info"]["endpoints"], Json::array());  // for workers only
}

TEST_F(ConsoleHttpTest, LoadCountsTokens) {
  StartWithWorkers();
  EXPECT_EQ(Chat({{"max_tokens", 6}}).status, 200);
  uint64_t generated = 0, first = 0;
  EXPECT_TRUE(Eventually([&] {
    const Json load = Parse(Get("/baton/load"));
    generated = first = 0;
    for (const Json& second : load["seconds"]) {
      generated += second["generated_tokens"].get<uint64_t>();
      first += second["first_tokens"].get<uint64_t>();
    }
    return generated == 6;
  })) << generated;
  EXPECT_EQ(first, 1u);
}

TEST_F(ConsoleHttpTest, WithKeysATenantSeesItsOwnRequests) {
  const std::string keys = model_path_ + ".keys";
  std::ofstream(keys) << "sk-alice-0123456789 alice\nsk-bob-0123456789abc bob\n";
  config_.set_api_keys_file(keys);
  StartWithWorkers();
  const auto get = [&](const std::string& path, const std::string& key) {
    RawHttp client(port());
    return client.Ask("GET", path, "", key.empty() ? "" : "Authorization: Bearer " + key + "\r\n");
  };
  const HttpReply answer = Post("/v1/completions", R"({"prompt":"hello","max_tokens":3})",
                                "Authorization: Bearer sk-alice-0123456789\r\n");
  ASSERT_EQ(answer.status, 200);
  const std::string path = "/baton/requests/" + Parse(answer)["id"].get<std::string>();
  EXPECT_EQ(Get("/console/").status, 200);  // it asks for the key
  for (const std::string& one : {std::string("/baton/cluster"), std::string("/baton/requests"),
                                 std::string("/baton/load"), path}) {
    EXPECT_EQ(get(one, "").status, 401) << one;
    EXPECT_EQ(get(one, "sk-wrong-0123456789").status, 401) << one;
    const bool of_all = one == "/baton/cluster" || one == "/baton/load";
    EXPECT_EQ(get(one, "sk-alice-0123456789").status, of_all ? 403 : 200) << one;
  }
  EXPECT_EQ(get(path, "sk-bob-0123456789abc").status, 404);
  EXPECT_EQ(Parse(get("/baton/requests", "sk-bob-0123456789abc"))["requests"].size(), 0u);
  EXPECT_EQ(Parse(get("/baton/requests", "sk-alice-0123456789"))["requests"].size(), 1u);
  std::remove(keys.c_str());
}

TEST_F(ConsoleHttpTest, OffMeansOff) {
  config_.set_console("off");
  StartRouter();
  for (const char* path : {"/", "/console/", "/baton/cluster", "/baton/requests", "/baton/load"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
  }
  EXPECT_EQ(Get("/v1/models").status, 200);
}

}  // namespace
}  // namespace baton::router
