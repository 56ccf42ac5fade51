// Every sampling parameter of the API as a flag.
#ifndef BATON_CLI_SAMPLING_FLAGS_H_
#define BATON_CLI_SAMPLING_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inference.pb.h"

namespace CLI {
class App;
}

namespace baton::cli {

struct SamplingFlags {
  // The API's defaults (temperature 1, as many tokens as fit) suit programs; these suit a person at a terminal, who
  // wants an answer that holds together and ends.
  static constexpr float kTemperature = 0.2f;

  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, max_tokens, min_tokens, logprobs, n;
  std::string seed;                     // CLI11 would take -1 for 2^64 - 1
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;
  int32_t default_max_tokens = 256;
};

// `flags` outlives `app`. `all` adds those that only make sense for one answer (n, logprobs).
void AddSamplingFlags(CLI::App* app, SamplingFlags* flags, bool all);

// INVALID_ARGUMENT for what cannot be written into the message; ranges are checked where the request is served.
absl::Status ToSamplingParams(const SamplingFlags& flags, v1::SamplingParams* sampling);

}  // namespace baton::cli

#endif  // BATON_CLI_SAMPLING_FLAGS_H_
