// `baton bench` through the real binary: against a router of this test's own that misbehaves on request, and against a
// real cluster of a tiny model.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/mutex.h"
#include "proto/inference.grpc.pb.h"
#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 60;

// Answers max_tokens tokens. Text prompts say what goes wrong.
class FakeInference : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const int now = ++in_flight_;
    {
      MutexLock lock(&mu_);
      peak_ = std::max(peak_, now);
      prompts_.push_back({request->token_ids().ids().begin(), request->token_ids().ids().end()});
    }
    const grpc::Status status = Answer(context, *request, writer);
    --in_flight_;
    return status;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse* r) override {
    v1::Model* model = r->add_models();
    model->set_name("fake<model>");
    model->set_vocab_size(1000);
    model->set_max_context(512);
    return grpc::Status::OK;
  }
  int peak() {
    MutexLock lock(&mu_);
    return peak_;
  }
  std::vector<std::vector<int32_t>> prompts() {
    MutexLock lock(&mu_);
    return prompts_;
  }
  std::atomic<int> cancelled{0};

 private:
  grpc::Status Answer(grpc::ServerContext* context, const v1::GenerateRequest& request,
                      grpc::ServerWriter<v1::GenerateResponse>* writer) {
    if (request.prompt() == "full") return {grpc::StatusCode::RESOURCE_EXHAUSTED, "every worker is full"};
    if (request.prompt() == "away") return {grpc::StatusCode::UNAVAILABLE, "draining"};
    if (request.prompt() == "nothing") return grpc::Status::OK;
    if (request.prompt() == "slow") {
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++cancelled;
      return {grpc::StatusCode::CANCELLED, "cancelled"};
    }
    v1::GenerateResponse event;
    for (int i = 0; i < request.sampling().max_tokens(); ++i) {
      event.mutable_token()->set_token_index(static_cast<uint32_t>(i));
      event.mutable_token()->set_token_id(static_cast<int32_t>(request.sampling().seed() % 100) + i);
      writer->Write(event);
    }
    event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    writer->Write(event);
    event.mutable_summary()->mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(request.token_ids().ids_size()));
    event.mutable_summary()->mutable_usage()->set_cached_tokens(1);
    event.mutable_summary()->mutable_kv()->set_bytes(100);
    writer->Write(event);
    return grpc::Status::OK;
  }
  std::atomic<int> in_flight_{0};
  Mutex mu_;
  int peak_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::vector<int32_t>> prompts_ ABSL_GUARDED_BY(mu_);
};

class BenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&inference_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    router_ = "127.0.0.1:" + std::to_string(port);
  }
  void TearDown() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::vector<std::string> Args(std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", "--router", router_});
    return more;
  }
  Json RunJson(std::vector<std::string> more, int exit_code = 0) {
    more.push_back("--json");
    const Result r = RunBaton(Args(std::move(more)));
    EXPECT_EQ(r.exit_code, exit_code) << r.err;
    const Json json = Json::parse(r.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << r.out;
    return json;
  }
  std::string Prompts(const std::string& name, const std::string& lines) {
    const std::string path = TempDir() + "/" + name;
    WriteFile(path, lines);
    return path;
  }

  FakeInference inference_;
  std::unique_ptr<grpc::Server> server_;
  std::string router_;
};

TEST_F(BenchTest, ClosedLoopKeepsToItsConcurrencyAndCounts) {
  const Json json = RunJson({"--concurrency", "3", "--requests", "12", "--input-tokens", "10", "--output-tokens", "5",
                             "--goodput", "ttft:100000", "--warmups", "2"});
  EXPECT_EQ(json["completed"], 12);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["total_input_tokens"], 120);
  EXPECT_EQ(json["total_output_tokens"], 60);
  EXPECT_EQ(json["total_cached_tokens"], 12);
  EXPECT_EQ(json["kv_bytes"], 1200);
  EXPECT_EQ(json["model_id"], "fake<model>");
  EXPECT_EQ(json["max_concurrency"], 3);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_LE(inference_.peak(), 3);
  EXPECT_EQ(inference_.prompts().size(), 14u);
  EXPECT_EQ(json["request_goodput"], json["request_throughput"]);
  for (const char* latency : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* kind : {"mean", "median", "std", "p90", "p99"}) {
      EXPECT_TRUE(json[std::string(kind) + "_" + latency + "_ms"].is_number()) << kind << latency;
    }
  }
  for (const char* key :
       {"duration", "request_throughput", "output_throughput", "total_token_throughput", "client_cpu_s"}) {
    EXPECT_GT(json[key].get<double>(), 0) << key;
  }
}

TEST_F(BenchTest, OpenLoopDoesNotWaitForAnswers) {
  // None of them ends by itself: all are sent although none was answered.
  const Json json = RunJson({"--rate", "200", "--requests", "10", "--prompts", Prompts("slow.txt", "slow\n"),
                             "--warmups", "0", "--timeout", "2"},
                            1);
  EXPECT_EQ(inference_.prompts().size(), 10u);
  EXPECT_EQ(inference_.peak(), 10);
  EXPECT_NE(json["error"]["message"].get<std::string>().find("All 10 requests failed"), std::string::npos) << json;
}

TEST_F(BenchTest, BurstAndSameSeedSamePrompts) {
  const std::vector<std::string> burst = {"--burst", "--requests",     "5",  "--seed",        "8",   "--warmups",
                                          "0",       "--input-tokens", "20", "--range-ratio", "0.3", "--output-tokens",
                                          "4"};
  const Json first = RunJson(burst), second = RunJson(burst);
  EXPECT_EQ(first["mode"], "burst");
  EXPECT_EQ(first["completed"], 5);
  EXPECT_EQ(first["output_hash"], second["output_hash"]);
  std::vector<std::vector<int32_t>> prompts = inference_.prompts();
  ASSERT_EQ(prompts.size(), 10u);
  std::sort(prompts.begin(), prompts.begin() + 5);
  std::sort(prompts.begin() + 5, prompts.end());
  EXPECT_TRUE(std::equal(prompts.begin(), prompts.begin() + 5, prompts.begin() + 5));
}

TEST_F(BenchTest, FailuresAreCountedByCode) {
  const std::string prompts = Prompts("some.txt", "full\naway\nfine\nnothing\nfull\nfine\n");
  const Json json = RunJson({"--concurrency", "2", "--requests", "6", "--prompts", prompts, "--detailed"});
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 4);
  EXPECT_EQ(json["errors_by_code"]["RESOURCE_EXHAUSTED"], 2);
  EXPECT_EQ(json["errors_by_code"]["UNAVAILABLE"], 1);
  EXPECT_EQ(json["errors_by_code"]["INTERNAL"], 1);
  EXPECT_EQ(json["errors"].size(), 6u);
  EXPECT_EQ(json["errors"][2], "");
  EXPECT_EQ(json["itls"][2].size(), 63u);
  EXPECT_EQ(RunBaton(Args({"--requests", "3", "--prompts", Prompts("full.txt", "full\n")})).exit_code, 1);
}

TEST_F(BenchTest, CtrlCPrintsWhatWasMeasured) {
  const std::string prompts = Prompts("ctrlc.txt", "fine\nfine\nslow\n");
  BatonProcess baton(Args({"--concurrency", "1", "--requests", "3", "--prompts", prompts, "--warmups", "0", "--json"}));
  while (inference_.prompts().size() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  baton.Signal(SIGINT);
  const Result r = baton.Wait(kPatience);
  EXPECT_EQ(r.exit_code, 130) << r.err;
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["cancelled"], 1);
  EXPECT_EQ(json["interrupted"], true);
  for (int i = 0; i < 500 && inference_.cancelled == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(inference_.cancelled, 1);
}

TEST_F(BenchTest, SweepAsTableCsvAndPage) {
  const std::string csv = TempDir() + "/s.csv", html = TempDir() + "/s.html", requests = TempDir() + "/r.csv";
  const Result r = RunBaton(Args({"--concurrency", "1,2,4", "--requests", "4", "--input-tokens", "8", "--output-tokens",
                                  "3", "--save", csv, "--save", html, "--save-requests", requests, "--label", "a<b"}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 4) << r.out;
  const std::string rows = ReadFileOrEmpty(csv);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 4) << rows;
  EXPECT_NE(rows.find("median_itl_ms"), std::string::npos);
  const std::string each = ReadFileOrEmpty(requests);
  EXPECT_EQ(std::count(each.begin(), each.end(), '\n'), 13) << each;
  const std::string page = ReadFileOrEmpty(html);
  size_t plots = 0;
  for (size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) ++plots;
  EXPECT_EQ(plots, 2u + 3 * 4);
  EXPECT_NE(page.find("ITL against output throughput"), std::string::npos);
  EXPECT_EQ(page.find("fake<model>"), std::string::npos);
  EXPECT_EQ(page.find("a<b"), std::string::npos);
  for (const char* outside : {"src=", "href=", "<script", "url("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  // No prompt twice: a later run would find an earlier one's in the prefix cache.
  std::vector<std::vector<int32_t>> prompts = inference_.prompts();
  std::sort(prompts.begin(), prompts.end());
  EXPECT_EQ(std::adjacent_find(prompts.begin(), prompts.end()), prompts.end());
}

TEST_F(BenchTest, TraceReplay) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    lines += "{\"timestamp\": " + std::to_string(i * 37) +
             ", \"input_length\": 1000, \"output_length\": 40, "
             "\"hash_ids\": [1, " +
             std::to_string(i) + "]}\n";
  }
  lines += "{\"timestamp\": 500, \"input_length\": 90000, \"output_length\": 40}\n";
  const Json json = RunJson({"--trace", Prompts("t.jsonl", lines), "--trace-scale", "0.1", "--trace-speed", "2"});
  EXPECT_EQ(json["mode"], "trace");
  EXPECT_EQ(json["completed"], 6);
  EXPECT_EQ(json["total_input_tokens"], 600);
  EXPECT_EQ(json["total_output_tokens"], 24);
  EXPECT_NE(json["notes"].dump().find("1 of the trace's requests were left out"), std::string::npos);
}

TEST_F(BenchTest, WrongUsage) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--concurrency", "0"},
      {"--concurrency", "two"},
      {"--concurrency", "2", "--rate", "1"},
      {"--rate", "0"},
      {"--rate", "nan"},
      {"--burstiness", "0", "--rate", "1"},
      {"--goodput", "speed:1"},
      {"--percentiles", "101"},
      {"--save", "results.txt"},
      {"--save", "/no/such/folder/r.json"},
      {"--input-tokens", "500", "--output-tokens", "20"},
      {"--prefix-tokens", "128"},
      {"--range-ratio", "-1"},
      {"--requests", "0"},
      {"--requests", "-1"},
      {"--prompts", "/no/such/file"},
      {"--prompts", Prompts("none.txt", "\n")},
      {"--trace", Prompts("bad.csv", "a,b\n")},
      {"--trace", Prompts("long.jsonl", "{\"timestamp\":0,\"input_length\":9000,\"output_length\":1}\n")},
      {"--burst", "--duration", "3"},
      {"--rate", "0.01", "--duration", "0.001"},
      {"--timeout", "-1"},
      {"extra"},
      {"--no-such-flag"}};
  for (const auto& args : wrong) {
    const Result r = RunBaton(Args(args));
    EXPECT_EQ(r.exit_code, 2) << args[0] << " " << r.out << r.err;
    EXPECT_EQ(r.out, "") << args[0];
    EXPECT_NE(r.err.find("next:"), std::string::npos) << r.err;
  }
  EXPECT_TRUE(inference_.prompts().empty());
}

// The whole of it: a router, workers and KV that moves.
TEST(BenchClusterTest, ConcurrencyChangesNoToken) {
  const std::string model = TempDir() + "/bench.gguf";
  ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
  BatonProcess up({"up", "--model", model, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kv-memory-mib", "8",
                   "--threads", "1", "--mode", "disaggregated", "--json"});
  ASSERT_TRUE(up.WaitForOutput("\"ready\"", kPatience)) << up.Stderr();
  const std::string router = Json::parse(up.Stdout(), nullptr, false)["listen"];
  std::map<std::string, Json> by_load;
  for (const std::vector<std::string>& load :
       {std::vector<std::string>{"--concurrency", "1"}, {"--concurrency", "8"}, {"--burst"}, {"--rate", "50"}}) {
    std::vector<std::string> args = {"bench", "--router",      router, "--requests",      "12", "--input-tokens",
                                     "40",    "--range-ratio", "0.5",  "--output-tokens", "12", "--temperature",
                                     "1",     "--json"};
    args.insert(args.end(), load.begin(), load.end());
    const Result r = RunBaton(args);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    by_load[load[0] + load.back()] = Json::parse(r.out, nullptr, false);
  }
  for (const auto& [load, json] : by_load) {
    EXPECT_EQ(json["completed"], 12) << load;
    EXPECT_GT(json["kv_bytes"].get<uint64_t>(), 0u) << load;
    EXPECT_EQ(json["output_hash"], by_load.begin()->second["output_hash"]) << load;
    EXPECT_EQ(json["total_output_tokens"], by_load.begin()->second["total_output_tokens"]) << load;
  }
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(kPatience).exit_code, 130);
}

}  // namespace
}  // namespace baton::cli
