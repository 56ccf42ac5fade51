// The HTTP server over TLS, with certificates that deploy/certs/make_certs.sh makes: the same answers and the same limits as
// over plain HTTP (http_server_test), and what only TLS brings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "tests/common/rpc/tls_http.h"

namespace baton::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RawHttp;
using testing::TlsHttp;
using testing::TlsOptions;
namespace fs = std::filesystem;

// A folder with certificates; `name` tells authorities apart.
std::string MakeCerts(const std::string& name) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/", name);
  EXPECT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", dir, " >/dev/null").c_str()), 0);
  return dir;
}
const std::string& Certs() {
  static const auto* const kDir = new std::string(MakeCerts("certs"));
  return *kDir;
}
const std::string& OtherCerts() {
  static const auto* const kDir = new std::string(MakeCerts("other"));
  return *kDir;
}

HttpServerOptions Https(HttpServerOptions options = {}, const std::string& dir = Certs()) {
  options.tls = HttpTlsFiles{dir + "/router.crt", dir + "/router.key", absl::ZeroDuration()};
  return options;
}

struct Fixture {
  explicit Fixture(const HttpServerOptions& options = Https()) : server(options) {
    server.Handle("POST", "/echo", [](const HttpRequest& request) {
      HttpResponse response;
      response.body = request.body;
      return response;
    });
    server.HandleAsync("GET", "/stream", [this](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
      exchange->OnGone([this] {
        MutexLock lock(&mu);
        ++gone;
        changed.SignalAll();
      });
      MutexLock lock(&mu);
      waiting = std::move(exchange);
      changed.SignalAll();
    });
    const absl::Status started = server.Start();
    EXPECT_TRUE(started.ok()) << started;
  }
  ~Fixture() {
    MutexLock lock(&mu);
    waiting.reset();
  }
  std::shared_ptr<HttpExchange> Next() {
    MutexLock lock(&mu);
    while (waiting == nullptr) changed.Wait(&mu);
    return std::move(waiting);
  }
  void WaitGone() {
    MutexLock lock(&mu);
    while (gone == 0) changed.Wait(&mu);
  }
  void WaitForConnections(int count) const {
    while (server.connections() != count) absl::SleepFor(absl::Milliseconds(1));
  }
  bool Serves() const {
    TlsHttp client(server.port(), {.ca = Certs() + "/ca.crt"});
    return client.Ask("POST", "/echo", "x").body == "x";
  }
  Mutex mu;
  CondVar changed;
  int gone = 0;
  std::shared_ptr<HttpExchange> waiting;
  HttpServer server;
};

TlsOptions Trusting(const std::string& dir = Certs()) { return {.ca = dir + "/ca.crt"}; }

TEST(HttpsServerTest, AnswersOverBothVersionsOfTls) {
  Fixture f;
  for (const auto& [max, name] : {std::pair{0, "TLSv1.3"}, std::pair{TLS1_2_VERSION, "TLSv1.2"}}) {
    TlsOptions options = Trusting();
    options.max_version = max;
    TlsHttp client(f.server.port(), options);
    ASSERT_TRUE(client.connected()) << client.error();
    EXPECT_EQ(client.version(), name);
    EXPECT_EQ(client.Ask("POST", "/echo", "first").body, "first");
    // Of several records, and several requests at once.
    const std::string large(300'000, 'x');
    client.SendRequest("POST", "/echo", large);
    client.SendRequest("POST", "/echo", "third");
    EXPECT_EQ(client.ReadReply().body, large);
    EXPECT_EQ(client.ReadReply().body, "third");
    client.SendRequest("POST", "/echo", "last", "Connection: close\r\n");
    EXPECT_THAT(client.ReadAll(), HasSubstr("last"));
    EXPECT_TRUE(client.ended_well());
  }
}

TEST(HttpsServerTest, OldVersionsAndWeakCiphersAreRefused) {
  Fixture f;
  TlsOptions old = Trusting();
  old.max_version = TLS1_1_VERSION;
  EXPECT_THAT(TlsHttp(f.server.port(), old).error(), HasSubstr("alert protocol version"));
  for (const char* weak : {"ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "NULL"}) {
    TlsOptions options = Trusting();
    options.max_version = TLS1_2_VERSION;
    options.ciphers = weak;
    EXPECT_THAT(TlsHttp(f.server.port(), options).error(), HasSubstr("alert handshake failure")) << weak;
  }
  EXPECT_TRUE(f.Serves());
}

TEST(HttpsServerTest, TheCertificateIsForItsNamesAndUnderItsAuthorityOnly) {
  Fixture f;
  TlsOptions options = Trusting();
  options.host = "example.com";
  EXPECT_FALSE(TlsHttp(f.server.port(), options).connected());
  EXPECT_FALSE(TlsHttp(f.server.port(), Trusting(OtherCerts())).connected());
  EXPECT_TRUE(TlsHttp(f.server.port(), Trusting()).connected());
}

TEST(HttpsServerTest, OfTheProtocolsThatAClientOffersHttp11IsTaken) {
  Fixture f;
  TlsOptions options = Trusting();
  options.alpn = "\x02h2\x08http/1.1";
  TlsHttp both(f.server.port(), options);
  ASSERT_TRUE(both.connected()) << both.error();
  EXPECT_EQ(both.alpn(), "http/1.1");
  options.alpn = "\x02h2";
  TlsHttp grpc(f.server.port(), options);
  EXPECT_FALSE(grpc.connected());
  EXPECT_THAT(grpc.error(), HasSubstr("no application protocol"));
}

TEST(HttpsServerTest, PlainHttpIsToldToUseHttps) {
  Fixture f;
  RawHttp client(f.server.port());
  const testing::HttpReply reply = client.Ask("POST", "/echo", "x");
  EXPECT_EQ(reply.status, 400);
  EXPECT_TRUE(reply.complete);
  EXPECT_THAT(reply.body, HasSubstr("https://"));
  EXPECT_EQ(client.ReadAll(), "");
  // However much it sends.
  RawHttp large(f.server.port());
  EXPECT_THAT(large.Ask("POST", "/echo", std::string(1 << 20, 'x')).body, HasSubstr("https://"));
}

TEST(HttpsServerTest, WhatIsNoHandshakeEndsTheConnectionAlone) {
  Fixture f;
  for (const std::string& bytes : {std::string("\x16\x03\x01\x00\x05hello", 10), std::string("\x16\x03\x01\xff\xff", 5) + std::string(70'000, 'x'),
                                  std::string("\x16\x03\x01\x00\x00", 5), std::string("\x16\x00\x00\x00\x00\x00\x00", 7), std::string(100, '\x16')}) {
    RawHttp client(f.server.port());
    client.Send(bytes);
    client.ShutdownSend();
    const std::string answer = client.ReadAll();  // returns, since the server closes; at most TLS's own alert
    EXPECT_LT(answer.size(), 16u) << answer;
  }
  EXPECT_TRUE(f.Serves());
}

TEST(HttpsServerTest, AHandshakeThatStandsStillIsDroppedAfterTheTimeout) {
  Fixture f(Https({.header_timeout = absl::Milliseconds(50)}));
  RawHttp silent(f.server.port());
  RawHttp begun(f.server.port());
  begun.Send(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(begun.ReadAll(), "");
  f.WaitForConnections(0);
}

TEST(HttpsServerTest, OpenHandshakesCountAndMoreAreClosedWithoutOne) {
  Fixture f(Https({.max_connections = 3, .header_timeout = absl::Seconds(60)}));
  {
    RawHttp a(f.server.port()), b(f.server.port()), c(f.server.port());
    a.Send("\x16");
    f.WaitForConnections(3);
    for (int i = 0; i < 20; ++i) {
      EXPECT_FALSE(TlsHttp(f.server.port(), Trusting()).connected());
      RawHttp plain(f.server.port());
      EXPECT_EQ(plain.ReadAll(), "");
    }
  }
  f.WaitForConnections(0);
  EXPECT_TRUE(f.Serves());
}

TEST(HttpsServerTest, ARefusalReachesAClientThatStillSends) {
  Fixture f(Https({.max_body_bytes = 100'000}));
  TlsHttp client(f.server.port(), Trusting());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = absl::StrCat("10000\r\n", std::string(65536, 'x'), "\r\n");
  for (int i = 0; i < 16; ++i) client.Send(chunk);
  EXPECT_EQ(client.ReadReply().status, 413);
}

TEST(HttpsServerTest, PiecesOfAStreamArriveAsTheyAreWritten) {
  Fixture f;
  TlsHttp client(f.server.port(), Trusting());
  client.SendRequest("GET", "/stream");
  auto exchange = f.Next();
  exchange->Begin({});
  for (int i = 0; i < 100; ++i) {
    const std::string piece = absl::StrCat("piece ", i, "\n");
    EXPECT_TRUE(exchange->Write(piece));
    EXPECT_THAT(client.ReadUntil(piece + "\r\n"), HasSubstr(piece));
  }
  exchange->End();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_EQ(client.Ask("POST", "/echo", "and on").body, "and on");
}

// HTTP/1.0 ends a stream by closing: TLS then says that nothing was cut off.
TEST(HttpsServerTest, TheEndOfAConnectionIsSaid) {
  Fixture f;
  TlsHttp client(f.server.port(), Trusting());
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  auto exchange = f.Next();
  exchange->Begin({});
  exchange->Write("one");
  exchange->End();
  EXPECT_THAT(client.ReadAll(), HasSubstr("\r\n\r\none"));
  EXPECT_TRUE(client.ended_well());
}

TEST(HttpsServerTest, AClientThatHangsUpIsNoticed) {
  Fixture f;
  TlsHttp client(f.server.port(), Trusting());
  client.SendRequest("GET", "/stream");
  auto exchange = f.Next();
  exchange->Begin({});
  exchange->Write("one");
  client.ReadUntil("one");
  client.Close();
  f.WaitGone();
  EXPECT_FALSE(exchange->Write("two"));
}

TEST(HttpsServerTest, AReaderThatStandsStillIsDroppedAndHoldsLittle) {
  Fixture f(Https({.threads = 2, .max_buffered_bytes = 100'000}));
  TlsHttp client(f.server.port(), Trusting());
  client.SendRequest("GET", "/stream");
  auto exchange = f.Next();
  exchange->Begin({});
  const std::string piece(1000, 'x');
  int accepted = 0;
  while (accepted < 100'000 && exchange->Write(piece)) ++accepted;
  EXPECT_LT(accepted, 100'000);
  f.WaitGone();
  EXPECT_TRUE(f.Serves());
}

TEST(HttpsServerTest, AReaderThatReadsNothingForTooLongIsDropped) {
  Fixture f(Https({.max_buffered_bytes = 64 << 20, .write_timeout = absl::Milliseconds(50)}));
  TlsHttp client(f.server.port(), Trusting());
  client.SendRequest("GET", "/stream");
  auto exchange = f.Next();
  exchange->Begin({});
  exchange->Write(std::string(32 << 20, 'x'));
  f.WaitGone();
}

TEST(HttpsServerTest, StopsWithOpenConnectionsAndHandshakes) {
  auto f = std::make_unique<Fixture>();
  RawHttp silent(f->server.port());
  TlsHttp idle(f->server.port(), Trusting());
  TlsHttp busy(f->server.port(), Trusting());
  EXPECT_TRUE(idle.connected() && busy.connected());
  busy.Send("POST /ec");
  f.reset();
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST(HttpsServerTest, AChangedCertificateIsShownWithoutARestart) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/rotated");
  fs::remove_all(dir);
  fs::copy(Certs(), dir);
  Fixture f(Https({}, dir));
  TlsHttp before(f.server.port(), Trusting());
  EXPECT_EQ(before.Ask("POST", "/echo", "1").body, "1");
  const auto replace = [&](const char* file, const std::string& from) {
    fs::copy_file(absl::StrCat(from, "/", file), absl::StrCat(dir, "/", file), fs::copy_options::overwrite_existing);
  };
  // While the files do not fit together, the old pair is shown on.
  replace("router.key", OtherCerts());
  EXPECT_TRUE(TlsHttp(f.server.port(), Trusting()).connected());
  replace("router.crt", OtherCerts());
  EXPECT_TRUE(TlsHttp(f.server.port(), Trusting(OtherCerts())).connected());
  EXPECT_FALSE(TlsHttp(f.server.port(), Trusting()).connected());
  EXPECT_EQ(before.Ask("POST", "/echo", "2").body, "2") << "connections stay";
  fs::remove(dir + "/router.crt");
  EXPECT_TRUE(TlsHttp(f.server.port(), Trusting(OtherCerts())).connected());
}

// Self-signed, valid from and to so many seconds from now.
void WriteCertificate(const std::string& cert, const std::string& key, int bits, long from, long to) {
  EVP_PKEY* pkey = EVP_RSA_gen(static_cast<unsigned>(bits));
  X509* x509 = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), from);
  X509_gmtime_adj(X509_getm_notAfter(x509), to);
  X509_set_pubkey(x509, pkey);
  X509_sign(x509, pkey, EVP_sha256());
  std::FILE* out = std::fopen(cert.c_str(), "w");
  PEM_write_X509(out, x509);
  std::fclose(out);
  out = std::fopen(key.c_str(), "w");
  PEM_write_PrivateKey(out, pkey, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(out);
  X509_free(x509);
  EVP_PKEY_free(pkey);
}

TEST(HttpsServerTest, StartErrorsNameTheFile) {
  const auto error = [](const std::string& cert, const std::string& key) {
    HttpServerOptions options;
    options.tls = HttpTlsFiles{cert, key};
    return HttpServer(options).Start();
  };
  const std::string good = Certs() + "/router.crt", key = Certs() + "/router.key";
  EXPECT_EQ(error("/nowhere.crt", key).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(error("/nowhere.crt", key).message()), HasSubstr("/nowhere.crt"));
  EXPECT_EQ(error(good, "/nowhere.key").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error(good, ::testing::TempDir()).code(), absl::StatusCode::kNotFound) << "a folder";
  const std::string made = ::testing::TempDir() + "/made.crt", made_key = ::testing::TempDir() + "/made.key";
  WriteCertificate(made, made_key, 2048, -7200, -3600);
  struct Case {
    std::string cert, key, file, what;
  };
  const Case cases[] = {{key, key, key, "PEM"},
                        {good, good, good, "PEM"},
                        {good, Certs() + "/decode.key", "decode.key", "does not belong"},
                        {made, made_key, made, "has expired"}};
  for (const Case& c : cases) {
    const absl::Status status = error(c.cert, c.key);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(c.file), HasSubstr(c.what)));
  }
  WriteCertificate(made, made_key, 2048, 3600, 7200);
  EXPECT_THAT(std::string(error(made, made_key).message()), HasSubstr("not valid yet"));
  WriteCertificate(made, made_key, 512, -3600, 3600);
  EXPECT_EQ(error(made, made_key).code(), absl::StatusCode::kFailedPrecondition) << "too short a key";
  EXPECT_THAT(std::string(error(made, made_key).message()), HasSubstr("cannot be used"));
  WriteCertificate(made, made_key, 2048, -3600, 3600);
  EXPECT_TRUE(error(made, made_key).ok());
}

}  // namespace
}  // namespace baton::rpc
