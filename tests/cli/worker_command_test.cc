// `baton role` and `baton drain` on the cluster that `baton up` runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr double kPatience = 60;

class WorkerCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string model = TempDir() + "/tiny.gguf";
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
    up_ = std::make_unique<BatonProcess>(std::vector<std::string>{
        "up", "--json", "--model", model, "--prefill", "1", "--decode", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--kv-memory-mib", "16", "--threads", "1", "--role-dwell-ms", "3600000"});
    ASSERT_TRUE(up_->WaitForOutput("\"ready\"", kPatience)) << up_->Stderr();
    const std::string out = up_->Stdout();
    ready_ = Json::parse(out.substr(0, out.find('\n')));
    router_ = ready_["listen"];
  }
  void TearDown() override {
    if (up_ == nullptr) return;
    up_->Signal(SIGTERM);
    EXPECT_EQ(up_->Wait(kPatience).exit_code, 0);
  }
  Result Run(std::vector<std::string> args) {
    args.insert(args.end(), {"--router", router_});
    return RunBaton(args);
  }
  Json Worker(const std::string& name) {
    const Json status = Json::parse(Run({"status", "--json"}).out);
    for (const Json& worker : status["workers"]) {
      if (worker["name"] == name && worker["state"] != "lost") return worker;
    }
    return nullptr;
  }
  bool Eventually(const std::function<bool()>& so) {
    for (int i = 0; i < 600; ++i) {
      if (so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  std::unique_ptr<BatonProcess> up_;
  Json ready_;
  std::string router_;
};

TEST_F(WorkerCommandTest, AWorkerChangesItsRoleAndKeepsItWhenItIsStartedAgain) {
  const Result early = Run({"role", "decode-1", "prefill"});
  EXPECT_EQ(early.exit_code, 1);
  EXPECT_THAT(early.err, HasSubstr("role_dwell_ms"));
  EXPECT_THAT(early.err, HasSubstr("baton role decode-1 prefill --force"));
  const Result changed = Run({"role", "decode-1", "prefill", "--force", "--json"});
  ASSERT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_EQ(Json::parse(changed.out), (Json{{"worker", "decode-1"}, {"role", "prefill"}}));
  EXPECT_EQ(Worker("decode-1")["role"], "prefill");
  EXPECT_TRUE(up_->WaitForOutput("decode-1 becomes a prefill worker", kPatience)) << up_->Stderr();
  pid_t pid = 0;
  for (const Json& worker : ready_["workers"]) {
    if (worker["name"] == "decode-1") pid = worker["pid"];
  }
  ASSERT_EQ(kill(pid, SIGKILL), 0) << "the process is the same";
  ASSERT_TRUE(Eventually([&] { return up_->Stderr().find("decode-1 serves again") != std::string::npos; })) << up_->Stderr();
  EXPECT_TRUE(Eventually([&] {
    const Json worker = Worker("decode-1");
    return worker.is_object() && worker["role"] == "prefill" && worker["state"] == "ready";
  })) << Worker("decode-1");
}

TEST_F(WorkerCommandTest, ADrainedWorkerLeavesForGood) {
  const Result drained = Run({"drain", "decode-0", "--timeout", "30", "--json"});
  ASSERT_EQ(drained.exit_code, 0) << drained.err;
  EXPECT_EQ(Json::parse(drained.out), (Json{{"worker", "decode-0"}, {"left", true}}));
  EXPECT_TRUE(Worker("decode-0").is_null());
  EXPECT_TRUE(up_->WaitForOutput("decode-0 has left", kPatience)) << up_->Stderr();
}

TEST_F(WorkerCommandTest, WhatIsWrongIsSaid) {
  const Result nobody = Run({"role", "nobody", "prefill"});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("no worker named nobody"));
  EXPECT_EQ(Run({"drain", "nobody"}).exit_code, 1);
  const Result router = Run({"role", "decode-1", "router"});
  EXPECT_EQ(router.exit_code, 2);
  EXPECT_THAT(router.err, HasSubstr("router not in {prefill,decode}"));
}

}  // namespace
}  // namespace baton::cli
