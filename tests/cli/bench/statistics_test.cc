// Percentiles, arrivals and what is computed from records: all pure.
#include "cli/bench/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/bench/arrivals.h"
#include "cli/bench/metrics.h"
#include "cli/bench/plot.h"

namespace baton::bench {
namespace {

TEST(PercentileTest, InterpolatesBetweenClosestRanks) {
  const double values[] = {10, 20, 30, 40};
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 10);
  EXPECT_DOUBLE_EQ(Percentile(values, 50), 25);
  EXPECT_DOUBLE_EQ(Percentile(values, 90), 37);  // numpy.percentile([10, 20, 30, 40], 90)
  EXPECT_DOUBLE_EQ(Percentile(values, 100), 40);
  EXPECT_DOUBLE_EQ(Percentile(values, 1000), 40);
  const double one[] = {7};
  EXPECT_DOUBLE_EQ(Percentile(one, 99), 7);
  EXPECT_DOUBLE_EQ(Percentile({}, 99), 0);
}

TEST(DescribeTest, OfUnsortedValues) {
  const double p[] = {25, 75};
  const Distribution d = Describe({4, 1, 3, 2}, p);
  EXPECT_EQ(d.count, 4u);
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_DOUBLE_EQ(d.std_dev, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(d.min, 1);
  EXPECT_DOUBLE_EQ(d.max, 4);
  EXPECT_EQ(d.percentiles, (std::vector<double>{1.75, 3.25}));
  EXPECT_EQ(Describe({}, p).percentiles, (std::vector<double>{0, 0}));
}

// Mean and coefficient of variation of the gaps: 1 / rate and 1 / sqrt(burstiness).
void ExpectGaps(double rate, double burstiness) {
  const std::vector<double> starts =
      Arrivals({.rate = rate, .burstiness = burstiness, .seed = 5, .max_requests = 40000});
  ASSERT_EQ(starts.size(), 40000u);
  std::vector<double> gaps;
  double last = 0;
  for (const double at : starts) {
    ASSERT_GE(at, last);
    gaps.push_back(at - last);
    last = at;
  }
  const Distribution d = Describe(gaps, {});
  EXPECT_NEAR(d.mean * rate, 1, 0.05);
  EXPECT_NEAR(d.std_dev / d.mean * std::sqrt(burstiness), 1, 0.05);
}

TEST(ArrivalsTest, PoissonAndGamma) {
  ExpectGaps(8, 1);
  ExpectGaps(0.5, 0.25);
  ExpectGaps(100, 16);
}

TEST(ArrivalsTest, SameSeedSameScheduleAndTimeLimit) {
  const ArrivalOptions options{.rate = 10, .seed = 3, .max_requests = 1000, .max_seconds = 5};
  const std::vector<double> starts = Arrivals(options);
  EXPECT_EQ(starts, Arrivals(options));
  EXPECT_LE(starts.back(), 5);
  EXPECT_NEAR(static_cast<double>(starts.size()), 50, 25);
  ArrivalOptions other = options;
  other.seed = 4;
  EXPECT_NE(starts, Arrivals(other));
}

RequestRecord Answer(uint64_t index, double intended, double sent, std::vector<double> tokens) {
  RequestRecord r;
  r.index = index;
  r.intended_s = intended;
  r.sent_s = sent;
  r.end_s = tokens.back();
  r.token_s = std::move(tokens);
  r.prompt_tokens = 10;
  r.output_hash = index + 1;
  return r;
}

TEST(MeasureTest, LatenciesCountFromTheIntendedStart) {
  // The second was sent 2 s late: its TTFT is 2.5 s, not 0.5 s.
  const std::vector<RequestRecord> records = {Answer(0, 0, 0, {0.5, 0.75, 1.0}), Answer(1, 1, 3, {3.5, 4.5})};
  const Metrics m = Measure(records, 5, {}, {50});
  EXPECT_DOUBLE_EQ(m.ttft_ms.mean, 1500);
  EXPECT_DOUBLE_EQ(m.ttft_ms.max, 2500);
  EXPECT_DOUBLE_EQ(m.e2el_ms.max, 3500);
  EXPECT_DOUBLE_EQ(m.send_delay_ms.max, 2000);
  EXPECT_EQ(m.itl_ms.count, 3u);
  EXPECT_DOUBLE_EQ(m.itl_ms.mean, 500);
  EXPECT_DOUBLE_EQ(m.tpot_ms.mean, 625);  // 250 and 1000
  EXPECT_EQ(m.total_output_tokens, 5u);
  EXPECT_EQ(m.total_input_tokens, 20u);
  EXPECT_DOUBLE_EQ(m.request_throughput, 0.4);
  EXPECT_DOUBLE_EQ(m.output_throughput, 1);
  EXPECT_DOUBLE_EQ(m.total_token_throughput, 5);
  EXPECT_EQ(m.max_concurrent_requests, 1u);
  EXPECT_EQ(m.max_output_tokens_per_s, 2);
  EXPECT_EQ(m.output_hash, 3u);
  EXPECT_FALSE(m.request_goodput.has_value());
  EXPECT_EQ(m.percentiles, (std::vector<double>{50, 99}));
  EXPECT_DOUBLE_EQ(P99(m, m.ttft_ms), m.ttft_ms.percentiles[1]);
}

TEST(MeasureTest, FailuresAreCountedByCodeAndLeftOutOfLatencies) {
  std::vector<RequestRecord> records = {Answer(0, 0, 0, {1}), Answer(1, 0, 0, {9}), Answer(2, 0, 0, {9}),
                                        Answer(3, 0, 0, {9})};
  records[1].code = absl::StatusCode::kResourceExhausted;
  records[1].error = "full";
  records[2].code = absl::StatusCode::kUnavailable;
  records[3].abandoned = true;
  const Metrics m = Measure(records, 10, {}, {99});
  EXPECT_EQ(m.completed, 1u);
  EXPECT_EQ(m.failed, 2u);
  EXPECT_EQ(m.abandoned, 1u);
  EXPECT_EQ(m.errors, (std::map<std::string, uint64_t>{{"RESOURCE_EXHAUSTED", 1}, {"UNAVAILABLE", 1}}));
  EXPECT_EQ(m.first_error, "full");
  EXPECT_DOUBLE_EQ(m.ttft_ms.max, 1000);
  EXPECT_EQ(m.max_concurrent_requests, 4u);
}

TEST(MeasureTest, GoodputNeedsEveryLimit) {
  const std::vector<RequestRecord> records = {Answer(0, 0, 0, {0.1, 0.15}), Answer(1, 0, 0, {0.3, 0.35}),
                                              Answer(2, 0, 0, {0.1, 0.3})};
  const absl::StatusOr<Goodput> limits = ParseGoodput({"ttft:200", "tpot:60"});
  ASSERT_TRUE(limits.ok());
  EXPECT_DOUBLE_EQ(*Measure(records, 2, *limits, {}).request_goodput, 0.5);
}

TEST(GoodputTest, WrongWordsAreRefused) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"ttft"},
                                                {"ttft:"},
                                                {"ttft:x"},
                                                {"ttft:-1"},
                                                {"ttft:nan"},
                                                {"speed:1"},
                                                {"ttft:1", "ttft:2"},
                                                {""}}) {
    EXPECT_FALSE(ParseGoodput(words).ok()) << words[0];
  }
}

TEST(SliceTest, TokensAndConcurrencyFallIntoTheirSlices) {
  const std::vector<Slice> slices = SliceTime({Answer(0, 0, 0, {1, 3}), Answer(1, 2, 2, {3.5, 4})}, 4, 2);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_DOUBLE_EQ(slices[0].tokens_per_second, 0.5);
  EXPECT_DOUBLE_EQ(slices[1].tokens_per_second, 1.5);
  EXPECT_DOUBLE_EQ(slices[0].concurrency, 1);
  EXPECT_DOUBLE_EQ(slices[1].concurrency, 1.5);  // (1 s of the first + 2 s of the second) / 2 s
  EXPECT_DOUBLE_EQ(*slices[0].ttft_median_ms, 1000);
  EXPECT_DOUBLE_EQ(*slices[1].ttft_median_ms, 1500);
  EXPECT_FALSE(slices[0].itl_median_ms.has_value());
  EXPECT_DOUBLE_EQ(*slices[1].itl_median_ms, 1250);
  EXPECT_TRUE(SliceTime({}, 0, 10).empty());
}

TEST(PlotTest, TicksAreRoundAndReachTheLargest) {
  EXPECT_EQ(Ticks(10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks(0, 5).front(), 0);
  for (const double max : {0.001, 0.37, 1.0, 99.0, 12345.0}) {
    EXPECT_GE(Ticks(max, 5).back(), max * (1 - 1e-9));
    EXPECT_LE(Ticks(max, 5).size(), 6u);
  }
}

TEST(PlotTest, AGapBreaksTheLineAndTextIsEscaped) {
  const std::string svg =
      ToSvg({"<b>", "x", "y", {{.name = "s", .points = {{0, 1, ""}, {1, std::nullopt, ""}, {2, 1, ""}}}}});
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;"), std::string::npos);
  const size_t path = svg.find("<path");
  ASSERT_NE(path, std::string::npos);
  EXPECT_EQ(svg.find('L', path), std::string::npos) << svg.substr(path, 100);
  EXPECT_NE(ToSvg({}).find("nothing was measured"), std::string::npos);
}

}  // namespace
}  // namespace baton::bench
