// The real gateway smg (SGLang's, in its vLLM prefill/decode mode) in front of a prefill and a decode worker of the packaged
// model: its answers are those of Baton's own router, and the KV was handed over, not recomputed.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

using Json = nlohmann::json;

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

bool Listens(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return listens;
}

// The text, finish reason and token counts of an answer, streamed or not.
struct Answer {
  std::string text, finish;
  int prompt_tokens = 0, completion_tokens = 0;
  std::string raw;
};

Answer Ask(int port, const std::string& path, Json body, bool stream) {
  Answer answer;
  body["stream"] = stream;
  if (stream) body["stream_options"] = {{"include_usage", true}};
  ::baton::testing::RawHttp client(port);
  const auto reply = client.Ask("POST", path, body.dump());
  answer.raw = absl::StrCat(reply.status, " ", reply.body);
  EXPECT_EQ(reply.status, 200) << answer.raw;
  if (reply.status != 200) return answer;
  const auto take = [&](const Json& part) {
    for (const Json& choice : part.value("choices", Json::array())) {
      const Json& holder = choice.contains("delta") ? choice["delta"] : choice.contains("message") ? choice["message"] : choice;
      const char* field = holder.contains("text") ? "text" : "content";
      if (holder.contains(field) && holder[field].is_string()) answer.text += holder[field].get<std::string>();
      if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) answer.finish = choice["finish_reason"];
    }
    if (part.contains("usage") && part["usage"].is_object()) {
      answer.prompt_tokens = part["usage"]["prompt_tokens"];
      answer.completion_tokens = part["usage"]["completion_tokens"];
    }
  };
  if (!stream) {
    take(Json::parse(reply.body));
    return answer;
  }
  for (absl::string_view line : absl::StrSplit(reply.body, '\n')) {
    if (!absl::ConsumePrefix(&line, "data: ") || line == "[DONE]") continue;
    take(Json::parse(std::string(line)));
  }
  return answer;
}

class SmgTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* cache = getenv("BATON_CACHE");
    const std::string packages = absl::StrCat(
        cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"), "/python/smg");
    struct stat info;
    ASSERT_EQ(stat((packages + "/smg").c_str(), &info), 0) << packages << " is missing; run scripts/setup --full";
    model_ = absl::StrCat(getenv("TEST_TMPDIR"), "/tokenizer");
    auto exported = Process::Start({"cli/baton", "tokenizer", "export", model_, "--model=" + SmolLm2()});
    ASSERT_TRUE(exported.ok()) << exported.status();
    ASSERT_EQ(*(*exported)->WaitExit(absl::Minutes(1)), 0) << (*exported)->stderr_text();
    auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=256", "--served-model-name=" + model_}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);

    setenv("PYTHONPATH", packages.c_str(), 1);
    for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) unsetenv(proxy);
    port_ = FreePort();
    auto smg = Process::Start({"/usr/bin/python3", "-sB", "-m", "smg.cli", "launch", "--pd-disaggregation", "--prefill",
                               "grpc://" + Worker("prefill").address, "none", "--decode",
                               "grpc://" + Worker("decode").address, "--backend", "vllm", "--model-path", model_,
                               "--host", "127.0.0.1", "--port", absl::StrCat(port_), "--prometheus-port",
                               absl::StrCat(FreePort()), "--policy", "round_robin"});
    ASSERT_TRUE(smg.ok()) << smg.status();
    smg_ = *std::move(smg);
    const absl::Time until = absl::Now() + absl::Minutes(1);
    while (absl::Now() < until && !Ready()) absl::SleepFor(absl::Milliseconds(200));
    ASSERT_TRUE(Ready()) << smg_->stdout_text() << smg_->stderr_text();
    fetched_before_ = Fetched();
  }
  bool Ready() {
    if (!Listens(port_)) return false;
    ::baton::testing::RawHttp client(port_);
    // It lists models before it has read their tokenizer (503 tokenizer_not_ready).
    const Json body = {{"model", model_}, {"prompt", "ready?"}, {"max_tokens", 1}};
    return client.Ask("POST", "/v1/completions", body.dump()).status == 200;
  }
  WorkerProcess& Worker(const std::string& role) {
    for (auto& worker : cluster_->workers()) {
      if (worker->role == role) return *worker;
    }
    abort();
  }
  double Fetched() { return cluster_->Metric(Worker("decode").http, "baton_vllm_requests_total{prompt=\"fetched\"}"); }
  double Others() { return cluster_->Metric(Worker("decode").http, "baton_vllm_requests_total") - Fetched(); }

  void ExpectSame(const std::string& path, const Json& body) {
    for (const bool stream : {false, true}) {
      SCOPED_TRACE(absl::StrCat(path, " ", body.dump(), stream ? " streamed" : ""));
      const Answer own = Ask(PortOf(cluster_->router_http()), path, body, stream);
      const Answer theirs = Ask(port_, path, body, stream);
      EXPECT_EQ(theirs.text, own.text) << theirs.raw;
      EXPECT_EQ(theirs.finish, own.finish) << theirs.raw;
      EXPECT_EQ(theirs.prompt_tokens, own.prompt_tokens);
      // At a stop string smg cuts the text of an answer that is not streamed, but counts all that was generated.
      if (!body.contains("stop")) {
        EXPECT_EQ(theirs.completion_tokens, own.completion_tokens);
      }
      ++asked_;
    }
  }

  // The folder of the tokenizer: smg looks for it where the workers say that their model is.
  std::string model_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Process> smg_;
  int port_ = 0;
  int asked_ = 0;
  double fetched_before_ = 0;
};

TEST_F(SmgTest, AnswersAreThoseOfOurOwnRouter) {
  const auto completion = [&](const std::string& prompt, Json more) {
    Json body = {{"model", model_}, {"prompt", prompt}, {"max_tokens", 24}};
    body.update(more);
    ExpectSame("/v1/completions", body);
  };
  const auto chat = [&](const std::string& words, Json more) {
    Json body = {{"model", model_}, {"messages", {{{"role", "user"}, {"content", words}}}}, {"max_tokens", 24}};
    body.update(more);
    ExpectSame("/v1/chat/completions", body);
  };
  completion("The capital of France is", {{"temperature", 0}});
  completion("Once upon a time", {{"temperature", 0.8}, {"seed", 1234}});
  completion("Once upon a time", {{"temperature", 0.9}, {"top_p", 0.9}, {"seed", 7}, {"max_tokens", 60}});
  completion("One token:", {{"temperature", 0}, {"max_tokens", 1}});
  std::string long_prompt;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&long_prompt, "Line ", i, " of a prompt that takes many blocks. ");
  completion(long_prompt, {{"temperature", 0}});
  completion("Count: 1, 2, 3,", {{"temperature", 0}, {"stop", {" 6"}}, {"max_tokens", 40}});
  chat("Say hello.", {{"temperature", 0}, {"max_tokens", 60}});
  chat("Name a colour.", {{"temperature", 0.7}, {"seed", 42}});
  EXPECT_EQ(Fetched() - fetched_before_, asked_) << "the KV of every request came from the prefill worker";
  EXPECT_EQ(Others(), 0);
  const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
