// What a load test asks: the request of each index, a pure function of the seed.
//
// Synthetic token ids come from the middle half of the vocabulary, for tokenizers keep special tokens at its ends.
//
// Thread contract: thread-safe (immutable).
#ifndef BATON_CLI_BENCH_WORKLOAD_H_
#define BATON_CLI_BENCH_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/bench/trace.h"
#include "proto/inference.pb.h"

namespace baton::bench {

class Workload {
 public:
  virtual ~Workload() = default;
  // How many requests there are; 0: as many as wanted.
  virtual uint64_t size() const = 0;
  // Sets the input and max_tokens; of the rest, nothing. A finite workload starts anew when it is used up.
  virtual void Fill(uint64_t index, v1::GenerateRequest* request) const = 0;
};

struct SyntheticOptions {
  uint64_t seed = 0;
  uint32_t vocab_size = 0;
  uint32_t input_tokens = 128;  // prefix included
  uint32_t output_tokens = 64;
  double range_ratio = 0;      // lengths are uniform in [n (1 - r), n (1 + r)]
  uint32_t prefix_tokens = 0;  // that each prompt shares with others
  uint32_t num_prefixes = 1;   // different ones, in turn
};
// INVALID_ARGUMENT when the lengths do not go together or do not fit into `max_context` (0: no limit).
absl::StatusOr<std::unique_ptr<Workload>> MakeSynthetic(const SyntheticOptions& options, uint32_t max_context);

// Prompts of a file: JSON lines {"prompt": text, "output_tokens": n}, the second of which may be absent; or plain text,
// a prompt a line. INVALID_ARGUMENT names the line.
absl::StatusOr<std::unique_ptr<Workload>> MakeFromFile(absl::string_view text, absl::string_view name,
                                                       uint32_t output_tokens);

// Prompts with the lengths of a trace, and its shared prefixes where it tells.
std::unique_ptr<Workload> MakeFromTrace(ScaledTrace trace, uint64_t seed, uint32_t vocab_size);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_WORKLOAD_H_
