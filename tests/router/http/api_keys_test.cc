// Keys at both doors of a router.
#include "router/api_keys.h"

#include <fstream>

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
      {"\nsk-secret-0123456789 a b\n", "line 2: is not"},
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
  EXPECT_EQ(ApiKeys().TenantOf("").value(), "") << "without a file everybody may ask";
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
