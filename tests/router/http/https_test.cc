// The OpenAI door over HTTPS (http_tls_cert, http_tls_key): answers, streams and start errors. The server's own tests are in
// tests/common/rpc/https_server_test.
#include <cstdlib>

#include "tests/common/rpc/tls_http.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using testing::TlsHttp;

class HttpsTest : public HttpFixture {
 protected:
  void SetUp() override {
    HttpFixture::SetUp();
    dir_ = ::testing::TempDir() + "/certs";
    ASSERT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", dir_, " >/dev/null").c_str()), 0);
    config_.set_http_tls_cert(dir_ + "/router.crt");
    config_.set_http_tls_key(dir_ + "/router.key");
  }
  testing::TlsOptions Trusting() const { return {.ca = dir_ + "/ca.crt"}; }
  std::string dir_;
};

TEST_F(HttpsTest, ModelsChatsAndStreamsAreThoseOfPlainHttp) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 5}, {"seed", 7}, {"stream", true}};
  const auto text_of = [](const std::vector<Json>& events) {
    std::string text;
    for (const Json& event : events) {
      if (!event["choices"].empty()) text += event["choices"][0]["delta"].value("content", "");
    }
    return text;
  };
  StartRouter();
  AddWorker("prefill-0", "prefill");
  AddWorker("decode-0", "decode");
  TlsHttp client(port(), Trusting());
  ASSERT_TRUE(client.connected()) << client.error();
  EXPECT_EQ(Parse(client.Ask("GET", "/v1/models"))["data"][0]["id"], "tiny");
  const std::string secure = text_of(Events(client.Ask("POST", "/v1/chat/completions", body.dump())));
  EXPECT_FALSE(secure.empty());
  Json whole = body;
  whole["stream"] = false;
  EXPECT_EQ(Parse(client.Ask("POST", "/v1/chat/completions", whole.dump()))["choices"][0]["message"]["content"], secure);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  const HttpReply plain = Get("/v1/models");
  EXPECT_EQ(plain.status, 400);
  EXPECT_THAT(plain.body, HasSubstr("https://"));
}

TEST_F(HttpsTest, AClientThatHangsUpEndsItsRequest) {
  StartRouter();
  AddWorker("prefill-0", "prefill");
  AddWorker("decode-0", "decode");
  const Json body = {{"prompt", "hello"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}};
  TlsHttp client(port(), Trusting());
  client.SendRequest("POST", "/v1/completions", body.dump());
  EXPECT_TRUE(client.Await("data: "));
  client.Close();
  // TearDown waits until no request runs and no ticket is left.
}

TEST_F(HttpsTest, SettingsThatCannotServeAreRefusedAtStart) {
  const auto error = [this] { return Router::Start(config_, &metrics_, Clock::Real()).status(); };
  config_.set_http_tls_key(dir_ + "/decode.key");
  EXPECT_EQ(error().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(error().message()), HasSubstr(dir_ + "/decode.key"));
  config_.set_http_tls_key(dir_ + "/nowhere.key");
  EXPECT_EQ(error().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(error().message()), HasSubstr("nowhere.key"));
  config_.clear_http_tls_key();
  EXPECT_EQ(error().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error().message()), HasSubstr("http_tls_key"));
}

}  // namespace
}  // namespace baton::router
