#include "router/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "common/status.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AdmissionTest : public ::testing::Test {
 protected:
  Applicant Make(uint64_t id, uint64_t tokens = 100, Priority priority = Priority::kStandard) {
    Applicant a;
    a.id = id;
    a.prompt_tokens = tokens;
    a.priority = priority;
    a.arrival = now_;
    return a;
  }
  // Ids in the order in which they are offered; `full` find no room.
  std::vector<uint64_t> Offered(Admission* admission, const std::set<uint64_t>& full = {}) {
    std::vector<uint64_t> order;
    admission->Offer(now_, [&](uint64_t id) {
      order.push_back(id);
      return full.count(id) > 0 ? Admission::Verdict::kNoRoom : Admission::Verdict::kTaken;
    });
    return order;
  }
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  AdmissionOptions options_;
};

absl::Status Why(uint64_t) { return absl::UnavailableError("no decode worker is ready"); }
absl::Duration NotKnown(uint64_t) { return absl::ZeroDuration(); }

TEST_F(AdmissionTest, ClassesGoByPatienceAndNobodyWaitsForEver) {
  Admission admission(options_);
  ASSERT_TRUE(admission.Arrive(Make(1, 1, Priority::kBatch), {}, now_).ok());
  now_ += absl::Seconds(1);
  ASSERT_TRUE(admission.Arrive(Make(2), {}, now_).ok());
  now_ += absl::Seconds(1);
  ASSERT_TRUE(admission.Arrive(Make(3, 1, Priority::kHigh), {}, now_).ok());
  ASSERT_TRUE(admission.Arrive(Make(4), {}, now_).ok());
  now_ += absl::Seconds(18);
  ASSERT_TRUE(admission.Arrive(Make(5, 1, Priority::kHigh), {}, now_ + absl::Milliseconds(1)).ok());
  EXPECT_EQ(admission.queued(Priority::kHigh), 2u);
  EXPECT_THAT(Offered(&admission), ElementsAre(3, 2, 4, 1, 5)) << "the batch request came 20 s before the last one";
  EXPECT_EQ(admission.queued(), 0u);
}

TEST_F(AdmissionTest, TheQueueIsBoundedInTokens) {
  options_.max_queued_tokens = 1000;
  Admission admission(options_);
  ASSERT_TRUE(admission.Arrive(Make(1, 5000), {}, now_).ok()) << "an empty queue takes any request";
  const absl::Status full = admission.Arrive(Make(2, 1), {}, now_);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_TRUE(RetryAfterOf(full).has_value());
  admission.Leave(1);
  EXPECT_EQ(admission.queued_tokens(), 0u);
  ASSERT_TRUE(admission.Arrive(Make(3, 600), {}, now_).ok());
  ASSERT_TRUE(admission.Arrive(Make(4, 400), {}, now_).ok());
  EXPECT_FALSE(admission.Arrive(Make(5, 1), {}, now_).ok());
}

TEST_F(AdmissionTest, WhatWouldMissItsPromiseIsRefusedOnArrival) {
  options_.promises[static_cast<size_t>(Priority::kStandard)] = {absl::Seconds(2), absl::Milliseconds(50)};
  Admission admission(options_);
  const Forecast calm{absl::Milliseconds(500), absl::Milliseconds(10), 1000};
  ASSERT_TRUE(admission.Arrive(Make(1, 1200), calm, now_).ok());
  // 1.2 s of work wait, and its own half second, and a tenth more for the forecast's error.
  ASSERT_TRUE(admission.Arrive(Make(2, 200), calm, now_).ok());
  const absl::Status late = admission.Arrive(Make(3, 100), calm, now_);
  EXPECT_EQ(ReasonOf(late), "PREDICTED_TTFT");
  EXPECT_THAT(std::string(late.message()), HasSubstr("2090 ms, and 2000 ms are promised"));
  EXPECT_EQ(RetryAfterOf(late), absl::Milliseconds(100));
  EXPECT_TRUE(admission.Arrive(Make(4, 100, Priority::kHigh), calm, now_).ok()) << "goes before them";
  EXPECT_TRUE(admission.Arrive(Make(5, 100, Priority::kBatch), calm, now_).ok()) << "was promised nothing";
  Forecast busy = calm;
  busy.itl = absl::Milliseconds(51);
  EXPECT_EQ(ReasonOf(admission.Arrive(Make(6, 1), busy, now_)), "PREDICTED_ITL");
}

TEST_F(AdmissionTest, WhatWouldMissItsDeadlineIsRefusedOnArrival) {
  Admission admission(options_);
  Applicant a = Make(1);
  a.deadline = now_ + absl::Milliseconds(400);
  const absl::Status late = admission.Arrive(a, {absl::Milliseconds(401), {}, 0}, now_);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(late), "PREDICTED_TTFT");
  EXPECT_TRUE(RetryAfterOf(late).has_value());
  EXPECT_THAT(std::string(late.message()), HasSubstr("left of the request's deadline"));
  EXPECT_TRUE(admission.Arrive(a, {absl::Milliseconds(360), {}, 0}, now_).ok());
  a.id = 2;
  a.deadline = now_;
  EXPECT_EQ(admission.Arrive(a, {}, now_).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AdmissionTest, ATenantsRateRefills) {
  options_.requests_per_minute = 60;
  Admission admission(options_);
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(admission.Arrive(Make(i), {}, now_).ok());
  const absl::Status refused = admission.Arrive(Make(100), {}, now_);
  EXPECT_EQ(ReasonOf(refused), "TENANT_RATE");
  EXPECT_EQ(RetryAfterOf(refused), absl::Seconds(1));
  Applicant other = Make(101);
  other.tenant = "other";
  EXPECT_TRUE(admission.Arrive(other, {}, now_).ok());
  now_ += absl::Seconds(1);
  EXPECT_TRUE(admission.Arrive(Make(102), {}, now_).ok());
  EXPECT_FALSE(admission.Arrive(Make(103), {}, now_).ok());
}

TEST_F(AdmissionTest, ATenantsTokensAndConcurrency) {
  options_.tokens_per_minute = 600;
  options_.concurrent = 2;
  Admission admission(options_);
  ASSERT_TRUE(admission.Arrive(Make(1, 5000), {}, now_).ok()) << "more than a minute's worth passes a full bucket";
  EXPECT_EQ(ReasonOf(admission.Arrive(Make(2, 10), {}, now_)), "TENANT_RATE");
  now_ += absl::Minutes(10);
  ASSERT_TRUE(admission.Arrive(Make(3, 10), {}, now_).ok());
  EXPECT_EQ(ReasonOf(admission.Arrive(Make(4, 10), {}, now_)), "TENANT_CONCURRENCY");
  admission.Leave(1);
  admission.Leave(1);
  EXPECT_TRUE(admission.Arrive(Make(5, 10), {}, now_).ok());
  EXPECT_FALSE(admission.Arrive(Make(6, 10), {}, now_).ok());
}

TEST_F(AdmissionTest, TenantsAreBounded) {
  options_.max_tenants = 10;
  options_.requests_per_minute = 1;
  Admission admission(options_);
  for (uint64_t i = 0; i < 100; ++i) {
    Applicant a = Make(i);
    a.tenant = std::to_string(i);
    ASSERT_TRUE(admission.Arrive(a, {}, now_).ok());
    admission.Leave(i);
    now_ += absl::Milliseconds(1);
  }
  EXPECT_EQ(admission.tenants(), 10u);
}

TEST_F(AdmissionTest, ALargeRequestIsOvertakenForAWhileOnly) {
  Admission admission(options_);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(admission.Arrive(Make(i), {}, now_).ok());
  EXPECT_THAT(Offered(&admission, {1}), ElementsAre(1, 2, 3));
  now_ += Admission::kOvertakeFor;
  for (uint64_t i = 4; i <= 5; ++i) ASSERT_TRUE(admission.Arrive(Make(i), {}, now_).ok());
  EXPECT_THAT(Offered(&admission, {1}), ElementsAre(1));
  EXPECT_THAT(Offered(&admission), ElementsAre(1, 4, 5));
}

TEST_F(AdmissionTest, OnlySoManyOvertakers) {
  Admission admission(options_);
  std::set<uint64_t> full;
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(admission.Arrive(Make(i), {}, now_).ok());
    full.insert(i);
  }
  EXPECT_EQ(Offered(&admission, full).size(), 1u + Admission::kOvertakers);
}

TEST_F(AdmissionTest, AFailedOverRequestWaitsInItsOldPlaceAndIsNotJudgedAgain) {
  options_.promises[static_cast<size_t>(Priority::kStandard)].ttft = absl::Seconds(1);
  Admission admission(options_);
  const Applicant first = Make(1);
  ASSERT_TRUE(admission.Arrive(first, {}, now_).ok());
  EXPECT_THAT(Offered(&admission), ElementsAre(1));
  now_ += absl::Seconds(5);
  ASSERT_TRUE(admission.Arrive(Make(2), {}, now_).ok());
  admission.WaitAgain(first, now_);
  EXPECT_TRUE(admission.Expire(now_, Why, NotKnown).empty()) << "its client has tokens already";
  EXPECT_THAT(Offered(&admission), ElementsAre(1, 2));
}

TEST_F(AdmissionTest, WaitingEnds) {
  options_.max_wait = absl::Seconds(10);
  options_.promises[static_cast<size_t>(Priority::kHigh)].ttft = absl::Seconds(3);
  Admission admission(options_);
  ASSERT_TRUE(admission.Arrive(Make(1), {}, now_).ok());
  Applicant hurried = Make(2);
  hurried.deadline = now_ + absl::Seconds(5);
  ASSERT_TRUE(admission.Arrive(hurried, {}, now_).ok());
  ASSERT_TRUE(admission.Arrive(Make(3, 1, Priority::kHigh), {}, now_).ok());
  EXPECT_TRUE(admission.Expire(now_ + absl::Seconds(3), Why, NotKnown).empty());
  auto expired = admission.Expire(now_ + absl::Milliseconds(3001), Why, NotKnown);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].first, 3u);
  EXPECT_EQ(ReasonOf(expired[0].second), "PREDICTED_TTFT");
  expired = admission.Expire(now_ + absl::Seconds(5), Why, NotKnown);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(expired[0].second.message()), HasSubstr("no decode worker"));
  expired = admission.Expire(now_ + absl::Seconds(10), Why, NotKnown);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].second.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfterOf(expired[0].second).has_value());
  EXPECT_EQ(admission.queued(), 0u);
}

// They waited until the promise or the deadline was over, and those behind them were forecast to wait behind them.
TEST_F(AdmissionTest, WhoseTimeIsShorterThanItsPrefillWaitsNoLonger) {
  options_.promises[static_cast<size_t>(Priority::kStandard)].ttft = absl::Seconds(1);
  Admission admission(options_);
  const Forecast forecast{.ttft = absl::Milliseconds(350), .least = absl::Milliseconds(300)};
  ASSERT_TRUE(admission.Arrive(Make(1), forecast, now_).ok());
  Applicant hurried = Make(2);
  hurried.deadline = now_ + absl::Milliseconds(500);
  ASSERT_TRUE(admission.Arrive(hurried, forecast, now_).ok());
  admission.WaitAgain(Make(3), now_);
  const auto as_forecast = [](uint64_t) { return absl::Milliseconds(300); };
  EXPECT_TRUE(admission.Expire(now_ + absl::Milliseconds(200), Why, as_forecast).empty());
  auto expired = admission.Expire(now_ + absl::Milliseconds(201), Why, as_forecast);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].first, 2u);
  EXPECT_EQ(expired[0].second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(expired[0].second), "PREDICTED_TTFT");
  EXPECT_TRUE(RetryAfterOf(expired[0].second).has_value());
  EXPECT_THAT(std::string(expired[0].second.message()),
              HasSubstr("waited 201 ms, would take about 300 ms more, and the request's deadline is 500 ms after"));
  // A worker has its prompt in the cache by now: it may still come in time.
  EXPECT_TRUE(admission.Expire(now_ + absl::Milliseconds(850), Why, [](uint64_t) { return absl::Milliseconds(100); }).empty());
  expired = admission.Expire(now_ + absl::Milliseconds(901), Why, [](uint64_t) { return absl::Milliseconds(100); });
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].first, 1u);
  EXPECT_EQ(expired[0].second.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(expired[0].second), "PREDICTED_TTFT");
  EXPECT_THAT(std::string(expired[0].second.message()), HasSubstr("waited 901 ms, would take about 100 ms more"));
  EXPECT_EQ(admission.queued(), 1u) << "one that moves to another worker was promised nothing anew";
}

TEST_F(AdmissionTest, HowFastTheQueueMovesIsMeasured) {
  options_.promises[static_cast<size_t>(Priority::kStandard)].ttft = absl::Seconds(10);
  Admission admission(options_);
  // The workers could compute 1,000,000 tokens a second; decode lets 1,000 through.
  const Forecast forecast{absl::ZeroDuration(), {}, 1e6};
  uint64_t id = 0;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(admission.Arrive(Make(id++, 1000), forecast, now_).ok());
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Seconds(1);
    bool taken = false;
    admission.Offer(now_, [&](uint64_t) {
      if (taken) return Admission::Verdict::kNoRoom;
      taken = true;
      return Admission::Verdict::kTaken;
    });
  }
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(admission.Arrive(Make(id++, 1000), forecast, now_).ok()) << i;
  EXPECT_EQ(ReasonOf(admission.Arrive(Make(id++, 1000), forecast, now_)), "PREDICTED_TTFT");
}

// It was: a queue from which nothing had gone for 0.3 s counted as one token a window, so that behind a few long prompts whatever
// had a deadline was refused, with a forecast of hours.
TEST_F(AdmissionTest, AQueueOfLongPromptsIsNotTakenForStuck) {
  Admission admission(options_);
  const Forecast forecast{.ttft = absl::Seconds(1), .tokens_per_second = 1500};
  const auto with_deadline = [&](uint64_t id) {
    Applicant a = Make(id, 1500);
    a.deadline = now_ + absl::Minutes(2);
    return a;
  };
  std::set<uint64_t> waiting;
  for (uint64_t id = 1; id <= 16; ++id) {
    ASSERT_TRUE(admission.Arrive(with_deadline(id), forecast, now_).ok());
    waiting.insert(id);
  }
  uint64_t next = 17, taken = 0;
  // A prompt a second; tried every 50 ms, and one more comes for each that goes.
  for (int tick = 1; tick <= 400; ++tick) {
    now_ += absl::Milliseconds(50);
    std::set<uint64_t> full = waiting;
    if (tick % 20 == 0) full.erase(full.begin());
    for (const uint64_t id : Offered(&admission, full)) {
      if (full.count(id) > 0) continue;
      waiting.erase(id);
      ++taken;
    }
    if (tick % 20 != 10) continue;
    const absl::Status status = admission.Arrive(with_deadline(next), forecast, now_);
    ASSERT_TRUE(status.ok()) << "after " << tick * 50 << " ms: " << status;
    waiting.insert(next++);
  }
  EXPECT_EQ(taken, 20u);
}

// It was forgotten only by a router that offered nothing for 10 s, and a router offers every 50 ms: after scaling out, the
// first queue was judged by what the old workers could do, and after scaling in as well.
TEST_F(AdmissionTest, HowFastTheQueueMovedIsForgottenWhileThereIsNone) {
  options_.promises[static_cast<size_t>(Priority::kStandard)].ttft = absl::Seconds(10);
  Admission admission(options_);
  const Forecast forecast{.tokens_per_second = 1e6};
  uint64_t id = 0;
  const auto admitted = [&] {
    int admitted = 0;
    while (admitted < 100 && admission.Arrive(Make(id++, 1000), forecast, now_).ok()) ++admitted;
    return admitted;
  };
  ASSERT_EQ(admitted(), 100) << "nothing is known";
  for (int i = 0; i < 80; ++i) {
    now_ += absl::Milliseconds(100);
    bool taken = false;
    admission.Offer(now_, [&](uint64_t) {
      if (taken || i % 10 > 0) return Admission::Verdict::kNoRoom;
      taken = true;
      return Admission::Verdict::kTaken;
    });
  }
  EXPECT_EQ(admitted(), 0) << "a thousand tokens a second, and 92,000 wait";
  for (uint64_t i = 0; i < id; ++i) admission.Leave(i);
  for (int i = 0; i < 3600 * 20; ++i) {
    now_ += absl::Milliseconds(50);
    EXPECT_TRUE(Offered(&admission).empty());
  }
  EXPECT_EQ(admitted(), 100) << "that was an hour ago";
}

// Under overload the queue is as long as the forecast allows, so that every wait is at the limit. Workers that pause now and
// then make the mean a bad forecast: from the waits themselves the queue learns to promise less.
TEST_F(AdmissionTest, WhatIsAdmittedUnderOverloadIsRarelyRefusedLate) {
  options_.promises[1].ttft = absl::Seconds(1);
  Admission admission(options_);
  Forecast forecast;
  forecast.tokens_per_second = 3000;  // what nobody reaches
  constexpr int kSteps = 12000;       // of 10 ms
  int admitted = 0, taken = 0, late = 0, able = 0;
  uint64_t id = 0;
  for (int step = 0; step < kSteps; ++step) {
    now_ += absl::Milliseconds(10);
    const bool counted = step > kSteps / 4;
    if (admission.Arrive(Make(++id), forecast, now_).ok()) admitted += counted;  // ten times what can be done
    late += counted * static_cast<int>(admission.Expire(now_, Why, NotKnown).size());
    const int phase = step % 150;
    if (phase >= 110 || phase % 8 != 0) continue;  // one in 80 ms for 1.1 s, then nothing for 0.4 s
    able += counted;
    bool first = true;
    admission.Offer(now_, [&](uint64_t) {
      if (!std::exchange(first, false)) return Admission::Verdict::kNoRoom;
      taken += counted;
      return Admission::Verdict::kTaken;
    });
  }
  EXPECT_GT(taken, able * 95 / 100) << "workers stood still although requests came";
  EXPECT_LT(late, admitted / 20) << late << " of " << admitted << " admitted ones waited in vain";
}

// What a request waits for at the workers is not all in a forecast: places, steps that others share. Seen as an overload in which
// most of what was admitted came a few hundred milliseconds late.
TEST_F(AdmissionTest, WhenFirstTokensComeLateLessIsPromised) {
  options_.promises[1].ttft = absl::Seconds(1);
  Admission admission(options_);
  const Forecast forecast{.ttft = absl::Milliseconds(500)};
  EXPECT_EQ(admission.Lateness(0.9, now_), absl::ZeroDuration());
  for (int i = 0; i < 20; ++i) {
    admission.NoteFirstToken(absl::Milliseconds(100), absl::Milliseconds(i % 2 == 0 ? 90 : 600), now_);
  }
  EXPECT_EQ(admission.Lateness(0.9, now_), absl::Milliseconds(500));
  EXPECT_EQ(admission.Lateness(0.2, now_), absl::ZeroDuration());
  EXPECT_EQ(ReasonOf(admission.Arrive(Make(1), forecast, now_)), "PREDICTED_TTFT") << "0.5 s and 0.5 s more";
  now_ += absl::Seconds(6);
  EXPECT_TRUE(admission.Arrive(Make(2), forecast, now_).ok()) << "nobody came late for a while";
}

}  // namespace
}  // namespace baton::router
