// Logs, ids, metrics, events and signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "common/ids.h"
#include "common/logging.h"
#include "common/metrics.h"
#include "common/process_events.h"
#include "common/shutdown.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(IdsTest, AreLongAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(NewIncarnation());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(seen.begin()->size(), 32u);
  EXPECT_EQ(seen.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_THAT(NewRequestId(), HasSubstr("req-"));
}

TEST(LoggingTest, JsonLinesParseWhateverTheValues) {
  const std::string line = FormatLogLine(
      true, LogLevel::kWarn, "t", "p", "m\"\n",
      {{"s", "a\xff\"b\n"}, {"n", 3}, {"f", 0.5}, {"b", true}, {"inf", 1.0 / 0.0}, {"st", absl::AbortedError("x")}});
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  ASSERT_FALSE(parsed.is_discarded()) << line;
  EXPECT_EQ(parsed["level"], "warn");
  EXPECT_EQ(parsed["n"], 3);
  EXPECT_EQ(parsed["b"], true);
  EXPECT_TRUE(parsed["inf"].is_null());
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(LoggingTest, TextLinesCannotBeForged) {
  const std::string line = FormatLogLine(false, LogLevel::kInfo, "t", "p", "m", {{"id", "x\nt info p: fake"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_THAT(line, HasSubstr("id=\"x\\nt info p: fake\""));
  EXPECT_THAT(FormatLogLine(false, LogLevel::kInfo, "t", "p", "m", {{"id", "plain"}}), HasSubstr("id=plain"));
}

TEST(LoggingTest, UnknownLevelsAndFormats) {
  EXPECT_FALSE(InitLogging("loud", "text", "p").ok());
  EXPECT_FALSE(InitLogging("info", "xml", "p").ok());
  EXPECT_TRUE(InitLogging("error", "json", "p").ok());
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(InitLogging("info", "text", "p").ok());
}

TEST(MetricsTest, SameNameSameObjectAndCollectHooks) {
  Metrics metrics;
  metrics.Counter("baton_x_total", "help", {{"code", "OK"}}).Increment();
  metrics.Counter("baton_x_total", "help", {{"code", "OK"}}).Increment();
  auto& gauge = metrics.Gauge("baton_g", "help");
  int value = 5;
  {
    const auto hook = metrics.OnCollect([&] { gauge.Set(value); });
    EXPECT_THAT(metrics.Expose(), HasSubstr("baton_g 5\n"));
  }
  value = 6;
  const std::string text = metrics.Expose();
  EXPECT_THAT(text, HasSubstr("baton_g 5\n"));
  EXPECT_THAT(text, HasSubstr("baton_x_total{code=\"OK\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE baton_x_total counter\n"));
  metrics.Histogram("baton_h", "help", LatencyBuckets(), {{"station", "emit"}}).Observe(0.003);
  EXPECT_THAT(metrics.Expose(), HasSubstr("baton_h_bucket{station=\"emit\",le=\"0.005\"} 1\n"));
  auto& counter = metrics.Counter("baton_y_total", "help");
  RaiseTo(&counter, 7);
  RaiseTo(&counter, 5);
  EXPECT_EQ(counter.Value(), 7);
}

// Runs `body` in a child process with its stdout in a pipe; gives what it wrote and its wait status.
std::pair<std::string, int> InChild(const std::function<void()>& body,
                                    const std::function<void(pid_t, int fd)>& parent = nullptr) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fds[1], STDOUT_FILENO);
    close(fds[0]);
    close(fds[1]);
    body();
    _exit(0);
  }
  close(fds[1]);
  if (parent) parent(pid, fds[0]);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) > 0;) out.append(buffer, n);
  close(fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return {out, status};
}

// A log collector that stood still stopped every thread that had something to log, and with them all requests.
TEST(LoggingTest, AReaderThatStandsStillHoldsNobodyUp) {
  constexpr int kLines = 20000;  // more than a pipe holds
  int log[2];
  ASSERT_EQ(pipe(log), 0);
  std::string text;
  const auto [out, status] = InChild(
      [&] {
        alarm(60);  // instead of hanging
        dup2(log[1], STDERR_FILENO);
        close(log[0]);
        close(log[1]);
        for (int i = 0; i < kLines; ++i) LogInfo("a line", {{"number", i}, {"long", std::string(i % 50 == 7 ? 9000 : 9, 'x')}});
        EmitEvent("through");
        // Until all is read: what is left of a long line goes first, and takes more than the next free page.
        for (int unread = 1; ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0;) usleep(1000);
        LogInfo("the last line");
      },
      [&](pid_t, int fd) {
        close(log[1]);
        char c = 0;
        while (read(fd, &c, 1) == 1 && c != '\n') {
        }
        EXPECT_EQ(c, '\n') << "it waits for its log";
        char buffer[4096];
        for (ssize_t n; (n = read(log[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
      });
  close(log[0]);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_THAT(text, HasSubstr("the last line\n"));
  int whole = 0, dropped = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("dropped=");
    if (at != std::string::npos) dropped += std::stoi(line.substr(at + 8));
    whole += line.find("a line") != std::string::npos && line.find("long=") != std::string::npos &&
             line.size() < 9200 && (line.size() < 200 || line.size() > 9000);
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(whole + dropped, kLines);
}

TEST(ProcessEventsTest, OneJsonObjectALineAndNothingElseOnStdout) {
  const auto [out, status] = InChild([] {
    ReserveStdout();
    printf("a library's chatter\n");
    fflush(stdout);
    EmitLoading("weights", 0.421);
    EmitLoading("weights", 0.422);  // the same percent
    EmitLoading("weights", 2);
    EmitReady("prefill", "p\"0", "127.0.0.1:1", "127.0.0.1:2");
    EmitEvent("failed", "reason", "bad \xff\n");
  });
  std::vector<nlohmann::json> events;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    events.push_back(nlohmann::json::parse(line, nullptr, false));
    ASSERT_FALSE(events.back().is_discarded()) << line;
  }
  ASSERT_EQ(events.size(), 4u) << out;
  EXPECT_EQ(events[0]["progress"], 0.42);
  EXPECT_EQ(events[1]["progress"], 1.0);
  EXPECT_EQ(events[2]["name"], "p\"0");
  EXPECT_EQ(events[2]["listen"], "127.0.0.1:1");
  EXPECT_EQ(events[3]["event"], "failed");
}

void ReadLine(int fd) {
  for (char c = 0; c != '\n' && read(fd, &c, 1) == 1;) {
  }
}

TEST(ShutdownTest, FirstSignalDrainsSecondEndsAtOnce) {
  const auto [out, status] = InChild(
      [] {
        ShutdownSignals signals;
        signals.OnDrain([] {
          EmitEvent("draining");
          while (true) pause();  // a drain that never ends
        });
        EmitEvent("up");
        signals.WaitForDrain();
        while (true) pause();
      },
      [](pid_t pid, int fd) {
        ReadLine(fd);
        kill(pid, SIGTERM);
        ReadLine(fd);
        kill(pid, SIGINT);
      });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(ShutdownTest, DrainIsCalledOnceAlsoWhenLate) {
  ShutdownSignals signals;
  EXPECT_FALSE(signals.draining());
  signals.RequestDrain();
  int calls = 0;
  signals.OnDrain([&] { ++calls; });
  signals.RequestDrain();
  EXPECT_EQ(calls, 1);
  signals.WaitForDrain();
}

// Bug: each thread of a parent that ends hands its children to the next, and the kernel tells them each time. The second
// time passed for a second SIGTERM, and workers ended undrained when `baton up` was killed.
TEST(ShutdownTest, DrainsWhenAParentOfManyThreadsDies) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that the orphan can be waited for here
  for (int round = 0; round < 10; ++round) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t parent = fork();
    if (parent == 0) {
      const pid_t child = fork();
      if (child == 0) {
        {
          ShutdownSignals signals;
          DrainWhenParentDies();
          [[maybe_unused]] const ssize_t n = write(fds[1], "x", 1);
          signals.WaitForDrain();
          usleep(50'000);  // a drain, in which the kernel's other signals arrive
        }
        _exit(42);
      }
      for (int i = 0; i < 16; ++i) std::thread([] { pause(); }).detach();
      char c;
      [[maybe_unused]] const ssize_t n = read(fds[0], &c, 1);
      _exit(0);
    }
    waitpid(parent, nullptr, 0);
    int status = 0;
    ASSERT_GT(waitpid(-1, &status, 0), 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 42) << "round " << round;
    close(fds[0]);
    close(fds[1]);
  }
}

}  // namespace
}  // namespace baton
