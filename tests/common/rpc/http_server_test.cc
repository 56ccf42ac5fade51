#include "common/rpc/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/rpc/server.h"

namespace baton::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    timeval timeout{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  }
  ~Client() { close(fd_); }
  void Send(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = send(fd_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return;  // the server hung up, which some tests want
      done += n;
    }
  }
  // Until the server closes.
  std::string ReadAll() {
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) out.append(buffer, n);
    return out;
  }
  // Until `text` was seen.
  std::string ReadUntil(const std::string& text) {
    std::string out;
    char c;
    while (out.find(text) == std::string::npos && recv(fd_, &c, 1, 0) == 1) out += c;
    return out;
  }

 private:
  const int fd_;
};

struct Fixture {
  explicit Fixture(HttpServerOptions options = {}) : server(options) {
    AddStandardHandlers(
        &server, [] { return std::string("baton_x 1\n"); }, [this] { return readiness; });
    server.Handle("POST", "/echo", [](const HttpRequest& request) {
      HttpResponse response;
      response.body = request.body + "|" + request.query + "|" + request.headers.at("x-a");
      return response;
    });
    EXPECT_TRUE(server.Start().ok());
  }
  std::string Ask(const std::string& text) {
    Client client(server.port());
    client.Send(text);
    return client.ReadAll();
  }
  Readiness readiness;
  HttpServer server;
};

TEST(HttpServerTest, MetricsAndHealth) {
  Fixture f;
  f.readiness = {false, "loading", 0.25};
  EXPECT_THAT(f.Ask("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/plain; version=0.0.4"), HasSubstr("baton_x 1\n")));
  EXPECT_THAT(f.Ask("GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(f.Ask("GET /health/ready HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr(R"({"status":"loading","progress":0.25})")));
}

TEST(HttpServerTest, ReadyAndDraining) {
  Fixture f;
  f.readiness = {true, "ready", 1};
  EXPECT_THAT(f.Ask("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServerTest, PostWithBodyQueryAndHeaders) {
  Fixture f;
  EXPECT_THAT(f.Ask("POST /echo?q=1 HTTP/1.1\r\nX-A: v\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"),
              HasSubstr("abc|q=1|v"));
}

TEST(HttpServerTest, HeadHasTheLengthAndNoBody) {
  Fixture f;
  const std::string answer = f.Ask("HEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 10\r\n")));
  EXPECT_EQ(answer.find("baton_x"), std::string::npos);
}

TEST(HttpServerTest, UnknownPathAndMethodAreJson) {
  Fixture f;
  EXPECT_THAT(f.Ask("GET /nope HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 404"), HasSubstr(R"("status":"NOT_FOUND")"), HasSubstr("/nope")));
  EXPECT_THAT(f.Ask("DELETE /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET")));
}

TEST(HttpServerTest, KeepsConnectionsAndPipelines) {
  Fixture f;
  Client client(f.server.port());
  client.Send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("baton_x 1\n"), StartsWith("HTTP/1.1 200"));
  client.Send("GET /metrics HTTP/1.1\r\n\r\nGET /nope HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), AllOf(HasSubstr("baton_x 1\n"), HasSubstr("HTTP/1.1 404")));
}

TEST(HttpServerTest, Limits) {
  Fixture f({.max_header_bytes = 1024, .max_body_bytes = 100});
  EXPECT_THAT(f.Ask("GET / HTTP/1.1\r\nX-A: " + std::string(5000, 'a') + "\r\n\r\n"), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(f.Ask("POST /echo HTTP/1.1\r\nContent-Length: 101\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(f.Ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'a') + "\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(f.Ask("POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), StartsWith("HTTP/1.1 4"));
}

TEST(HttpServerTest, GarbageIsRefusedAndTheServerLives) {
  Fixture f;
  EXPECT_THAT(f.Ask("\x16\x03\x01 not http at all\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(f.Ask("GET / HTTP/9.9\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(f.Ask("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(f.Ask("GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServerTest, HalfARequestIsDroppedAfterTheTimeout) {
  Fixture f({.header_timeout = absl::Milliseconds(50)});
  Client client(f.server.port());
  client.Send("GET /metr");
  EXPECT_EQ(client.ReadAll(), "");  // returns because the server closed
}

TEST(HttpServerTest, IdleConnectionsAreDropped) {
  Fixture f({.idle_timeout = absl::Milliseconds(50)});
  Client client(f.server.port());
  EXPECT_EQ(client.ReadAll(), "");
}

TEST(HttpServerTest, ConnectionsOverTheLimitAreTold) {
  Fixture f({.max_connections = 1});
  Client first(f.server.port());
  first.Send("GET /metrics HTTP/1.1\r\n\r\n");
  first.ReadUntil("baton_x 1\n");
  Client second(f.server.port());
  EXPECT_THAT(second.ReadAll(), StartsWith("HTTP/1.1 503"));
}

TEST(HttpServerTest, PortInUse) {
  Fixture f;
  HttpServer other({.listen = f.server.address()});
  EXPECT_EQ(other.Start().code(), absl::StatusCode::kAlreadyExists);
}

TEST(HttpServerTest, StopsWithOpenConnections) {
  auto f = std::make_unique<Fixture>();
  Client idle(f->server.port());
  Client busy(f->server.port());
  busy.Send("GET /metr");
  f.reset();
  EXPECT_EQ(idle.ReadAll(), "");
}

}  // namespace
}  // namespace baton::rpc
