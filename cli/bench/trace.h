// Public request traces, read and scaled to what a cluster can hold. Two formats, told apart by their first line:
//
//   Mooncake JSONL  {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]} a line;
//   hash_ids
//                   (may be absent) name prefix-chained blocks of 512 tokens: an equal id is the same block after the
//                   same prefix
//   Azure CSV       TIMESTAMP,ContextTokens,GeneratedTokens with a header; timestamps as 2023-11-16 18:17:03.9799600
//
// Thread contract: pure functions.
#ifndef BATON_CLI_BENCH_TRACE_H_
#define BATON_CLI_BENCH_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::bench {

inline constexpr uint64_t kTraceBlockTokens = 512;

struct TraceRow {
  double at_s = 0;  // since the first row
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
};

struct Trace {
  std::string format;          // "mooncake" or "azure"
  std::vector<TraceRow> rows;  // by time
  double grid_s = 0;           // 1 or more when timestamps are ticks so far apart, not arrivals; rows are on them
};

// INVALID_ARGUMENT with `name` and the line's number.
absl::StatusOr<Trace> ParseTrace(absl::string_view text, absl::string_view name);

struct TraceScale {
  double speed = 1;           // 2: twice as fast
  double length = 1;          // factor of all token counts, at least 1 token stays
  uint64_t max_context = 0;   // rows whose tokens do not fit after scaling are left out; 0: no limit
  uint64_t max_requests = 0;  // the first so many that fit; 0: all
  double max_seconds = 0;     // after speed; 0: all
  uint64_t seed = 0;          // for spreading
};
struct ScaledTrace {
  std::vector<TraceRow> rows;
  uint64_t block_tokens = kTraceBlockTokens;  // what one hash id stands for now
  uint64_t num_too_long = 0;
};
// Arrivals on a grid are spread uniformly over their tick, as a function of the seed.
ScaledTrace Scale(const Trace& trace, const TraceScale& scale);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_TRACE_H_
