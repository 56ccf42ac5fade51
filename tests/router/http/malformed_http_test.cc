// Requests damaged at random, the same ones in every run: whatever they are, the server answers or hangs up, and lives.
// BATON_MALFORMED=100000 for the long count.
#include <cstdlib>
#include <fstream>
#include <random>

#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

class MalformedHttpTest : public HttpFixture {
 protected:
  static std::string Damage(std::string text, std::mt19937_64* random) {
    const auto below = [&](size_t bound) { return static_cast<size_t>((*random)() % bound); };
    static const char* const kPieces[] = {"\r\n",
                                          "\n",
                                          "\r\n\r\n",
                                          "\0x",
                                          ": ",
                                          "Content-Length: 5\r\n",
                                          "Transfer-Encoding: chunked\r\n",
                                          "\xff",
                                          "{",
                                          "[[[[",
                                          "\"",
                                          "1e999",
                                          "-1",
                                          "null",
                                          "HTTP/1.0",
                                          "99999999999999999999"};
    for (size_t n = 1 + below(4); n > 0 && !text.empty(); --n) {
      const size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.insert(at, kPieces[below(std::size(kPieces))]);
          break;
        case 2:
          text.erase(at, 1 + below(12));
          break;
        case 3:
          text.resize(at);
          break;
        default:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
      }
    }
    return text;
  }
  static int64_t ResidentKib() {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
    }
    return 0;
  }
};

TEST_F(MalformedHttpTest, TheServerLives) {
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
  const char* count = std::getenv("BATON_MALFORMED");
  const int requests = count != nullptr ? std::atoi(count) : 2000;
  std::mt19937_64 random(7);
  int answered = 0;
  int64_t early = 0;
  for (int i = 0; i < requests; ++i) {
    RawHttp client(port());
    client.Send(Damage(seeds[random() % seeds.size()], &random));
    client.ShutdownSend();
    answered += client.ReadAll().rfind("HTTP/1.", 0) == 0;
    if (i == requests / 2) early = ResidentKib();
  }
  EXPECT_GT(answered, requests / 10);
  EXPECT_LT(answered, requests);
  EXPECT_LT(ResidentKib() - early, 64 << 10) << "memory grows";
  EXPECT_EQ(Complete({}).status, 200);
}

}  // namespace
}  // namespace baton::router
