// The traceparent as W3C has it; which traces are sampled; the exporter against collectors that answer, refuse, stall and are
// not there.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "common/tracing/otlp_exporter.h"
#include "common/tracing/tracer.h"
#include "proto/compat/otlp.pb.h"

namespace baton::tracing {
namespace {

constexpr char kGood[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceparentTest, ReadsAndWrites) {
  const auto context = ParseTraceparent(kGood, "vendor=1");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_high, 0x4bf92f3577b34da6u);
  EXPECT_EQ(context->trace_low, 0xa3ce929d0e0e4736u);
  EXPECT_EQ(context->span_id, 0x00f067aa0ba902b7u);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->tracestate, "vendor=1");
  EXPECT_EQ(Traceparent(*context), kGood);
  EXPECT_FALSE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe")->sampled);
}

TEST(TraceparentTest, WhatIsNotOneIsNone) {
  for (const char* text :
       {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"}) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
  // A version to come may say more.
  EXPECT_TRUE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes").has_value());
}

TEST(TraceparentTest, ATracestateThatNoHeaderMayHoldIsDropped) {
  EXPECT_EQ(ParseTraceparent(kGood, std::string(512, 'a'))->tracestate.size(), 512u);
  EXPECT_EQ(ParseTraceparent(kGood, std::string(513, 'a'))->tracestate, "");
  EXPECT_EQ(ParseTraceparent(kGood, "a\r\nb")->tracestate, "");
}

class Kept : public SpanSink {
 public:
  explicit Kept(int* spans) : spans_(spans) {}
  void Add(Span) override { ++*spans_; }

 private:
  int* const spans_;
};

TEST(TracerTest, FollowsTheParentElseTheRatio) {
  for (const uint32_t permille : {0u, 250u, 1000u}) {
    int spans = 0;
    const Tracer tracer(std::make_unique<Kept>(&spans), permille);
    for (int i = 0; i < 2000; ++i) {
      const SpanContext own = tracer.Begin(std::nullopt);
      EXPECT_NE(own.span_id, 0u);
      tracer.End(Tracer::Child(own, "emit", absl::UnixEpoch(), absl::UnixEpoch()));
    }
    // Five standard deviations.
    EXPECT_NEAR(spans, 2 * static_cast<int>(permille), permille % 1000 == 0 ? 0 : 100);
    const SpanContext parent = *ParseTraceparent(kGood);
    const SpanContext child = tracer.Begin(parent);
    EXPECT_TRUE(child.sampled) << "whatever the ratio";
    EXPECT_EQ(child.trace_low, parent.trace_low);
    EXPECT_NE(child.span_id, parent.span_id);
  }
}

TEST(TracerTest, SettingsThatAreNoUrlAreRefused) {
  Metrics metrics;
  for (const char* bad : {"ftp://collector:4318", "https://", "https://host:port", "collector:4318", "http://", "http://host:port", "http://[::1"}) {
    v1::Config config;
    config.set_otlp_endpoint(bad);
    const auto tracer = Tracer::FromConfig(config, {"a", "b"}, &metrics);
    EXPECT_EQ(tracer.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(*Tracer::FromConfig({}, {"a", "b"}, &metrics), nullptr);
}

// A collector of which the test says how it answers.
struct Collector {
  explicit Collector(rpc::HttpServerOptions options = {}) : server(options) {
    server.HandleAsync("POST", "/in/v1/traces", [this](rpc::HttpRequest request, std::shared_ptr<rpc::HttpExchange> to) {
      ++posts;
      if (stall) {
        MutexLock lock(&mu);
        stalled.push_back(std::move(to));
        return;
      }
      compat::otlp::ExportTraceServiceRequest message;
      EXPECT_TRUE(message.ParseFromString(request.body));
      EXPECT_EQ(request.header("content-type"), "application/x-protobuf");
      {
        MutexLock lock(&mu);
        if (status == 200) received.MergeFrom(message);
      }
      rpc::HttpResponse response;
      response.status = status;
      to->Respond(response);
    });
    EXPECT_TRUE(server.Start().ok());
  }
  ~Collector() {
    MutexLock lock(&mu);
    stalled.clear();
  }
  int spans() {
    MutexLock lock(&mu);
    int number = 0;
    for (const auto& process : received.resource_spans()) number += process.scope_spans(0).spans_size();
    return number;
  }
  std::atomic<int> status{200}, posts{0};
  std::atomic<bool> stall{false};
  Mutex mu;
  compat::otlp::ExportTraceServiceRequest received ABSL_GUARDED_BY(mu);
  std::vector<std::shared_ptr<rpc::HttpExchange>> stalled ABSL_GUARDED_BY(mu);
  rpc::HttpServer server;  // first to go
};

struct Exporting {
  explicit Exporting(const std::string& address, size_t max_queue = 100, absl::Duration timeout = absl::Seconds(20))
      : Exporting("http://" + address, "", max_queue, timeout) {}
  Exporting(const std::string& url, const std::string& ca, size_t max_queue = 100,
            absl::Duration timeout = absl::Seconds(20)) {
    auto started = OtlpExporter::Start({.endpoint = url + "/in/",
                                        .ca = ca,
                                        .service = {"s", "i"},
                                        .max_queue = max_queue,
                                        .max_batch = 10,
                                        .period = absl::Milliseconds(1),
                                        .timeout = timeout},
                                       &metrics);
    EXPECT_TRUE(started.ok()) << started.status();
    exporter = *std::move(started);
  }
  void Add(int number) {
    for (int i = 0; i < number; ++i) {
      Span span = Tracer::Child(*ParseTraceparent(kGood), "emit", absl::FromUnixNanos(10), absl::FromUnixNanos(20));
      span.Set("n", int64_t{i});
      exporter->Add(std::move(span));
    }
  }
  double Count(const char* outcome) {
    return metrics.Counter("baton_trace_spans_total", "", {{"outcome", outcome}}).Value();
  }
  double Until(const char* outcome, double value) {
    for (int i = 0; i < 2000 && Count(outcome) < value; ++i) absl::SleepFor(absl::Milliseconds(10));
    return Count(outcome);
  }
  Metrics metrics;
  std::unique_ptr<OtlpExporter> exporter;
};

TEST(OtlpExporterTest, SpansArriveAsTheSpecificationHasThem) {
  Collector collector;
  Exporting exporting(collector.server.address());
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("sent", 1), 1);
  MutexLock lock(&collector.mu);
  const auto& process = collector.received.resource_spans(0);
  EXPECT_EQ(process.resource().attributes(0).key(), "service.name");
  EXPECT_EQ(process.resource().attributes(0).value().string_value(), "s");
  const compat::otlp::Span& span = process.scope_spans(0).spans(0);
  EXPECT_EQ(absl::string_view(span.trace_id()), absl::string_view("\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36", 16));
  EXPECT_EQ(absl::string_view(span.parent_span_id()), absl::string_view("\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", 8));
  EXPECT_EQ(span.span_id().size(), 8u);
  EXPECT_EQ(span.name(), "emit");
  EXPECT_EQ(span.start_time_unix_nano(), 10u);
  EXPECT_EQ(span.end_time_unix_nano(), 20u);
  EXPECT_EQ(span.attributes(0).value().int_value(), 0);
}

TEST(OtlpExporterTest, TheEndSendsWhatIsLeft) {
  Collector collector;
  {
    Exporting exporting(collector.server.address());
    exporting.Add(35);
  }
  EXPECT_EQ(collector.spans(), 35);
}

TEST(OtlpExporterTest, ARefusalIsCountedAndNotSentAgain) {
  Collector collector;
  collector.status = 503;
  Exporting exporting(collector.server.address());
  exporting.Add(5);
  EXPECT_EQ(exporting.Until("failed", 5), 5);
  collector.status = 200;
  exporting.Add(3);
  EXPECT_EQ(exporting.Until("sent", 3), 3);
  EXPECT_EQ(collector.spans(), 3);
}

TEST(OtlpExporterTest, NobodyThereIsCounted) {
  std::string address;
  {
    Collector gone;
    address = gone.server.address();
  }
  Exporting exporting(address);
  exporting.Add(5);
  EXPECT_EQ(exporting.Until("failed", 5), 5);
}

TEST(OtlpExporterTest, ACollectorThatComesBackGetsTracesAgain) {
  auto first = std::make_unique<Collector>();
  const std::string address = first->server.address();
  Exporting exporting(address);
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("sent", 1), 1);
  first.reset();  // the connection that was kept is dead
  Collector second({.listen = address});
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("sent", 2), 2);
  EXPECT_EQ(second.spans(), 1);
}

class OtlpOverTlsTest : public ::testing::Test {
 protected:
  static std::string MakeCerts(const std::string& name) {
    const std::string dir = absl::StrCat(::testing::TempDir(), "/", name);
    EXPECT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", dir, " >/dev/null").c_str()), 0);
    return dir;
  }
  rpc::HttpServerOptions Options(const std::string& listen = "127.0.0.1:0") const {
    return {.listen = listen, .tls = rpc::HttpTlsFiles{certs_ + "/router.crt", certs_ + "/router.key"}};
  }
  static std::string UrlOf(const Collector& collector) { return "https://" + collector.server.address(); }
  const std::string certs_ = MakeCerts("certs");
  const std::string ca_ = certs_ + "/ca.crt";
};

TEST_F(OtlpOverTlsTest, SpansArriveAndTheConnectionIsKeptAndMadeAnew) {
  auto first = std::make_unique<Collector>(Options());
  const std::string address = first->server.address();
  Exporting exporting(UrlOf(*first), ca_);
  for (int i = 1; i <= 3; ++i) {
    exporting.Add(1);
    EXPECT_EQ(exporting.Until("sent", i), i);
  }
  EXPECT_EQ(first->server.connections(), 1);
  EXPECT_EQ(first->spans(), 3);
  first.reset();
  Collector second(Options(address));
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("sent", 4), 4);
  EXPECT_EQ(second.spans(), 1);
}

TEST_F(OtlpOverTlsTest, WithoutASettingTheSystemsAuthoritiesCount) {
  Collector collector(Options());
  {
    Exporting exporting(UrlOf(collector), "");
    exporting.Add(1);
    EXPECT_EQ(exporting.Until("failed", 1), 1);
  }
  setenv("SSL_CERT_FILE", ca_.c_str(), 1);
  Exporting exporting(UrlOf(collector), "");
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("sent", 1), 1);
  unsetenv("SSL_CERT_FILE");
}

TEST_F(OtlpOverTlsTest, ACollectorThatIsNotWhoItShouldBeGetsNothing) {
  const std::string other = MakeCerts("other") + "/ca.crt";
  Collector collector(Options()), elsewhere(Options("127.0.0.2:0")), plain;
  const std::pair<std::string, std::string> cases[] = {
      {UrlOf(collector), other},               // signed by somebody else
      {UrlOf(elsewhere), ca_},                 // its certificate does not name that address
      {UrlOf(plain), ca_},                     // speaks no TLS
      {"http://" + collector.server.address(), ""}};  // speaks TLS only
  for (const auto& [url, ca] : cases) {
    Exporting exporting(url, ca);
    exporting.Add(1);
    EXPECT_EQ(exporting.Until("failed", 1), 1) << url;
  }
  EXPECT_EQ(collector.posts + elsewhere.posts + plain.posts, 0);
}

TEST_F(OtlpOverTlsTest, AnAuthorityThatIsNoneIsRefusedAtStart) {
  Metrics metrics;
  v1::Config config;
  config.set_otlp_endpoint("https://collector");
  for (const std::string& bad : {certs_ + "/nowhere.crt", certs_ + "/ca.key"}) {
    config.set_otlp_tls_ca(bad);
    const absl::Status status = Tracer::FromConfig(config, {"a", "b"}, &metrics).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), bad)) << status;
  }
}

TEST_F(OtlpOverTlsTest, AHandshakeThatStandsStillIsGivenUp) {
  // Listens, and never says a word.
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent, 8), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Exporting exporting(absl::StrCat("https://127.0.0.1:", ntohs(address.sin_port)), ca_, 100, absl::Milliseconds(100));
  exporting.Add(1);
  EXPECT_EQ(exporting.Until("failed", 1), 1);
  close(silent);
}

TEST(OtlpExporterTest, AStalledCollectorFillsTheQueueAndNoMore) {
  Collector collector;
  collector.stall = true;
  Exporting exporting(collector.server.address(), /*max_queue=*/20);
  exporting.Add(1);
  for (int i = 0; i < 2000 && collector.posts == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_EQ(collector.posts, 1);
  exporting.Add(100);
  EXPECT_EQ(exporting.Count("dropped"), 80);
  exporting.exporter.reset();  // ends although nobody answers
  EXPECT_EQ(exporting.Count("sent"), 0);
}

}  // namespace
}  // namespace baton::tracing
