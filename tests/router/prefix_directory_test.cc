#include "router/prefix_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kvcache/prefix_journal.h"
#include "router/pair_times.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

v1::PrefixReport Report(const kvcache::PrefixJournal::Report& from) {
  v1::PrefixReport out;
  out.set_base_version(from.base_version);
  out.set_version(from.version);
  out.mutable_added()->Assign(from.added.begin(), from.added.end());
  out.mutable_removed()->Assign(from.removed.begin(), from.removed.end());
  return out;
}

std::vector<uint16_t> Match(const PrefixDirectory& directory, const std::vector<uint64_t>& names,
                            absl::Time now = absl::UnixEpoch()) {
  std::vector<uint16_t> depth;
  directory.Match(names, now, &depth);
  return depth;
}

TEST(PrefixDirectoryTest, DepthStopsAtTheFirstGap) {
  kvcache::PrefixJournal a, b;
  for (const uint64_t name : {1, 2, 4}) a.Added(name);
  for (const uint64_t name : {1, 2, 3, 4}) b.Added(name);
  PrefixDirectory directory;
  EXPECT_EQ(directory.Apply(0, Report(a.Since(0))), a.Since(0).version);
  directory.Apply(1, Report(b.Since(0)));
  EXPECT_THAT(Match(directory, {1, 2, 3, 4, 5}), ElementsAre(2, 4));
  EXPECT_THAT(Match(directory, {2, 3}), ElementsAre(1, 2));
  EXPECT_THAT(Match(directory, {9}), ElementsAre(0, 0));
  directory.Clear(1);
  EXPECT_THAT(Match(directory, {1, 2, 3, 4, 5}), ElementsAre(2, 0));
}

TEST(PrefixDirectoryTest, WhatWasSentIsExpectedForAWhile) {
  PrefixDirectory directory({.expect_for = absl::Seconds(5)});
  const absl::Time t0 = absl::UnixEpoch();
  directory.Expect(2, std::vector<uint64_t>{7, 8}, t0);
  EXPECT_THAT(Match(directory, {7, 8, 9}, t0 + absl::Seconds(4)), ElementsAre(0, 0, 2));
  EXPECT_THAT(Match(directory, {7, 8, 9}, t0 + absl::Seconds(5)), testing::Each(0));
  directory.Expect(0, std::vector<uint64_t>{1}, t0 + absl::Seconds(6));
  EXPECT_THAT(Match(directory, {7}, t0), testing::Each(0)) << "and forgotten then";
}

// It was expected to hold what it had been sent, so that its forecasts left out the prompts' whole prefill.
TEST(PrefixDirectoryTest, NothingIsExpectedOfAWorkerWithoutACache) {
  PrefixDirectory directory;
  const absl::Time t0 = absl::UnixEpoch();
  directory.Apply(0, v1::PrefixReport());
  directory.Expect(0, std::vector<uint64_t>{7}, t0);
  EXPECT_THAT(Match(directory, {7}, t0), ElementsAre(0));
  kvcache::PrefixJournal journal;
  directory.Apply(0, Report(journal.Since(0)));
  directory.Expect(0, std::vector<uint64_t>{7}, t0);
  EXPECT_THAT(Match(directory, {7}, t0), ElementsAre(1)) << "it has one that is empty";
}

TEST(PrefixDirectoryTest, SizesAreBounded) {
  PrefixDirectory directory({.max_names = 3, .max_expected = 2});
  v1::PrefixReport report;
  report.set_version(1);
  for (uint64_t name = 0; name < 100; ++name) report.add_added(name);
  directory.Apply(0, report);
  EXPECT_EQ(directory.size(), 3u);
  directory.Expect(1, std::vector<uint64_t>{200, 201, 202}, absl::UnixEpoch());
  EXPECT_THAT(Match(directory, {202}), testing::Each(0));
}

// A channel that loses answers and reports, a journal that forgets, a worker that starts over: the copy is the truth
// again after one exchange that gets through.
TEST(PrefixDirectoryTest, ALossyChannelConverges) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    auto journal = std::make_unique<kvcache::PrefixJournal>(kvcache::PrefixJournal::Options{.max_events = 20});
    std::set<uint64_t> truth;
    PrefixDirectory directory;
    uint64_t known = 0;
    const auto exchange = [&](bool arrives, bool answered) {
      const auto report = Report(journal->Since(known));
      if (!arrives) return;
      const uint64_t version = directory.Apply(0, report);
      if (answered) known = version;
    };
    for (int i = 0; i < 500; ++i) {
      const uint64_t name = random() % 40;
      if (random() % 2 == 0) {
        truth.insert(name);
        journal->Added(name);
      } else {
        truth.erase(name);
        journal->Removed(name);
      }
      if (random() % 200 == 0) {
        journal = std::make_unique<kvcache::PrefixJournal>();
        truth.clear();
        known = 0;
      }
      if (random() % 5 == 0) exchange(random() % 3 != 0, random() % 3 != 0);
    }
    exchange(true, true);
    exchange(true, true);
    EXPECT_EQ(directory.size(), truth.size()) << "seed " << seed;
    for (uint64_t name = 0; name < 40; ++name) {
      const auto depth = Match(directory, {name});
      EXPECT_EQ(!depth.empty() && depth[0] == 1, truth.count(name) > 0) << "seed " << seed << " name " << name;
    }
  }
}

TEST(PairTimesTest, APairsOwnMeasureThenTheMeanThenNothing) {
  PairTimes pairs;
  EXPECT_EQ(pairs.EstimateUs(1, 2, 1000), 0);
  pairs.Measured(1, 2, 1000, absl::Microseconds(500));
  EXPECT_DOUBLE_EQ(pairs.EstimateUs(1, 2, 2000), 1000);
  EXPECT_DOUBLE_EQ(pairs.EstimateUs(1, 3, 2000), 1000);
  pairs.Measured(1, 3, 1000, absl::Microseconds(5000));
  EXPECT_DOUBLE_EQ(pairs.EstimateUs(1, 2, 2000), 1000);
  EXPECT_DOUBLE_EQ(pairs.EstimateUs(1, 3, 2000), 10000);
}

TEST(PairTimesTest, AFailedPairIsBadForAWhileOrUntilItWorks) {
  PairTimes pairs({.bad_for = absl::Seconds(10)});
  const absl::Time t0 = absl::UnixEpoch();
  pairs.Failed(1, 2, t0);
  EXPECT_TRUE(pairs.Bad(1, 2, t0 + absl::Seconds(9)));
  EXPECT_FALSE(pairs.Bad(1, 3, t0));
  EXPECT_FALSE(pairs.Bad(1, 2, t0 + absl::Seconds(10)));
  pairs.Measured(1, 2, 1000, absl::Microseconds(500));
  EXPECT_FALSE(pairs.Bad(1, 2, t0));
}

}  // namespace
}  // namespace baton::router
