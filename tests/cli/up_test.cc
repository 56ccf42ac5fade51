// `baton up` with stand-ins for the servers: readiness, failures at start, restarts, draining, and that no process ever
// outlives it. Runs the real binary.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/control_socket.h"
#include "tests/cli/run_baton.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 60;  // seconds; generous, only reached when something is broken

class UpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static int counter = 0;
    dir_ = TempDir() + "/up" + std::to_string(::getpid()) + "." + std::to_string(counter++);
    ASSERT_EQ(::mkdir(dir_.c_str(), 0700), 0);
    // A socket's path has room for 107 bytes, which the test's own folder may use up.
    char runtime[] = "/tmp/baton-up-XXXXXX";
    ASSERT_NE(::mkdtemp(runtime), nullptr);
    runtime_dir_ = runtime;
    const char* srcdir = std::getenv("TEST_SRCDIR");
    const std::string fake = std::string(srcdir) + "/baton/tests/cli/fake_process";
    for (const char* name : {"router", "prefill_worker", "decode_worker"}) {
      ASSERT_EQ(::symlink(fake.c_str(), (dir_ + "/" + name).c_str()), 0);
    }
    WriteFile(dir_ + "/model.gguf", "GGUF");
  }

  void Start(const std::vector<std::string>& more_args = {}, const std::vector<std::string>& more_env = {}) {
    std::vector<std::string> args = {"up",          "--model", dir_ + "/model.gguf", "--bin-dir", dir_, "--listen",
                                     "127.0.0.1:0", "--http",  "127.0.0.1:0",        "--json"};
    args.insert(args.end(), more_args.begin(), more_args.end());
    std::vector<std::string> env = {"FAKE_DIR=" + dir_, "TMPDIR=" + dir_, "XDG_RUNTIME_DIR=" + runtime_dir_};
    env.insert(env.end(), more_env.begin(), more_env.end());
    up_ = std::make_unique<BatonProcess>(args, "", env);
  }

  Json Ready() {
    EXPECT_TRUE(up_->WaitForOutput("\"ready\"", kPatience)) << up_->Stderr();
    std::string line = up_->Stdout();
    return Json::parse(line.substr(0, line.find('\n')), nullptr, false);
  }

  std::string Starts() { return ReadFileOrEmpty(dir_ + "/starts"); }

  // Pids of every process that was ever started.
  std::vector<pid_t> AllPids() {
    std::vector<pid_t> pids;
    std::istringstream lines(Starts());
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name;
      pid_t pid = 0;
      words >> name >> pid;
      pids.push_back(pid);
    }
    return pids;
  }

  bool AllGone() {
    for (int i = 0; i < 400; ++i) {
      bool some = false;
      for (const pid_t pid : AllPids()) some = some || ::kill(pid, 0) == 0;
      if (!some) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }

  void TearDown() override {
    up_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(runtime_dir_, ignored);
  }

  std::string dir_;
  std::string runtime_dir_;
  std::unique_ptr<BatonProcess> up_;
};

TEST_F(UpTest, SaysHttpsWhereTheRouterSpeaksIt) {
  Start({"--http-tls-cert", "own.crt", "--http-tls-key", "own.key"});
  const Json ready = Ready();
  EXPECT_EQ(ready["openai"], "https://" + ready["http"].get<std::string>() + "/v1");
}

TEST_F(UpTest, SaysReadyOnceWithEveryAddress) {
  Start({"--prefill", "2", "--decode", "1", "--kv-memory-mib", "64"});
  const Json ready = Ready();
  ASSERT_TRUE(ready.is_object());
  EXPECT_EQ(ready["event"], "ready");
  EXPECT_TRUE(ready["listen"].is_string());
  EXPECT_EQ(ready["workers"].size(), 3u);
  EXPECT_EQ(ready["workers"][0]["name"], "prefill-0");
  EXPECT_EQ(ready["workers"][2]["role"], "decode");
  const std::string starts = Starts();
  EXPECT_NE(starts.find("--router=" + ready["listen"].get<std::string>()), std::string::npos) << starts;
  EXPECT_NE(starts.find("--kv-memory-mib=64"), std::string::npos) << starts;
  EXPECT_NE(starts.find("--threads="), std::string::npos) << starts;
  // ./run finds the router's address by the last "listen" of the line.
  const std::string line = up_->Stdout();
  EXPECT_EQ(line.find("\"listen\""), line.rfind("\"listen\""));
  up_->Signal(SIGINT);
  const Result r = up_->Wait(kPatience);
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_EQ(r.out.find('\n'), r.out.size() - 1) << "stdout has more than one line: " << r.out;
  EXPECT_TRUE(AllGone());
}

// As any other setting of workers; `up` does not look at them.
TEST_F(UpTest, WorkersGetTheSettingsOfGpus) {
  Start({"--isa", "cuda", "--numerics", "bf16", "--tensor-parallel", "2"}, {"BATON_REDUCTION_SLICES=4"});
  ASSERT_TRUE(Ready().is_object());
  std::istringstream lines(Starts());
  int workers = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("--name=") == std::string::npos) continue;
    ++workers;
    for (const char* flag : {" --isa=cuda", " --numerics=bf16", " --tensor-parallel=2", " --reduction-slices=4"}) {
      EXPECT_NE(line.find(flag), std::string::npos) << flag << " missing in " << line;
    }
  }
  EXPECT_EQ(workers, 2);
  const std::string help = RunBaton({"up", "--help"}).out;
  for (const char* flag : {"--tensor-parallel", "--reduction-slices"}) EXPECT_NE(help.find(flag), std::string::npos) << flag;
}

TEST_F(UpTest, ScalesBothWays) {
  Start({"--prefill", "1", "--decode", "2"});
  const Json ready = Ready();
  // As the command does.
  ::setenv("XDG_RUNTIME_DIR", runtime_dir_.c_str(), 1);
  const auto path = ControlSocketPath(ready["listen"].get<std::string>());
  ASSERT_TRUE(path.ok()) << path.status();
  auto answer = CallControl(*path, {{"scale", {{"prefill", 3}, {"decode", 1}}}}, absl::Seconds(30));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, Json({{"ok", true}}));
  EXPECT_TRUE(up_->WaitForOutput("prefill-2 serves", kPatience)) << up_->Stderr();
  EXPECT_TRUE(up_->WaitForOutput("decode-1 has left", kPatience)) << up_->Stderr();
  EXPECT_NE(ReadFileOrEmpty(dir_ + "/drains").find("decode-1"), std::string::npos);
  // A number that left is free again.
  answer = CallControl(*path, {{"scale", {{"decode", 2}}}}, absl::Seconds(30));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(up_->WaitForOutput("decode-1 serves", kPatience)) << up_->Stderr();
  for (const Json& wrong : {Json({{"scale", {{"decode", 0}}}}), Json({{"scale", {{"router", 2}}}}), Json("x"), Json::array()}) {
    answer = CallControl(*path, wrong, absl::Seconds(30));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->contains("error")) << wrong;
  }
  up_->Signal(SIGTERM);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 0);
  EXPECT_TRUE(AllGone());
  EXPECT_EQ(CallControl(*path, {{"scale", {{"decode", 2}}}}, absl::Seconds(1)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(UpTest, AWorkerThatWasDrainedStaysAway) {
  Start({"--prefill", "1", "--decode", "2"});
  const Json ready = Ready();
  ASSERT_EQ(::kill(ready["workers"][2]["pid"].get<pid_t>(), SIGTERM), 0);  // its answer is the event "draining"
  EXPECT_TRUE(up_->WaitForOutput("decode-1 has left", kPatience)) << up_->Stderr();
  EXPECT_EQ(up_->Stderr().find("starting decode-1 again"), std::string::npos);
  up_->Signal(SIGTERM);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 0);
}

TEST_F(UpTest, TheKeyIsPrivateAndRemoved) {
  Start();
  Ready();
  const std::string starts = Starts();
  const size_t at = starts.find("--cluster-key-file=") + 19;
  const std::string key = starts.substr(at, starts.find_first_of(" \n", at) - at);
  struct stat info;
  ASSERT_EQ(::stat(key.c_str(), &info), 0) << key;
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_GE(info.st_size, 64);
  ASSERT_EQ(::stat(key.substr(0, key.rfind('/')).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  up_->Signal(SIGTERM);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 0);
  EXPECT_NE(::stat(key.c_str(), &info), 0);
}

TEST_F(UpTest, DrainsTheRouterBeforeTheWorkers) {
  Start();
  Ready();
  up_->Signal(SIGTERM);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 0);
  EXPECT_EQ(ReadFileOrEmpty(dir_ + "/drains").rfind("router ", 0), 0u);
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, AFailureAtStartIsTheChildsOwnReason) {
  Start({}, {"FAKE_FAILS=decode-0"});
  const Result r = up_->Wait(kPatience);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("decode-0 did not start: no weights to be found"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("the disk is on fire"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("next:"), std::string::npos) << r.err;
  EXPECT_EQ(Json::parse(r.out, nullptr, false)["error"]["exit_code"], 1);
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, ARefusedWorkerEndsTheStart) {
  Start({}, {"FAKE_REFUSED=prefill-0"});
  const Result r = up_->Wait(kPatience);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("layout.dtype is f16 here"), std::string::npos) << r.err;
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, AWorkerThatDiesIsStartedAgain) {
  Start();
  const Json ready = Ready();
  ::kill(ready["workers"][0]["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(up_->WaitForOutput("prefill-0 serves again", kPatience)) << up_->Stderr();
  const std::string err = up_->Stderr();
  EXPECT_NE(err.find("prefill-0: signal 9"), std::string::npos) << err;
  EXPECT_NE(err.find("prefill-0 says hello"), std::string::npos) << err;
  up_->Signal(SIGINT);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 130);
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, ARestartedRouterKeepsItsAddress) {
  Start();
  const Json ready = Ready();
  ::kill(ready["router_pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(up_->WaitForOutput("router serves again", kPatience)) << up_->Stderr();
  const std::string starts = Starts();
  EXPECT_NE(starts.find("--listen=" + ready["listen"].get<std::string>()), std::string::npos) << starts;
}

TEST_F(UpTest, AProcessThatKeepsDyingEndsTheCluster) {
  Start({}, {"FAKE_DIES_AGAIN=decode-0"});
  const Json ready = Ready();
  ::kill(ready["workers"][1]["pid"].get<pid_t>(), SIGKILL);
  const Result r = up_->Wait(kPatience);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("giving up"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("exit code 3"), std::string::npos) << r.err;
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, KillingItLeavesNoOrphan) {
  Start({"--prefill", "2"});
  Ready();
  ASSERT_EQ(AllPids().size(), 4u);
  up_->Signal(SIGKILL);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 128 + SIGKILL);
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, ASecondInterruptStopsAtOnce) {
  Start({}, {"FAKE_DRAINS_FOREVER=decode-0"});
  Ready();
  up_->Signal(SIGINT);
  ASSERT_TRUE(up_->WaitForOutput("Ctrl-C again", kPatience));
  up_->Signal(SIGINT);
  EXPECT_EQ(up_->Wait(kPatience).exit_code, 130);
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, AnInterruptWhileLoadingStopsAll) {
  Start({}, {"FAKE_NEVER_READY=prefill-0"});
  for (int i = 0; i < 400 && AllPids().size() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  up_->Signal(SIGINT);
  const Result r = up_->Wait(kPatience);
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(AllGone());
}

TEST_F(UpTest, WrongUsageAndMissingFiles) {
  EXPECT_EQ(RunBaton({"up"}).exit_code, 2);
  const Result misspelt = RunBaton({"up", "--model", "x", "--prefil", "2"});
  EXPECT_EQ(misspelt.exit_code, 2);
  EXPECT_NE(misspelt.err.find("--prefill"), std::string::npos) << misspelt.err;
  EXPECT_EQ(RunBaton({"up", "--model", dir_ + "/model.gguf", "--prefill", "0"}).exit_code, 2);
  EXPECT_EQ(RunBaton({"up", "--model", dir_ + "/nothing.gguf"}).exit_code, 1);
  EXPECT_EQ(RunBaton({"up", "--model", dir_ + "/model.gguf", "--listen", "nonsense"}).exit_code, 2);
  const Result no_programs = RunBaton({"up", "--model", dir_ + "/model.gguf", "--listen", "127.0.0.1:0", "--http",
                                       "127.0.0.1:0", "--bin-dir", dir_ + "/empty"});
  EXPECT_EQ(no_programs.exit_code, 1);
  EXPECT_NE(no_programs.err.find("bazel build"), std::string::npos) << no_programs.err;
}

TEST_F(UpTest, APortInUseIsSaidBeforeAnythingStarts) {
  Start();
  // The stand-in router does not listen; take a port here.
  Ready();
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string taken = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const Result r = RunBaton({"up", "--model", dir_ + "/model.gguf", "--bin-dir", dir_, "--listen", taken});
  ::close(fd);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("in use"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(taken), std::string::npos) << r.err;
}

}  // namespace
}  // namespace baton::cli
