// The pure parts of `baton up`.
#include <gtest/gtest.h>
#include <signal.h>

#include "cli/child_process.h"
#include "cli/loading_progress.h"
#include "cli/restart_policy.h"

namespace baton::cli {
namespace {

TEST(RestartPolicyTest, BacksOffThenGivesUp) {
  RestartPolicy policy;
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(policy.OnDeath(now), absl::Milliseconds(250));
  EXPECT_EQ(policy.OnDeath(now), absl::Milliseconds(500));
  EXPECT_EQ(policy.OnDeath(now), absl::Seconds(1));
  EXPECT_EQ(policy.OnDeath(now), absl::Seconds(2));
  EXPECT_EQ(policy.OnDeath(now), absl::Seconds(4));
  EXPECT_EQ(policy.OnDeath(now), std::nullopt);
}

TEST(RestartPolicyTest, OldDeathsAreForgotten) {
  RestartPolicy policy;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(policy.OnDeath(now), absl::Milliseconds(250));
    now += RestartPolicy::Window() + absl::Seconds(1);
  }
}

TEST(LoadingProgressTest, BarNeverWiderThanTheTerminal) {
  const std::vector<ProcessProgress> processes = {
      {"router", "", 1, true}, {"prefill-0", "weights", 0.5, false}, {"decode-0", "", 0, false}};
  for (int columns = 2; columns < 200; ++columns) {
    EXPECT_LT(static_cast<int>(ProgressBar(processes, absl::Seconds(3), columns).size()), columns);
  }
  const std::string bar = ProgressBar(processes, absl::Seconds(3), 200);
  EXPECT_EQ(bar, "[############            ] 50 %  3 s  router ready, prefill-0 weights 50 %, decode-0 starting");
}

TEST(LoadingProgressTest, OddNumbersDoNotHurt) {
  EXPECT_NE(ProgressBar({}, absl::ZeroDuration(), 0), "");
  EXPECT_EQ(ProgressLine({{"a", "w", 7.5, false}}, absl::Seconds(5)), "loading for 5 s: a w 100 %");
  EXPECT_EQ(ProgressLine({{"a", "w", -1, false}}, absl::Seconds(5)), "loading for 5 s: a w 0 %");
}

TEST(LineBufferTest, CutsLinesHoweverTheyArrive) {
  LineBuffer buffer;
  std::vector<std::string> lines;
  for (const char c : std::string("one\ntwo\n\nth")) buffer.Push(&c, 1, &lines);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", ""}));
  buffer.Flush(&lines);
  EXPECT_EQ(lines.back(), "th");
  buffer.Flush(&lines);
  EXPECT_EQ(lines.size(), 4u);
}

TEST(LineBufferTest, EndlessLinesAreBounded) {
  LineBuffer buffer;
  std::vector<std::string> lines;
  const std::string chunk(1 << 20, 'x');
  buffer.Push(chunk.data(), chunk.size(), &lines);
  EXPECT_EQ(lines.size(), 63u);
  EXPECT_EQ(lines[0].size(), 16u << 10);
}

TEST(ChildProcessTest, ReportsItsEnd) {
  EXPECT_EQ(ChildProcess::Start({"/no/such/program"}).status().code(), absl::StatusCode::kNotFound);
  auto child = ChildProcess::Start({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"});
  ASSERT_TRUE(child.ok()) << child.status();
  std::vector<std::string> out, err;
  while ((*child)->stdout_fd() >= 0 || (*child)->stderr_fd() >= 0) {
    for (const std::string& line : (*child)->ReadStdout()) out.push_back(line);
    for (const std::string& line : (*child)->ReadStderr()) err.push_back(line);
  }
  while (!(*child)->Ended()) {
  }
  EXPECT_EQ(out, std::vector<std::string>{"out"});
  EXPECT_EQ(err, std::vector<std::string>{"err"});
  EXPECT_EQ((*child)->EndReason(), "exit code 7");
}

TEST(ChildProcessTest, DestructionKillsIt) {
  auto child = ChildProcess::Start({"/bin/sleep", "1000"});
  ASSERT_TRUE(child.ok());
  const pid_t pid = (*child)->pid();
  child->reset();
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace baton::cli
