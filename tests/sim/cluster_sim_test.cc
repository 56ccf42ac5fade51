// Schedules of the whole cluster with faults (cluster_sim.h). BATON_SIM_SCHEDULES: how many (2,000); BATON_SIM_FIRST: the
// first seed; BATON_SIM_VERBOSE=1 prints what happens.
#include "tests/sim/cluster_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace baton::sim {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = getenv(name);
  return value != nullptr ? strtoull(value, nullptr, 10) : otherwise;
}

constexpr uint64_t kSlices = 8;  // so that shards can share them

class ClusterSimTest : public testing::TestWithParam<uint64_t> {};

TEST_P(ClusterSimTest, NoScheduleBreaksAnInvariant) {
  const uint64_t all = FromEnvironment("BATON_SIM_SCHEDULES", 2000);
  const uint64_t schedules = all < kSlices ? (GetParam() == 0 ? all : 0) : all / kSlices;
  const uint64_t first = FromEnvironment("BATON_SIM_FIRST", 1) + GetParam() * schedules;
  const bool verbose = FromEnvironment("BATON_SIM_VERBOSE", 0) != 0;
  std::map<std::string, int> faults, ends;
  uint64_t events = 0;
  int moves = 0, broken = 0;
  for (uint64_t seed = first; seed < first + schedules && broken < 5; ++seed) {
    const Outcome outcome = RunSchedule({.seed = seed, .verbose = verbose});
    for (const std::string& violation : outcome.violations) ADD_FAILURE() << "seed " << seed << ": " << violation;
    if (!outcome.violations.empty()) {
      ++broken;
      printf("reproduce: bazel test //tests/sim:cluster_sim_test --test_output=all --test_env=BATON_SIM_FIRST=%llu "
             "--test_env=BATON_SIM_SCHEDULES=1 --test_env=BATON_SIM_VERBOSE=1\n",
             static_cast<unsigned long long>(seed));
    }
    for (const auto& [kind, number] : outcome.faults) faults[kind] += number;
    for (const auto& [code, number] : outcome.ends) ends[code] += number;
    events += outcome.events;
    moves += outcome.moves;
  }
  printf("%llu schedules from seed %llu, %llu events, %d moves\nfaults:", static_cast<unsigned long long>(schedules),
         static_cast<unsigned long long>(first), static_cast<unsigned long long>(events), moves);
  for (const auto& [kind, number] : faults) printf(" %s %d", kind.c_str(), number);
  printf("\nends:");
  for (const auto& [code, number] : ends) printf(" %s %d", code.c_str(), number);
  printf("\n");
  if (schedules < 200 || HasFailure()) return;
  // The faults hit something, and most requests came through all the same.
  for (const char* kind : {"kill", "freeze", "break", "clog", "damage", "drain", "router", "cancel", "forge"}) {
    EXPECT_GT(faults[kind], static_cast<int>(schedules / 50)) << kind;
  }
  EXPECT_GT(moves, static_cast<int>(schedules / 4));
  EXPECT_GT(ends["OK"], static_cast<int>(schedules) * 5);
}

INSTANTIATE_TEST_SUITE_P(Slices, ClusterSimTest, testing::Range<uint64_t>(0, kSlices));

TEST(ClusterSimSeedTest, ASeedRepeatsItself) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunSchedule({.seed = seed}).trace, RunSchedule({.seed = seed}).trace) << seed;
  }
  EXPECT_NE(RunSchedule({.seed = 1}).trace, RunSchedule({.seed = 2}).trace);
}

}  // namespace
}  // namespace baton::sim
