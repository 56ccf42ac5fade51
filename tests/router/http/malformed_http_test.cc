// Requests damaged at random, the same ones in every run: whatever they are, the server answers or hangs up, and lives.
// BATON_MALFORMED=100000 for the long count.
#include "tests/common/rpc/malformed.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

TEST_F(HttpFixture, MalformedRequestsLeaveTheServerAlive) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  const auto with_length = [](const std::string& path, const std::string& body) {
    return absl::StrCat("POST ", path,
                        " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                        "\r\n\r\n", body);
  };
  const std::vector<std::string> seeds = {
      with_length("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true,"stop":["x"],"n":2})"),
      with_length("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":2,"logit_bias":{"5":-1},"temperature":0.5})"),
      with_length("/tokenize", R"({"prompt":"hello"})"),
      "POST /detokenize HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
      "10\r\n{\"tokens\":[1,2,3\r\n2\r\n]}\r\n0\r\n\r\n",
      "GET /v1/models/tiny HTTP/1.1\r\nHost: a\r\nX-Request-Id: r\r\nConnection: keep-alive\r\n\r\n",
  };
  const std::vector<std::string> pieces = {"\r\n", "\n", "\r\n\r\n", std::string("\0x", 2), ": ", "Content-Length: 5\r\n",
                                           "Transfer-Encoding: chunked\r\n", "\xff", "{", "[[[[", "\"", "1e999", "-1",
                                           "null", "HTTP/1.0", "99999999999999999999"};
  const int requests = testing::MalformedCount();
  std::mt19937_64 random(7);
  int answered = 0;
  int64_t early = 0;
  for (int i = 0; i < requests; ++i) {
    RawHttp client(port());
    client.Send(testing::Damage(seeds[random() % seeds.size()], pieces, &random));
    client.ShutdownSend();
    answered += client.ReadAll().rfind("HTTP/1.", 0) == 0;
    if (i == requests / 2) early = testing::ResidentKib();
  }
  EXPECT_GT(answered, requests / 10);
  EXPECT_LT(answered, requests);
  const int64_t grown = testing::ResidentKib() - early;
  printf("%d requests, %d answered; memory grew by %lld KiB in the second half\n", requests, answered,
         static_cast<long long>(grown));
  EXPECT_LT(grown, testing::kMayGrowKib) << "memory grows";
  EXPECT_EQ(Complete({}).status, 200);
}

}  // namespace
}  // namespace baton::router
