// A cluster of a tiny model beside a collector that reads traces with OpenTelemetry's own messages: one request is one whole
// trace, its spans under the right parents and in the order of the stations, and a client's traceparent is kept.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/metrics.h"
#include "tests/common/rpc/tls_http.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

using Json = nlohmann::json;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kClientSpan[] = "00f067aa0ba902b7";

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

class OtlpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* cache = getenv("BATON_CACHE");
    const std::string packages = absl::StrCat(
        cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"), "/python/otlp");
    struct stat info;
    ASSERT_EQ(stat((packages + "/opentelemetry").c_str(), &info), 0) << packages << " is missing; run scripts/setup --tests";
    setenv("PYTHONPATH", packages.c_str(), 1);
    StartCollector({});
    model_ = absl::StrCat(getenv("TEST_TMPDIR"), "/tiny.gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model_).ok());
  }

  void StartCollector(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"/usr/bin/python3", "-sB", "tests/conformance/otlp_collector.py"});
    auto collector = Process::Start(arguments);
    ASSERT_TRUE(collector.ok()) << collector.status();
    collector_ = *std::move(collector);
    auto ready = collector_->WaitEvent("ready", absl::Seconds(60));
    ASSERT_TRUE(ready.ok()) << ready.status() << collector_->stderr_text();
    collector_port_ = PortOf(ready->value("http", ""));
  }

  void StartCluster(const std::string& mode, const std::string& endpoint, std::vector<std::string> flags = {}) {
    flags.push_back("--otlp-endpoint=" + endpoint);
    flags.push_back("--kv-memory-mib=64");
    auto cluster = Cluster::Start({.model = model_, .flags = flags, .mode = mode});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", collector_port_); }

  // Over HTTP; the answer's text.
  std::string Complete(const std::string& headers, int max_tokens = 8) {
    testing::RawHttp client(PortOf(cluster_->router_http()));
    const Json body = {{"prompt", "carry the baton"}, {"max_tokens", max_tokens}, {"seed", 7}, {"ignore_eos", true}};
    const testing::HttpReply reply = client.Ask("POST", "/v1/completions", body.dump(), headers);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["choices"][0]["text"];
  }

  std::string AskCollector() {
    if (ca_.empty()) return testing::RawHttp(collector_port_).Ask("GET", "/spans").body;
    return testing::TlsHttp(collector_port_, {.ca = ca_}).Ask("GET", "/spans").body;
  }

  // Spans of one trace, once `names` are all among them.
  std::vector<Json> Spans(const std::string& trace, const std::multiset<std::string>& names) {
    std::vector<Json> spans;
    std::string all;
    const absl::Time until = absl::Now() + absl::Seconds(20);
    do {
      all = AskCollector();
      const Json taken = Json::parse(all);
      EXPECT_EQ(taken["errors"], Json::array());
      spans.clear();
      std::multiset<std::string> found;
      for (const Json& span : taken["spans"]) {
        if (!trace.empty() && span["trace"] != trace) continue;
        spans.push_back(span);
        found.insert(span["name"]);
      }
      if (std::includes(found.begin(), found.end(), names.begin(), names.end())) return spans;
      absl::SleepFor(absl::Milliseconds(50));
    } while (absl::Now() < until);
    ADD_FAILURE() << "spans are missing; there are: " << all;
    return spans;
  }

  static Json Find(const std::vector<Json>& spans, const std::string& service, const std::string& name) {
    Json found;
    for (const Json& span : spans) {
      if (span["service"] != service || span["name"] != name) continue;
      EXPECT_TRUE(found.is_null()) << "two spans " << name << " of " << service;
      found = span;
    }
    EXPECT_FALSE(found.is_null()) << "no span " << name << " of " << service;
    return found;
  }

  std::unique_ptr<Process> collector_;
  int collector_port_ = 0;
  std::string ca_;  // of a collector over TLS
  std::string model_;
  std::unique_ptr<Cluster> cluster_;
};

// What every trace of a request through both pools must be.
const std::multiset<std::string> kWhole = {"request", "tokenize", "prefill", "sample", "decode",
                                           "transfer", "logits", "sample", "emit", "stop"};

void ExpectWhole(const std::vector<Json>& spans, const std::string& parent) {
  const auto find = [&](const char* service, const char* name) {
    for (const Json& span : spans) {
      if (span["service"] == service && span["name"] == name) return span;
    }
    ADD_FAILURE() << "no span " << name << " of " << service;
    return Json{{"id", ""}, {"parent", ""}, {"start", 0}, {"end", 0}, {"kind", 0}, {"attributes", Json::object()}};
  };
  EXPECT_EQ(spans.size(), kWhole.size());
  const Json request = find("baton-router", "request"), tokenize = find("baton-router", "tokenize");
  const Json emit = find("baton-router", "emit"), stop = find("baton-router", "stop");
  const Json prefill = find("baton-prefill", "prefill"), first = find("baton-prefill", "sample");
  const Json decode = find("baton-decode", "decode"), transfer = find("baton-decode", "transfer");
  const Json logits = find("baton-decode", "logits"), sample = find("baton-decode", "sample");
  EXPECT_EQ(request["parent"], parent);
  for (const Json& child : {tokenize, emit, stop, prefill, decode}) {
    EXPECT_EQ(child["parent"], request["id"]) << child;
  }
  EXPECT_EQ(first["parent"], prefill["id"]);
  for (const Json& child : {transfer, logits, sample}) EXPECT_EQ(child["parent"], decode["id"]) << child;
  for (const Json& server : {request, prefill, decode}) EXPECT_EQ(server["kind"], 2) << server;
  // Each station begins after the one before it, and all lie within the request. Wall clocks of processes may differ a bit.
  const auto before = [](const Json& a, const char* when_a, const Json& b, const char* when_b) {
    const int64_t slack = a["service"] == b["service"] ? 0 : 50'000'000;
    EXPECT_LE(a[when_a].get<int64_t>(), b[when_b].get<int64_t>() + slack) << a << "\n" << b;
  };
  const Json order[] = {tokenize, prefill, first, logits, sample, stop};
  for (size_t i = 1; i < std::size(order); ++i) before(order[i - 1], "start", order[i], "start");
  before(first, "start", emit, "start");
  before(emit, "end", stop, "end");
  before(transfer, "end", logits, "end");
  std::set<std::string> ids;
  for (const Json& span : spans) {
    ids.insert(span["id"]);
    before(request, "start", span, "start");
    before(span, "start", span, "end");
  }
  EXPECT_EQ(ids.size(), spans.size()) << "an id came twice";
  EXPECT_EQ(request["attributes"]["gen_ai.usage.output_tokens"], 8);
  EXPECT_EQ(sample["attributes"]["baton.tokens"], 7);
  EXPECT_GT(transfer["attributes"]["baton.bytes"], 0);
}

TEST_F(OtlpTest, AClientsTraceIsKeptOverHttpAndGrpc) {
  StartCluster("disaggregated", endpoint());
  const std::string text = Complete(absl::StrCat("traceparent: 00-", kTrace, "-", kClientSpan, "-01\r\ntracestate: a=b\r\n"));
  std::vector<Json> spans = Spans(kTrace, kWhole);
  ExpectWhole(spans, kClientSpan);
  for (const Json& span : spans) EXPECT_EQ(span["state"], "a=b") << span;

  v1::GenerateRequest request;
  request.set_prompt("carry the baton");
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_ignore_eos(true);
  grpc::ClientContext context;
  const std::string trace = "11111111111111112222222222222222";
  context.AddMetadata("traceparent", absl::StrCat("00-", trace, "-", kClientSpan, "-01"));
  auto stream = cluster_->inference().Generate(&context, request);
  for (v1::GenerateResponse event; stream->Read(&event);) {
  }
  ASSERT_TRUE(stream->Finish().ok());
  ExpectWhole(Spans(trace, kWhole), kClientSpan);
  // Prompts and answers are in no span.
  const std::string all = AskCollector();
  EXPECT_FALSE(absl::StrContains(all, "carry the baton"));
  EXPECT_FALSE(!text.empty() && absl::StrContains(all, Json(text).dump())) << text;
}

TEST_F(OtlpTest, WithoutATraceparentOneRequestIsOneNewTrace) {
  StartCluster("disaggregated", endpoint());
  Complete("");
  Complete("traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01\r\n");  // not valid: as if there were none
  std::multiset<std::string> twice = kWhole;
  twice.insert(kWhole.begin(), kWhole.end());
  std::map<std::string, std::vector<Json>> traces;
  for (Json& span : Spans("", twice)) traces[span["trace"]].push_back(span);
  ASSERT_EQ(traces.size(), 2u);
  for (const auto& [trace, spans] : traces) ExpectWhole(spans, "");
}

TEST_F(OtlpTest, TheClientsNoIsKeptAndTheRatioDecidesForTheRest) {
  StartCluster("disaggregated", endpoint(), {"--trace-permille=0"});
  Complete("");
  Complete(absl::StrCat("traceparent: 00-", kTrace, "-", kClientSpan, "-00\r\n"));
  const std::string yes = "33333333333333334444444444444444";
  Complete(absl::StrCat("traceparent: 00-", yes, "-", kClientSpan, "-01\r\n"));
  Spans(yes, kWhole);
  for (const Json& span : Spans("", kWhole)) EXPECT_EQ(span["trace"], yes) << span;
}

TEST_F(OtlpTest, ADecodeWorkerThatComputesThePromptSaysSo) {
  StartCluster("aggregated", endpoint());
  Complete(absl::StrCat("traceparent: 00-", kTrace, "-", kClientSpan, "-01\r\n"));
  const std::vector<Json> spans =
      Spans(kTrace, {"request", "tokenize", "decode", "prefill", "logits", "sample", "emit", "stop"});
  const Json decode = Find(spans, "baton-decode", "decode");
  EXPECT_EQ(Find(spans, "baton-decode", "prefill")["parent"], decode["id"]);
  EXPECT_EQ(Find(spans, "baton-router", "request")["attributes"]["baton.mode"], "local");
}

TEST_F(OtlpTest, ACollectorOverTlsGetsWholeTraces) {
  const std::string certs = ::testing::TempDir() + "/certs";
  ASSERT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", certs, " >/dev/null").c_str()), 0);
  ASSERT_NO_FATAL_FAILURE(StartCollector({certs + "/router.crt", certs + "/router.key"}));
  ca_ = certs + "/ca.crt";
  StartCluster("disaggregated", absl::StrCat("https://localhost:", collector_port_), {"--otlp-tls-ca=" + ca_});
  Complete(absl::StrCat("traceparent: 00-", kTrace, "-", kClientSpan, "-01\r\n"));
  ExpectWhole(Spans(kTrace, kWhole), kClientSpan);
}

TEST_F(OtlpTest, ACollectorThatIsNotThereCostsNothingButACounter) {
  StartCluster("disaggregated", "http://127.0.0.1:9");
  for (int i = 0; i < 5; ++i) Complete("");
  const absl::Time until = absl::Now() + absl::Seconds(20);
  const std::string lost = "baton_trace_spans_total{outcome=\"failed\"}";
  while (cluster_->Metric(cluster_->router_http(), lost) == 0 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_GT(cluster_->Metric(cluster_->router_http(), lost), 0);
  EXPECT_EQ(cluster_->Metric(cluster_->router_http(), "baton_trace_spans_total{outcome=\"sent\"}"), 0);
}

}  // namespace
}  // namespace baton::e2e
