#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/load_history.h"
#include "router/request_log.h"

namespace baton::router {
namespace {

RequestStats Stats(uint32_t prompt_tokens) {
  RequestStats stats;
  stats.prompt_tokens = prompt_tokens;
  stats.itl_ms = {10, 20, 30};
  return stats;
}

void Add(RequestLog* log, const std::string& id, uint32_t prompt_tokens = 3, const std::string& tenant = "") {
  log->Add(id, tenant, absl::UnixEpoch(), absl::OkStatus(), Stats(prompt_tokens), /*seed=*/7, absl::ZeroDuration());
}

TEST(RequestLogTest, KeepsTheLatestNewestFirst) {
  RequestLog log(/*max_requests=*/3);
  for (int i = 0; i < 5; ++i) Add(&log, absl::StrCat("r", i));
  const auto latest = log.Latest("");
  ASSERT_EQ(latest.size(), 3u);
  EXPECT_EQ(latest[0]->request_id, "r4");
  EXPECT_EQ(latest[2]->request_id, "r2");
  EXPECT_EQ(log.Find("r1", ""), nullptr);
  ASSERT_NE(log.Find("r2", ""), nullptr);
}

TEST(RequestLogTest, OfTwoWithOneIdTheLatterIsFound) {
  RequestLog log;
  Add(&log, "same", 3);
  Add(&log, "same", 4);
  EXPECT_EQ(log.Find("same", "")->stats.prompt_tokens, 4u);
}

TEST(RequestLogTest, GapsBecomeFiguresAndAreDropped) {
  RequestLog log;
  Add(&log, "r");
  EXPECT_EQ(log.Find("r", "")->summary.timings().itl_p50_ms(), 20);
  EXPECT_EQ(log.Find("r", "")->summary.seed(), 7u);
  EXPECT_TRUE(log.Find("r", "")->stats.itl_ms.empty());
}

TEST(RequestLogTest, ATenantSeesItsOwnOnly) {
  RequestLog log;
  Add(&log, "r", 3, "alice");
  Add(&log, "r", 4, "bob");
  EXPECT_EQ(log.Latest("alice").size(), 1u);
  EXPECT_EQ(log.Find("r", "alice")->stats.prompt_tokens, 3u);
  EXPECT_EQ(log.Find("r", ""), nullptr);
}

TEST(RequestLogTest, WhatNeverGotInIsNotKept) {
  RequestLog log;
  Add(&log, "refused", /*prompt_tokens=*/0);
  EXPECT_TRUE(log.Latest("").empty());
}

absl::Time At(double second) { return absl::FromUnixSeconds(1000) + absl::Seconds(second); }

TEST(LoadHistoryTest, SecondsAreClosedInOrderAndNoneIsMissing) {
  LoadHistory load;
  load.Tick(At(0.1), 2, 1);
  load.FirstToken(At(0.2), absl::Milliseconds(50), 30);
  const float gaps[] = {10, 10, 40};
  load.Tokens(At(0.3), 4, gaps, 3);
  load.Tick(At(0.9), 1, 0);
  EXPECT_TRUE(load.Seconds().empty());  // it is not over
  load.Tick(At(3.5), 5, 0);
  const std::vector<LoadSecond> seconds = load.Seconds();
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_EQ(seconds[0].unix_s, 1000);
  EXPECT_EQ(seconds[0].in_flight, 2u);
  EXPECT_EQ(seconds[0].queued, 1u);
  EXPECT_EQ(seconds[0].prompt_tokens, 30u);
  EXPECT_EQ(seconds[0].generated_tokens, 4u);
  EXPECT_EQ(seconds[0].first_tokens, 1u);
  EXPECT_NEAR(seconds[0].ttft_p50_ms, 50, 5);
  EXPECT_NEAR(seconds[0].itl_p50_ms, 10, 1);
  EXPECT_NEAR(seconds[0].itl_p99_ms, 40, 4);
  EXPECT_EQ(seconds[1].unix_s, 1001);
  EXPECT_EQ(seconds[1].in_flight, 0u);
  EXPECT_EQ(seconds[1].itl_p50_ms, 0);
  EXPECT_EQ(seconds[2].unix_s, 1002);
}

TEST(LoadHistoryTest, IsBoundedAlsoAfterALongPause) {
  LoadHistory load;
  for (int s = 0; s < 700; ++s) load.Tick(At(s), 1, 0);
  EXPECT_EQ(load.Seconds().size(), LoadHistory::kSeconds);
  EXPECT_EQ(load.Seconds().back().unix_s, 1000 + 698);
  load.Tick(At(1e9), 1, 0);
  EXPECT_EQ(load.Seconds().size(), LoadHistory::kSeconds);
  EXPECT_EQ(load.Seconds().back().unix_s, 1000 + 999'999'999);
}

TEST(LoadHistoryTest, FiguresBeyondAnyBucketStayFinite) {
  LoadHistory load;
  const float gaps[] = {0, 1e30f};
  load.Tokens(At(0), 2, gaps, 2);
  load.FirstToken(At(0), absl::InfiniteDuration(), 1);
  load.Tick(At(1), 0, 0);
  EXPECT_GT(load.Seconds()[0].itl_p50_ms, 0);
  EXPECT_LT(load.Seconds()[0].ttft_p50_ms, 1e7);
}

}  // namespace
}  // namespace baton::router
