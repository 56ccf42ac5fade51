// Everything one Generate call said, and how it is reported.
#ifndef BATON_CLI_GENERATION_H_
#define BATON_CLI_GENERATION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"

namespace baton::cli {

struct GeneratedChoice {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<v1::TokenEvent> tokens;  // kept for log-probabilities
  v1::ChoiceFinished finished;
  bool done = false;
};

// Thread-compatible.
class Generation {
 public:
  explicit Generation(const v1::GenerateRequest& request);

  // The text this event adds to choice `*choice_index`; empty for events without text.
  std::string Add(const v1::GenerateResponse& event, int* choice_index);

  const v1::Started& started() const { return started_; }
  const v1::Summary& summary() const { return summary_; }
  const std::vector<GeneratedChoice>& choices() const { return choices_; }
  bool has_summary() const { return has_summary_; }

 private:
  const bool logprobs_;
  v1::Started started_;
  v1::Summary summary_;
  bool has_summary_ = false;
  std::vector<GeneratedChoice> choices_;
};

// "stop", "length", "cancelled", "error", or "unspecified".
std::string FinishReasonName(v1::FinishReason reason);

// text, token_ids, finish_reason, seed, usage, timings_ms, kv, workers; with several choices an array `choices` in
// place of the first three.
nlohmann::ordered_json GenerationToJson(const Generation& generation);

// Where it ran, what moved, how fast; some lines for people, ending in a newline.
std::string FormatGenerationSummary(const Generation& generation);

}  // namespace baton::cli

#endif  // BATON_CLI_GENERATION_H_
