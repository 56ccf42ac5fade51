// Traces and prompts.
#include "cli/bench/workload.h"

#include <gtest/gtest.h>

#include <set>

#include "cli/bench/trace.h"

namespace baton::bench {
namespace {

constexpr char kMooncake[] = R"({"timestamp":0,"input_length":1000,"output_length":50,"hash_ids":[0,1]}
{"timestamp":3000,"input_length":1500,"output_length":5,"hash_ids":[0,1,2]}

{"timestamp":3000,"input_length":4,"output_length":0,"hash_ids":[7]}
{"timestamp":9000,"input_length":90000,"output_length":1}
)";
constexpr char kAzure[] =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n2024-05-10 00:00:00.009930+00:00,7,3\r\n";

std::vector<int32_t> Ids(const Workload& workload, uint64_t index) {
  v1::GenerateRequest request;
  workload.Fill(index, &request);
  return {request.token_ids().ids().begin(), request.token_ids().ids().end()};
}
int32_t MaxTokens(const Workload& workload, uint64_t index) {
  v1::GenerateRequest request;
  workload.Fill(index, &request);
  return request.sampling().max_tokens();
}

TEST(TraceTest, Mooncake) {
  const absl::StatusOr<Trace> trace = ParseTrace(kMooncake, "m.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->format, "mooncake");
  ASSERT_EQ(trace->rows.size(), 4u);
  EXPECT_EQ(trace->grid_s, 3);
  EXPECT_EQ(trace->rows[1].at_s, 3);
  EXPECT_EQ(trace->rows[1].hash_ids, (std::vector<uint64_t>{0, 1, 2}));
}

// Mooncake's conversation trace has ticks of 3 s, a third of them a millisecond early.
TEST(TraceTest, TicksThatAreAMillisecondOffAreTicks) {
  std::string ticks, arrivals;
  for (const int at : {0, 0, 3000, 5999, 6000, 8999, 8999, 12000}) {
    ticks += "{\"timestamp\":" + std::to_string(at) + ",\"input_length\":1,\"output_length\":1}\n";
    arrivals += "{\"timestamp\":" + std::to_string(at * 7 % 5003) + ",\"input_length\":1,\"output_length\":1}\n";
  }
  const absl::StatusOr<Trace> trace = ParseTrace(ticks, "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->grid_s, 3);
  EXPECT_EQ(trace->rows[3].at_s, 6);
  EXPECT_EQ(trace->rows[4].at_s, 6);
  EXPECT_EQ(ParseTrace(arrivals, "a")->grid_s, 0);
}

TEST(TraceTest, Azure) {
  const absl::StatusOr<Trace> trace = ParseTrace(kAzure, "a.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->format, "azure");
  ASSERT_EQ(trace->rows.size(), 3u);
  EXPECT_EQ(trace->grid_s, 0);
  EXPECT_NEAR(trace->rows[1].at_s, 0.052, 1e-9);
  EXPECT_EQ(trace->rows[0].input_tokens, 4808u);
  EXPECT_EQ(trace->rows[0].output_tokens, 10u);
}

TEST(TraceTest, DamagedFilesNameTheLine) {
  for (const auto& [text, line] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"hello\n", "line 1"},
           {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\n", "line 2"},
           {"{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}\n", "line 1"},
           {"{\"timestamp\":0,\"input_length\":1e300,\"output_length\":1}\n", "line 1"},
           {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[\"a\"]}\n", "line 1"},
           {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":3}\n", "line 1"},
           {"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"},
           {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1\n", "line 2"},
           {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,-1,2\n", "line 2"}}) {
    const absl::StatusOr<Trace> trace = ParseTrace(text, "t");
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_NE(trace.status().message().find(line), std::string::npos) << trace.status();
  }
}

TEST(ScaleTest, LengthsTimesAndLimits) {
  const absl::StatusOr<Trace> trace = ParseTrace(kMooncake, "m.jsonl");
  ASSERT_TRUE(trace.ok());
  const ScaledTrace scaled = Scale(*trace, {.speed = 2, .length = 0.1, .max_context = 200, .seed = 1});
  EXPECT_EQ(scaled.num_too_long, 1u);
  EXPECT_EQ(scaled.block_tokens, 51u);
  ASSERT_EQ(scaled.rows.size(), 3u);
  EXPECT_EQ(scaled.rows[0].input_tokens, 100u);
  for (const TraceRow& row : scaled.rows) EXPECT_GE(row.output_tokens, 1u);
  // Spread over the tick of 3 s that they stand for, at twice the speed.
  EXPECT_GE(scaled.rows[1].at_s, 1.5);
  EXPECT_LT(scaled.rows[2].at_s, 3);
  EXPECT_NE(scaled.rows[1].at_s, scaled.rows[2].at_s);
  EXPECT_EQ(Scale(*trace, {.max_requests = 2}).rows.size(), 2u);
  EXPECT_EQ(Scale(*trace, {.max_seconds = 2.9, .seed = 1}).rows.size(), 1u);
}

TEST(TraceWorkloadTest, EqualBlocksAreEqualTokens) {
  const absl::StatusOr<Trace> trace = ParseTrace(kMooncake, "m.jsonl");
  ASSERT_TRUE(trace.ok());
  ScaledTrace scaled = Scale(*trace, {.length = 0.1, .max_context = 200});
  const std::vector<TraceRow> rows = scaled.rows;
  const std::unique_ptr<Workload> workload = MakeFromTrace(scaled, 9, 1000);
  EXPECT_EQ(workload->size(), 3u);
  std::vector<int32_t> longer, shorter;
  for (uint64_t i = 0; i < rows.size(); ++i) {
    const std::vector<int32_t> ids = Ids(*workload, i);
    EXPECT_EQ(ids.size(), rows[i].input_tokens);
    if (rows[i].input_tokens == 150) longer = ids;
    if (rows[i].input_tokens == 100) shorter = ids;
  }
  ASSERT_EQ(longer.size(), 150u);
  ASSERT_EQ(shorter.size(), 100u);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TEST(SyntheticTest, LengthsPrefixesAndDeterminism) {
  SyntheticOptions options{.seed = 3, .vocab_size = 1000, .input_tokens = 50, .output_tokens = 20};
  options.range_ratio = 0.5;
  options.prefix_tokens = 16;
  options.num_prefixes = 2;
  const absl::StatusOr<std::unique_ptr<Workload>> workload = MakeSynthetic(options, 200);
  ASSERT_TRUE(workload.ok()) << workload.status();
  std::set<size_t> lengths;
  for (uint64_t i = 0; i < 200; ++i) {
    const std::vector<int32_t> ids = Ids(**workload, i);
    EXPECT_EQ(ids, Ids(**workload, i));
    EXPECT_GE(ids.size(), 25u);
    EXPECT_LE(ids.size(), 75u);
    EXPECT_GE(MaxTokens(**workload, i), 10);
    EXPECT_LE(MaxTokens(**workload, i), 30);
    lengths.insert(ids.size());
    for (const int32_t id : ids) {
      EXPECT_GE(id, 250);
      EXPECT_LT(id, 750);
    }
  }
  EXPECT_GT(lengths.size(), 30u);
  const auto starts_equal = [&](uint64_t a, uint64_t b, size_t n) {
    const std::vector<int32_t> x = Ids(**workload, a), y = Ids(**workload, b);
    return std::equal(x.begin(), x.begin() + static_cast<int64_t>(n), y.begin());
  };
  EXPECT_TRUE(starts_equal(0, 2, 16));
  EXPECT_FALSE(starts_equal(0, 2, 20));
  EXPECT_FALSE(starts_equal(0, 1, 4));
  options.seed = 4;
  EXPECT_NE(Ids(**workload, 0), Ids(**MakeSynthetic(options, 200), 0));
}

TEST(SyntheticTest, WhatCannotBeMetIsRefused) {
  EXPECT_FALSE(MakeSynthetic({.vocab_size = 100, .input_tokens = 10, .prefix_tokens = 10}, 0).ok());
  EXPECT_FALSE(MakeSynthetic({.vocab_size = 100, .input_tokens = 100, .output_tokens = 29}, 128).ok());
  EXPECT_TRUE(MakeSynthetic({.vocab_size = 100, .input_tokens = 100, .output_tokens = 28}, 128).ok());
  EXPECT_FALSE(MakeSynthetic({.vocab_size = 0}, 0).ok());
}

TEST(FileWorkloadTest, PlainLinesAndJsonLines) {
  const absl::StatusOr<std::unique_ptr<Workload>> workload =
      MakeFromFile("Hello there\n\n{\"prompt\": \"two\\nlines\", \"output_tokens\": 7}\n", "p", 5);
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->size(), 2u);
  v1::GenerateRequest request;
  (*workload)->Fill(1, &request);
  EXPECT_EQ(request.prompt(), "two\nlines");
  EXPECT_EQ(MaxTokens(**workload, 0), 5);
  EXPECT_EQ(MaxTokens(**workload, 3), 7);  // from the start again
  for (const char* text :
       {"", "{\"text\": 1}\n", "{\"prompt\": \"\"}\n", "\xff\n", "{\"prompt\":\"x\",\"output_tokens\":0}"}) {
    EXPECT_FALSE(MakeFromFile(text, "p", 5).ok()) << text;
  }
}

}  // namespace
}  // namespace baton::bench
