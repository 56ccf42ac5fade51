// Keys at both doors of a router.
#include "router/api_keys.h"

#include <fstream>
#include <map>

#include "absl/strings/ascii.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAlice[] = "sk-alice-0123456789", kBob[] = "sk-bob-0123456789abc";

TEST(ApiKeysTest, WhatIsWrongWithAFileIsSaidByLineAndWithoutTheKey) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "no key is given"},
      {"# only words\n\n", "no key is given"},
      {"sk-secret-0123456789\n", "line 1: is not \"KEY TENANT\""},
      {"\nsk-secret-0123456789 a admin b\n", "line 2: is not"},
      {"sk-secret-0123456789 a b\n", "line 1: scopes are"},
      {"sk-secret-0123456789 a admin,\n", "line 1: scopes are"},
      {"sk-secret-0123456789 a admin,secret\n", "line 1: scopes are"},
      {"sha256:secret0123456789 a\n", "line 1: sha256: is followed by"},
      {"sha256:" + std::string(63, 'a') + " secret\n", "64 hexadecimal digits"},
      {"sha256:" + std::string(64, 'g') + " secret\n", "64 hexadecimal digits"},
      {"secret a\n", "line 1: a key has 16 to 256"},
      {"secret" + std::string(300, 'x') + " a\n", "line 1: a key has 16 to 256"},
      {"sk-secret-01234567\x7f" "89 a\n", "printable"},
      {"sk-secret-0123456789 a/b\n", "line 1: a tenant is named"},
      {"sk-secret-0123456789 a\nsk-secret-0123456789 b\n", "line 2: that key was given before"},
  };
  for (const auto& [text, why] : bad) {
    const absl::Status status = ApiKeys::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(why), Not(HasSubstr("secret")))) << text;
  }
  const auto good = ApiKeys::Parse("# ours\r\nsk-secret-0123456789\ta\r\n  sk-secret-0123456780 a  \n");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->size(), 2u);
  const auto anybody = ApiKeys().CallerOf("");
  ASSERT_TRUE(anybody.ok()) << "without a file everybody may ask";
  EXPECT_EQ(anybody->tenant, "");
  EXPECT_TRUE(anybody->admin && anybody->priority);
}

// The digest is what `printf %s KEY | sha256sum` prints: FIPS 180-2's example of one block.
TEST(ApiKeysTest, ADigestStandsForItsKeyAndScopesAreOnlyThoseThatAreGiven) {
  const std::string digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // of "abc"
  const auto keys = ApiKeys::Parse("sha256:" + digest + " a admin\nsk-secret-0123456789 b priority,admin\nsk-secret-0123456780 c\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 3u);
  std::map<std::string, std::pair<bool, bool>> scopes;  // by tenant: admin, priority
  for (const auto& [sha, caller] : *keys) scopes[caller.tenant] = {caller.admin, caller.priority};
  EXPECT_EQ(scopes, (std::map<std::string, std::pair<bool, bool>>{
                        {"a", {true, false}}, {"b", {true, true}}, {"c", {false, false}}}));
  const auto upper = ApiKeys::Parse("sha256:" + absl::AsciiStrToUpper(digest) + " a\nsha256:" + digest + " b\n");
  EXPECT_THAT(std::string(upper.status().message()), HasSubstr("line 2: that key was given before"));
}

class ApiKeysDoorTest : public HttpFixture {
 protected:
  void SetUp() override {
    HttpFixture::SetUp();
    path_ = model_path_ + ".keys";
    Write(std::string(kAlice) + " alice\n" + kBob + " bob\n");
    config_.set_api_keys_file(path_);
    config_.set_tenant_concurrency(1);
    StartRouter();
    AddWorker("p0", "prefill");
    decode_ = AddWorker("d0", "decode");
  }
  void TearDown() override {
    HttpFixture::TearDown();
    std::remove(path_.c_str());
  }
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::rename((path_ + ".new").c_str(), path_.c_str());
  }
  HttpReply Ask(const std::string& key) {
    return Post("/v1/completions", R"({"prompt":"x","max_tokens":5})", key.empty() ? "" : "Authorization: Bearer " + key + "\r\n");
  }
  absl::Status AskGrpc(const std::string& authorization) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    return Generate(Prompt(), absl::Seconds(30), nullptr, &context).status;
  }
  std::string path_;
  fakes::ScriptedWorker* decode_ = nullptr;
};

TEST_F(ApiKeysDoorTest, NobodyIsServedWithoutOne) {
  const HttpReply none = Ask("");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(Parse(none)["error"]["code"], "no_api_key");
  const HttpReply wrong = Ask("sk-mallory-0123456789");
  EXPECT_EQ(wrong.status, 401);
  EXPECT_EQ(Parse(wrong)["error"]["code"], "invalid_api_key");
  EXPECT_THAT(wrong.body, Not(HasSubstr("mallory")));
  EXPECT_EQ(Ask(kAlice).status, 200);
  EXPECT_EQ(AskGrpc("").code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(AskGrpc("Basic YWxpY2U6eA==").code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(AskGrpc("Bearer ").code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(AskGrpc(std::string("bearer ") + kBob).ok());
}

TEST_F(ApiKeysDoorTest, EveryDoorAsks) {
  const std::string with = std::string("Authorization: Bearer ") + kAlice + "\r\n";
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2})"},
           {"/v1/completions", R"({"prompt":"x","max_tokens":2,"stream":true})"},
           {"/tokenize", R"({"prompt":"x"})"},
           {"/detokenize", R"({"tokens":[1]})"}}) {
    EXPECT_EQ(Post(path, body).status, 401) << path;
    EXPECT_EQ(Post(path, "not even JSON").status, 401) << path << ": the key comes before the body";
    EXPECT_EQ(Post(path, body, with).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/v1/models/tiny"}) {
    EXPECT_EQ(Get(path).status, 401) << path;
    RawHttp client(port());
    EXPECT_EQ(client.Ask("GET", path, "", with).status, 200) << path;
  }
  for (const char* path : {"/health", "/metrics", "/version", "/ping"}) EXPECT_EQ(Get(path).status, 200) << path;

  v1::ListModelsResponse models;
  v1::TokenizeRequest text;
  text.set_text("x");
  v1::TokenizeResponse tokens;
  grpc::ClientContext a, b, c, d;
  EXPECT_EQ(inference_->ListModels(&a, {}, &models).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(inference_->Tokenize(&b, text, &tokens).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  c.AddMetadata("authorization", std::string("Bearer ") + kAlice);
  d.AddMetadata("authorization", std::string("Bearer ") + kAlice);
  EXPECT_TRUE(inference_->ListModels(&c, {}, &models).ok());
  EXPECT_TRUE(inference_->Tokenize(&d, text, &tokens).ok());
}

// Bug: the limits of a tenant were never of any, because no request had one.
TEST_F(ApiKeysDoorTest, ATenantHasItsOwnLimitsAndItsOwnPrefixCache) {
  fakes::Script script;
  script.pause = fakes::Pause::kInDecode;
  decode_->set_script(script);
  RawHttp running(port());
  running.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":20})",
                      std::string("Authorization: Bearer ") + kAlice + "\r\n");
  ASSERT_TRUE(Eventually([&] { return decode_->paused() == 1; }));
  decode_->set_script({});
  const HttpReply second = Ask(kAlice);
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(Parse(second)["error"]["code"], "tenant_concurrency");
  EXPECT_EQ(Ask(kBob).status, 200);
  decode_->Resume();
  EXPECT_EQ(running.ReadReply().status, 200);
  std::set<std::string> tenants;
  for (const v1::DecodeRequest& request : decode_->decodes()) tenants.insert(request.tenant());
  EXPECT_EQ(tenants, (std::set<std::string>{"alice", "bob"}));
}

// Whoever had any key could drain workers, and saw what all tenants' requests do to the cluster.
TEST_F(ApiKeysDoorTest, TheClusterIsForAdministratorsKeys) {
  // sk-carol-0123456789's digest: the file need not have the key.
  Write(std::string(kAlice) + " alice\n" + kBob + " bob admin\n" +
        "sha256:64bb84fccf680a0f18c305508143e7f4916d5869f56adab14ab89640d3541be3 carol\n");
  const auto with = [](const char* key) { return absl::StrCat("Authorization: Bearer ", key, "\r\n"); };
  const auto get = [&](const std::string& path, const char* key) {
    RawHttp client(port());
    return client.Ask("GET", path, "", with(key)).status;
  };
  ASSERT_TRUE(Eventually([&] { return get("/baton/cluster", kBob) == 200; }));
  for (const char* path : {"/baton/cluster", "/baton/load"}) {
    EXPECT_EQ(get(path, kAlice), 403) << path;
    EXPECT_EQ(get(path, kBob), 200) << path;
    EXPECT_EQ(Get(path).status, 401) << path;
  }
  EXPECT_EQ(get("/baton/requests", "sk-carol-0123456789"), 200);
  EXPECT_EQ(get("/baton/cluster", "sk-carol-0123456789"), 403);
  EXPECT_EQ(get("/baton/requests", kAlice), 200);
  EXPECT_EQ(get("/console/", kAlice), 200);
}

class AdminKeysTest : public ApiKeysDoorTest {
 protected:
  void SetUp() override {
    config_.set_console("admin");
    ApiKeysDoorTest::SetUp();
  }
};

TEST_F(AdminKeysTest, OnlyTheyChangeIt) {
  Write(std::string(kAlice) + " alice priority\n" + kBob + " bob admin\n");
  const auto send = [&](const std::string& path, const std::string& body, const char* key) {
    RawHttp client(port());
    client.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: 127.0.0.1:", port(), "\r\nContent-Length: ", body.size(),
                             "\r\nContent-Type: application/json\r\nOrigin: http://127.0.0.1:", port(),
                             "\r\nX-Baton-Console: 1\r\nAuthorization: Bearer ", key, "\r\n\r\n", body));
    return client.ReadReply();
  };
  ASSERT_TRUE(Eventually([&] { return send("/baton/drain", R"({"worker":"no-such"})", kBob).status == 404; }));
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/baton/drain", R"({"worker":"d0"})"},
           {"/baton/role", R"({"worker":"d0","role":"prefill"})"},
           {"/baton/scale", R"({"prefill":2})"}}) {
    const HttpReply reply = send(path, body, kAlice);
    EXPECT_EQ(reply.status, 403) << path;
    EXPECT_THAT(reply.body, HasSubstr("admin")) << path;
  }
  EXPECT_EQ(decode_->drains(), 0);
  EXPECT_TRUE(decode_->roles().empty());
  EXPECT_EQ(send("/baton/drain", R"({"worker":"d0"})", kBob).status, 200);
  EXPECT_EQ(decode_->drains(), 1);
}

// The class high is a promise at others' cost.
TEST_F(ApiKeysDoorTest, OnlyAKeyOfThatScopeIsServedBeforeOthers) {
  Write(std::string(kAlice) + " alice\n" + kBob + " bob priority\n");
  const auto ask = [&](const char* key, int priority) {
    return Post("/v1/completions", absl::StrCat(R"({"prompt":"x","max_tokens":2,"priority":)", priority, "}"),
                absl::StrCat("Authorization: Bearer ", key, "\r\n"));
  };
  ASSERT_TRUE(Eventually([&] { return ask(kBob, -1).status == 200; }));
  const HttpReply refused = ask(kAlice, -1);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(Parse(refused)["error"]["code"], "no_priority_scope");
  EXPECT_EQ(ask(kAlice, 0).status, 200);
  EXPECT_EQ(ask(kAlice, 1).status, 200) << "to go behind others needs no leave";
  v1::GenerateRequest request = Prompt();
  request.set_priority(v1::PRIORITY_HIGH);
  grpc::ClientContext context;
  context.AddMetadata("authorization", absl::StrCat("Bearer ", kAlice));
  EXPECT_TRUE(absl::IsPermissionDenied(Generate(request, absl::Seconds(30), nullptr, &context).status));
}

TEST_F(ApiKeysDoorTest, TheFileIsReadAgainAndABadOneChangesNothing) {
  Write("nonsense\n");
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(Ask(kAlice).status, 200);
  std::remove(path_.c_str());
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(Ask(kAlice).status, 200);
  Write(std::string(kBob) + " bob\n");
  EXPECT_TRUE(Eventually([&] { return Ask(kAlice).status == 401; }));
  EXPECT_EQ(Ask(kBob).status, 200);
}

TEST_F(ApiKeysDoorTest, TheCommandLinesChannelSendsIt) {
  rpc::ChannelOptions options;
  options.authorization = std::string("Bearer ") + kAlice;
  inference_ = v1::Inference::NewStub(rpc::CreateChannel(router_->address(), options));
  EXPECT_TRUE(AskGrpc("").ok());
}

}  // namespace
}  // namespace baton::router
