// A router with scripted workers, and clients of its HTTP door.
#ifndef BATON_TESTS_ROUTER_HTTP_HTTP_FIXTURE_H_
#define BATON_TESTS_ROUTER_HTTP_HTTP_FIXTURE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/common/rpc/raw_http.h"
#include "tests/router/router_fixture.h"

namespace baton::router {

using Json = nlohmann::ordered_json;
using testing::HttpReply;
using testing::RawHttp;

class HttpFixture : public RouterFixture {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    config_.set_http_max_connections(100);
  }
  int port() const {
    const std::string& address = router_->http_address();
    return std::atoi(address.c_str() + address.rfind(':') + 1);
  }
  HttpReply Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    RawHttp client(port());
    return client.Ask("POST", path, body, headers);
  }
  HttpReply Get(const std::string& path) {
    RawHttp client(port());
    return client.Ask("GET", path);
  }
  HttpReply Chat(Json body) {
    if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "hello"}}};
    if (!body.contains("max_tokens")) body["max_tokens"] = 5;
    return Post("/v1/chat/completions", body.dump());
  }
  HttpReply Complete(Json body) {
    if (!body.contains("prompt")) body["prompt"] = "hello";
    if (!body.contains("max_tokens")) body["max_tokens"] = 5;
    return Post("/v1/completions", body.dump());
  }
  static Json Parse(const HttpReply& reply) {
    EXPECT_TRUE(reply.complete);
    Json json = Json::parse(reply.body, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << reply.body;
    return json;
  }
  // The data of each event; checks that each came as a chunk of its own and that the last is [DONE].
  static std::vector<Json> Events(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.complete);
    std::vector<Json> events;
    for (size_t i = 0; i < reply.chunks.size(); ++i) {
      const std::string& chunk = reply.chunks[i];
      EXPECT_EQ(chunk.substr(0, 6), "data: ");
      EXPECT_EQ(chunk.find("\n\n"), chunk.size() - 2) << chunk;
      EXPECT_EQ(chunk.find('\r'), std::string::npos);
      const std::string data = chunk.substr(6, chunk.size() - 8);
      EXPECT_EQ(data == "[DONE]", i + 1 == reply.chunks.size()) << chunk;
      if (data == "[DONE]") break;
      events.push_back(Json::parse(data, nullptr, false));
      EXPECT_FALSE(events.back().is_discarded()) << data;
    }
    return events;
  }
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_HTTP_HTTP_FIXTURE_H_
