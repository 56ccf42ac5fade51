// Routers from EndpointSlices. The API server here is a script: no Kubernetes runs in this test, or ran in any.
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/membership/kubernetes_directory.h"

namespace baton::membership {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using nlohmann::json;

json Slice(const std::string& name, const std::string& version, const std::vector<std::string>& hosts,
           bool terminating = false) {
  json endpoints = json::array();
  for (const std::string& host : hosts) {
    endpoints.push_back({{"addresses", {host}}, {"conditions", {{"ready", false}, {"terminating", terminating}}}});
  }
  return {{"metadata", {{"name", name}, {"resourceVersion", version}}},
          {"addressType", "IPv4"},
          {"endpoints", endpoints},
          {"ports", {{{"name", "http"}, {"port", 8000}}, {{"name", "grpc"}, {"port", 50051}}}}};
}

std::string List(const std::string& version, const std::vector<json>& items, const std::string& next = "") {
  json metadata = {{"resourceVersion", version}};
  if (!next.empty()) metadata["continue"] = next;
  return json{{"kind", "EndpointSliceList"}, {"metadata", metadata}, {"items", items}}.dump();
}

std::string Event(const std::string& type, const json& object) {
  return json{{"type", type}, {"object", object}}.dump() + "\n";
}

TEST(EndpointSlicesTest, ListsAndEvents) {
  EndpointSlices slices("grpc");
  std::string next;
  ASSERT_TRUE(slices.TakeList(List("10", {Slice("a", "9", {"10.0.0.2", "10.0.0.1"})}, "more"), true, &next).ok());
  EXPECT_EQ(next, "more");
  ASSERT_TRUE(slices.TakeList(List("10", {Slice("b", "8", {"10.0.0.3"})}), false, &next).ok());
  EXPECT_EQ(next, "");
  EXPECT_EQ(absl::StrJoin(slices.Addresses(), " "), "10.0.0.1:50051 10.0.0.2:50051 10.0.0.3:50051");
  ASSERT_TRUE(slices.TakeEvent(Event("MODIFIED", Slice("a", "11", {"10.0.0.2"}))).ok());
  EXPECT_EQ(absl::StrJoin(slices.Addresses(), " "), "10.0.0.2:50051 10.0.0.3:50051");
  ASSERT_TRUE(slices.TakeEvent(Event("MODIFIED", Slice("a", "12", {"10.0.0.2"}, /*terminating=*/true))).ok());
  ASSERT_TRUE(slices.TakeEvent(Event("DELETED", Slice("b", "13", {"10.0.0.3"}))).ok());
  EXPECT_TRUE(slices.Addresses().empty());
  ASSERT_TRUE(slices.TakeEvent(Event("BOOKMARK", {{"metadata", {{"resourceVersion", "99"}}}})).ok());
  EXPECT_EQ(slices.resource_version(), "99");
}

TEST(EndpointSlicesTest, WhatIsNotOneChangesNothing) {
  EndpointSlices slices("grpc");
  std::string next;
  ASSERT_TRUE(slices.TakeList(List("10", {Slice("a", "9", {"10.0.0.1"})}), true, &next).ok());
  for (const char* text : {"", "{", "[]", "null", R"({"kind":"Status"})", R"({"kind":"EndpointSliceList"})",
                           R"({"kind":"EndpointSliceList","metadata":{"resourceVersion":"1"},"items":3})"}) {
    EXPECT_TRUE(absl::IsDataLoss(slices.TakeList(text, true, &next))) << text;
  }
  for (const char* text : {"", "7", R"({"type":"ADDED"})", R"({"type":"ADDED","object":[]})"}) {
    EXPECT_TRUE(absl::IsDataLoss(slices.TakeEvent(text))) << text;
  }
  EXPECT_TRUE(absl::IsAborted(slices.TakeEvent(R"({"type":"ERROR","object":{"kind":"Status","code":410}})")));
  EXPECT_EQ(slices.Addresses().size(), 1u);
  // A slice that lacks what it should have has no addresses, and does no harm.
  for (const char* object : {R"({"metadata":{"name":"b"}})", R"({"metadata":{"name":"b"},"ports":{},"endpoints":[1]})",
                             R"({"metadata":{"name":"b"},"ports":[{"name":"grpc","port":70000}],"endpoints":[{}]})",
                             R"({"metadata":{"name":"b"},"ports":[{"name":"grpc","port":5}],"endpoints":[{"addresses":[1]},7]})"}) {
    EXPECT_TRUE(slices.TakeEvent(absl::StrCat(R"({"type":"ADDED","object":)", object, "}")).ok()) << object;
    EXPECT_EQ(slices.Addresses().size(), 1u) << object;
  }
}

// One answer of the scripted server.
struct Answer {
  unsigned status = 200;
  std::string body;
  bool hold = false;  // keep the connection open after the body, as a watch does
};

// Serves HTTPS with one certificate; each request takes the next answer, and is noted.
class ApiServer {
 public:
  ApiServer(const std::string& cert, const std::string& key) : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}) {
    tls_.use_certificate_chain_file(cert);
    tls_.use_private_key_file(key, asio::ssl::context::pem);
    thread_ = std::thread([this] { Serve(); });
  }
  ~ApiServer() {
    {
      MutexLock lock(&mu_);
      stop_ = true;
      cv_.SignalAll();
    }
    boost::system::error_code ignored;
    asio::ip::tcp::socket wake(io_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (std::thread& t : connections_) t.join();
  }

  std::string url() { return absl::StrCat("https://localhost:", acceptor_.local_endpoint().port()); }
  void Script(Answer answer) {
    MutexLock lock(&mu_);
    answers_.push_back(std::move(answer));
    cv_.SignalAll();
  }
  // Ends all answers that are held open.
  void Cut() {
    MutexLock lock(&mu_);
    ++cuts_;
    cv_.SignalAll();
  }
  // The nth request's target and token; empty when it has not come within 20 s.
  std::string Request(size_t n) {
    MutexLock lock(&mu_);
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (requests_.size() <= n && absl::Now() < until) cv_.WaitWithTimeout(&mu_, absl::Milliseconds(100));
    return requests_.size() > n ? requests_[n] : "";
  }

 private:
  void Serve() {
    while (true) {
      asio::ip::tcp::socket socket(io_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      {
        MutexLock lock(&mu_);
        if (stop_) return;
      }
      connections_.emplace_back([this, s = std::move(socket)]() mutable { Answer1(std::move(s)); });
    }
  }

  void Answer1(asio::ip::tcp::socket socket) {
    boost::system::error_code error;
    asio::ssl::stream<asio::ip::tcp::socket> stream(std::move(socket), tls_);
    if (stream.handshake(asio::ssl::stream_base::server, error)) return;
    boost::beast::flat_buffer buffer;
    http::request<http::empty_body> request;
    if (http::read(stream, buffer, request, error), error) return;
    Answer answer;
    int cuts = 0;
    {
      MutexLock lock(&mu_);
      requests_.push_back(absl::StrCat(std::string(request.target()), " ", std::string(request[http::field::authorization])));
      cv_.SignalAll();
      while (answers_.empty() && !stop_) cv_.Wait(&mu_);
      if (stop_) return;
      answer = answers_.front();
      answers_.pop_front();
      cuts = cuts_;
    }
    http::response<http::empty_body> head{http::status(answer.status), 11};
    head.chunked(true);
    http::response_serializer<http::empty_body> serializer(head);
    http::write_header(stream, serializer, error);
    if (!answer.body.empty()) asio::write(stream, http::make_chunk(asio::buffer(answer.body)), error);
    if (answer.hold) {
      MutexLock lock(&mu_);
      while (cuts_ == cuts && !stop_) cv_.Wait(&mu_);
    } else {
      asio::write(stream, http::make_chunk_last(), error);
    }
  }

  asio::io_context io_;
  asio::ssl::context tls_{asio::ssl::context::tls_server};
  asio::ip::tcp::acceptor acceptor_;
  Mutex mu_;
  CondVar cv_;
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mu_);
  int cuts_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> connections_;
  std::thread thread_;
};

class KubernetesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = absl::StrCat(::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    const std::string make = absl::StrCat(
        "mkdir -p ", dir_, " && cd ", dir_,
        " && openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost -days 1 "
        "-keyout key.pem -out ca.crt 2>/dev/null && printf secret-1 > token && printf prod > namespace");
    ASSERT_EQ(std::system(make.c_str()), 0);
    server_ = std::make_unique<ApiServer>(dir_ + "/ca.crt", dir_ + "/key.pem");
    config_.set_membership("kubernetes");
    config_.set_kubernetes_service("baton-router");
    config_.set_kubernetes_port("grpc");
    config_.set_kubernetes_api(server_->url());
    config_.set_kubernetes_credentials(dir_);
  }
  void Open() {
    auto directory = OpenRouterDirectory(config_, [this](const std::vector<std::string>& routers) {
      MutexLock lock(&mu_);
      told_ = absl::StrJoin(routers, " ");
      cv_.SignalAll();
    });
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
  }
  ::testing::AssertionResult Becomes(const std::string& routers) {
    MutexLock lock(&mu_);
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (told_ != routers && absl::Now() < until) cv_.WaitWithTimeout(&mu_, absl::Milliseconds(100));
    if (told_ == routers) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "told \"" << told_ << "\", not \"" << routers << "\"";
  }

  std::string dir_;
  v1::Config config_;
  std::unique_ptr<ApiServer> server_;
  Mutex mu_;
  CondVar cv_;
  std::string told_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RouterDirectory> directory_;
};

TEST_F(KubernetesTest, ListsWatchesAndGoesOnWhereAWatchEnded) {
  server_->Script({.body = List("10", {Slice("a", "9", {"10.0.0.1"})}, "a=b")});
  server_->Script({.body = List("10", {Slice("b", "9", {"10.0.0.2"})})});
  server_->Script({.body = Event("MODIFIED", Slice("b", "12", {"10.0.0.2", "10.0.0.3"})), .hold = true});
  Open();
  EXPECT_TRUE(Becomes("10.0.0.1:50051 10.0.0.2:50051 10.0.0.3:50051"));
  const std::string base =
      "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dbaton-router";
  EXPECT_EQ(server_->Request(0), base + "&limit=500 Bearer secret-1");
  EXPECT_EQ(server_->Request(1), base + "&limit=500&continue=a%3db Bearer secret-1");
  EXPECT_TRUE(absl::StrContains(server_->Request(2), "&watch=1&allowWatchBookmarks=true")) << server_->Request(2);
  EXPECT_TRUE(absl::StrContains(server_->Request(2), "&resourceVersion=10 ")) << server_->Request(2);
  // Kubelet renews the token; the watch breaks, and goes on from the last version with the new one.
  std::ofstream(dir_ + "/token") << "secret-2\n";
  server_->Script({.body = Event("DELETED", Slice("a", "13", {})), .hold = true});
  server_->Cut();
  EXPECT_TRUE(Becomes("10.0.0.2:50051 10.0.0.3:50051"));
  EXPECT_TRUE(absl::StrContains(server_->Request(3), "&resourceVersion=12 Bearer secret-2")) << server_->Request(3);
}

TEST_F(KubernetesTest, AfterGoneTheListIsMadeAnew) {
  server_->Script({.body = List("10", {Slice("a", "9", {"10.0.0.1"})})});
  server_->Script({.status = 410});
  server_->Script({.body = List("500", {Slice("c", "400", {"10.0.0.9"})})});
  server_->Script({.body = R"({"type":"ERROR","object":{"kind":"Status","code":410}})" "\n"});
  server_->Script({.body = List("900", {Slice("d", "800", {"10.0.0.8"})})});
  Open();
  EXPECT_TRUE(Becomes("10.0.0.8:50051"));
  EXPECT_TRUE(absl::StrContains(server_->Request(2), "&limit=500")) << server_->Request(2);
  EXPECT_TRUE(absl::StrContains(server_->Request(4), "&limit=500")) << server_->Request(4);
}

TEST_F(KubernetesTest, AServerThatRefusesOrBreaksChangesNothing) {
  server_->Script({.body = List("10", {Slice("a", "9", {"10.0.0.1"})})});
  server_->Script({.body = "this is not JSON\n"});
  server_->Script({.status = 500});
  server_->Script({.status = 403, .body = R"({"kind":"Status"})"});
  server_->Script({.body = List("11", {})});  // nobody: a registry that has lost its data
  Open();
  EXPECT_TRUE(Becomes("10.0.0.1:50051"));
  EXPECT_NE(server_->Request(5), "") << "it must go on asking";
  EXPECT_TRUE(Becomes("10.0.0.1:50051"));
}

TEST_F(KubernetesTest, AServerWithAnotherCertificateIsNotAsked) {
  const std::string other = dir_ + "/other";
  ASSERT_EQ(std::system(absl::StrCat("mkdir -p ", other, " && cp ", dir_, "/token ", dir_, "/namespace ", other,
                                     " && openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1 -keyout ",
                                     other, "/key.pem -out ", other, "/ca.crt 2>/dev/null").c_str()), 0);
  config_.set_kubernetes_credentials(other);
  server_->Script({.body = List("10", {Slice("a", "9", {"10.0.0.1"})})});
  Open();
  absl::SleepFor(absl::Milliseconds(500));
  directory_.reset();
  MutexLock lock(&mu_);
  EXPECT_EQ(told_, "");
}

TEST_F(KubernetesTest, WrongSettingsSayWhatToDo) {
  const auto open = [this] { return OpenRouterDirectory(config_, [](const std::vector<std::string>&) {}).status(); };
  config_.set_kubernetes_service("a/b/c");
  EXPECT_TRUE(absl::IsInvalidArgument(open()));
  config_.set_kubernetes_service("prod/Baton Router");
  EXPECT_TRUE(absl::IsInvalidArgument(open()));
  config_.set_kubernetes_service("baton-router");
  config_.set_kubernetes_api("http://localhost:1");
  EXPECT_TRUE(absl::IsInvalidArgument(open()));
  config_.set_kubernetes_credentials("/nonexistent");
  const absl::Status s = open();
  EXPECT_TRUE(absl::IsNotFound(s)) << s;
  EXPECT_NE(s.message().find("service account"), absl::string_view::npos) << s;
  config_.clear_kubernetes_service();
  EXPECT_TRUE(absl::IsInvalidArgument(open()));
}

}  // namespace
}  // namespace baton::membership
