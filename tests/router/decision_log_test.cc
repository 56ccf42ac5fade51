#include "router/decision_log.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::router {
namespace {

v1::PlacementDecision Decision(uint32_t epoch) {
  v1::PlacementDecision decision;
  decision.set_epoch(epoch);
  return decision;
}

TEST(DecisionLogTest, TheOldestRequestGoesFirst) {
  const absl::Time now = absl::UnixEpoch();
  DecisionLog log(/*max_requests=*/3);
  for (const char* id : {"r0", "r1", "r2"}) log.Add(id, Decision(1), now);
  for (const char* id : {"r0", "r1", "r2"}) EXPECT_TRUE(log.Find(id, now).ok()) << id;
  log.Add("r0", Decision(2), now);  // placed again, but no younger for it
  log.Add("r3", Decision(1), now);
  EXPECT_TRUE(absl::IsNotFound(log.Find("r0", now).status()));
  for (const char* id : {"r1", "r2", "r3"}) EXPECT_TRUE(log.Find(id, now).ok()) << id;
  log.Add("r0", Decision(3), now);
  EXPECT_TRUE(absl::IsNotFound(log.Find("r1", now).status()));
  EXPECT_EQ(log.Find("r0", now)->decisions_size(), 1) << "what went is not remembered";
}

TEST(DecisionLogTest, KeepsTheLatestDecisionsOfARequestWithTheirAges) {
  DecisionLog log(2);
  const absl::Time begin = absl::UnixEpoch();
  for (uint32_t epoch = 1; epoch <= 11; ++epoch) log.Add("r", Decision(epoch), begin + absl::Seconds(epoch));
  const auto told = log.Find("r", begin + absl::Seconds(20));
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->request_id(), "r");
  ASSERT_EQ(told->decisions_size(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(told->decisions(i).epoch(), static_cast<uint32_t>(i + 4));
    EXPECT_EQ(told->decisions(i).age_s(), 16 - i);
  }
  log.Add("r", Decision(1), begin);  // another request of the same id
  ASSERT_EQ(log.Find("r", begin)->decisions_size(), 1);
}

}  // namespace
}  // namespace baton::router
