// Who may drain and scale through the console.
#include "router/console/same_origin.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

rpc::HttpRequest Good(const std::string& host = "127.0.0.1:8000") {
  rpc::HttpRequest request;
  request.headers = {{"host", host},
                     {"origin", "http://" + host},
                     {"content-type", "application/json"},
                     {"sec-fetch-site", "same-origin"},
                     {"x-baton-console", "1"}};
  return request;
}

TEST(SameOriginTest, AddressesAndLocalhostPass) {
  for (const char* host : {"127.0.0.1:8000", "localhost:8000", "localhost", "[::1]:8000", "10.1.2.3:80"}) {
    EXPECT_TRUE(console::CheckSameOrigin(Good(host)).ok()) << host << console::CheckSameOrigin(Good(host));
  }
}

TEST(SameOriginTest, ANameThatAnyoneCouldPointHereDoesNot) {
  for (const char* host :
       {"evil.example:8000", "127.0.0.1.evil.example:8000", "localhost.evil.example", "", ":8000", "[", "[]"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(console::CheckSameOrigin(Good(host)))) << host;
  }
}

TEST(SameOriginTest, EveryPartIsNeeded) {
  for (const char* header : {"origin", "content-type", "x-baton-console"}) {
    rpc::HttpRequest request = Good();
    request.headers.erase(header);
    EXPECT_TRUE(absl::IsPermissionDenied(console::CheckSameOrigin(request))) << header;
  }
  for (const auto& [header, value] : std::map<std::string, std::string>{{"origin", "http://evil.example"},
                                                                        {"origin", "null"},
                                                                        {"origin", "http://127.0.0.1:8001"},
                                                                        {"content-type", "text/plain"},
                                                                        {"sec-fetch-site", "cross-site"},
                                                                        {"sec-fetch-site", "same-site"},
                                                                        {"x-baton-console", "0"}}) {
    rpc::HttpRequest request = Good();
    request.headers[header] = value;
    EXPECT_TRUE(absl::IsPermissionDenied(console::CheckSameOrigin(request))) << header << value;
  }
}

class AdminTest : public HttpFixture {
 protected:
  std::string Own() {
    return absl::StrCat("Origin: http://127.0.0.1:", port(), "\r\nX-Baton-Console: 1\r\n");
  }
  HttpReply Send(const std::string& path, const std::string& body, const std::string& headers) {
    RawHttp client(port());
    client.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: 127.0.0.1:", port(), "\r\nContent-Length: ", body.size(),
                             "\r\nContent-Type: application/json\r\n", headers, "\r\n", body));
    return client.ReadReply();
  }
  HttpReply Drain(const std::string& worker, const std::string& headers) {
    return Send("/baton/drain", Json{{"worker", worker}}.dump(), headers);
  }
};

TEST_F(AdminTest, IsNotThereUnlessTheSettingSaysSo) {
  StartRouter();
  AddWorker("d0", "decode");
  EXPECT_EQ(Drain("d0", Own()).status, 404);
  EXPECT_EQ(Post("/baton/scale", "{}", Own()).status, 404);
}

TEST_F(AdminTest, DrainsAWorkerOnlyForTheConsolesOwnPage) {
  config_.set_console("admin");
  StartRouter();
  fakes::ScriptedWorker* worker = AddWorker("d0", "decode");
  EXPECT_EQ(Parse(Get("/baton/cluster"))["admin"], true);
  EXPECT_EQ(Drain("d0", "").status, 403);
  EXPECT_EQ(Drain("d0", "Origin: http://evil.example\r\nX-Baton-Console: 1\r\n").status, 403);
  EXPECT_EQ(worker->drains(), 0);
  EXPECT_EQ(Drain("d0", Own()).status, 200);
  EXPECT_EQ(worker->drains(), 1);
  EXPECT_EQ(Drain("no-such", Own()).status, 404);
}

TEST_F(AdminTest, GivesAWorkerTheOtherRole) {
  config_.set_console("admin");
  StartRouter();
  fakes::ScriptedWorker* worker = AddWorker("d0", "decode");
  const auto change = [&](const Json& body, const std::string& headers) {
    return Send("/baton/role", body.dump(), headers).status;
  };
  EXPECT_EQ(change({{"worker", "d0"}, {"role", "prefill"}}, ""), 403);
  EXPECT_EQ(change({{"worker", "d0"}}, Own()), 400);
  EXPECT_EQ(change({{"worker", "d0"}, {"role", "router"}}, Own()), 400);
  EXPECT_EQ(change({{"worker", 1}, {"role", "prefill"}}, Own()), 400);
  EXPECT_EQ(change({{"worker", "no-such"}, {"role", "prefill"}}, Own()), 404);
  EXPECT_GE(change({{"worker", "d0"}, {"role", "decode"}}, Own()), 400) << "it is one already";
  EXPECT_TRUE(worker->roles().empty());
  EXPECT_EQ(change({{"worker", "d0"}, {"role", "prefill"}}, Own()), 200);
  EXPECT_EQ(worker->roles(), std::vector<std::string>{"prefill"});
}

TEST_F(AdminTest, ScaleSaysWhenNoUpRunsTheCluster) {
  config_.set_console("admin");
  StartRouter();
  const HttpReply reply = Send("/baton/scale", R"({"prefill":2,"decode":1})", Own());
  EXPECT_EQ(reply.status, 404);
  EXPECT_THAT(reply.body, HasSubstr("baton up"));
  for (const char* bad :
       {"{}", "[]", "x", R"({"prefill":0})", R"({"decode":65})", R"({"decode":1.5})", R"({"router":2})"}) {
    EXPECT_EQ(Send("/baton/scale", bad, Own()).status, 400) << bad;
  }
}

}  // namespace
}  // namespace baton::router
