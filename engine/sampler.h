// From logits to a token. A pure function of (logits, parameters, tokens so far, choice, position): the draw is a
// Philox number keyed by the seed, so any worker continues any request identically.
//
// Order of operations (as vLLM documents them): log-probabilities are taken from the raw logits; then logit bias,
// repetition / frequency / presence penalties, the constraint's mask, the min_tokens mask, temperature, min_p, top_k, top_p,
// draw. Temperature 0 takes the largest adjusted logit and ends there. A text that the constraint says is complete ends
// before min_tokens, too.
//
// Ties and order: "larger" means a larger adjusted logit, then a smaller id; that is a total order, so top_k keeps
// exactly k tokens and top_p the shortest prefix of it that reaches p of the mass that min_p and top_k left. The draw is
// an inverse CDF over the kept tokens in ascending id. Weights are exp((l - max) / T) in double, by an exponential of
// our own: libm's last bit depends on the machine. A token more than 50 below the maximum (after temperature) weighs
// nothing: all of them together are below the rounding of the sum.
//
// Thread contract: one thread per Sampler (it keeps scratch buffers).
#ifndef BATON_ENGINE_SAMPLER_H_
#define BATON_ENGINE_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "constraint/token_constraint.h"
#include "engine/request.h"

namespace baton::engine {

// e^x for x <= 0, the same bits on every machine; 0 below -700. Relative error below 1e-15.
double ExpNonPositive(double x);

// What penalties look at.
struct TokenHistory {
  std::shared_ptr<const std::unordered_set<int32_t>> prompt;  // null: no repetition penalty
  std::unordered_map<int32_t, int> output_counts;             // empty when no penalty is on
};

struct SampleContext {
  const SamplingParams* params = nullptr;
  const TokenHistory* history = nullptr;     // may be null when no penalty is on
  std::span<const int32_t> eos_token_ids;
  int choice_index = 0;
  int token_index = 0;                       // of the output
  const constraint::TokenMask* mask = nullptr;  // null: any token
  int64_t position = 0;                      // absolute, of the token to be sampled: prompt length + token_index
};

class Sampler {
 public:
  explicit Sampler(int vocab_size);

  static bool NeedsHistory(const SamplingParams& params);

  // finish_reason is left kNone. INTERNAL when a logit is not finite or nothing may be sampled.
  absl::StatusOr<SampledToken> Sample(std::span<const float> logits, const SampleContext& context);

  // The distribution that Sample draws from, [vocab_size]; sums to 1. For temperature 0 all of it is on one token.
  absl::StatusOr<std::vector<double>> Distribution(std::span<const float> logits, const SampleContext& context);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;
  };
  static bool Larger(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  // adjusted_ = logits after bias, mask and penalties; max_ = its maximum, at argmax_ (lowest id).
  absl::Status Adjust(std::span<const float> logits, const SampleContext& context);
  void ApplyPenalties(const SampleContext& context);
  void ApplyMasks(const SampleContext& context);
  // kept_ = what may be drawn, ascending id; returns the sum of weights.
  double Filter(const SamplingParams& params);
  // scratch_ = the k largest of adjusted_, ascending id, without weights.
  void FindTopK(int k);
  // Drops all that is smaller than the k-th largest.
  void KeepTopK(size_t k);
  void KeepTopP(double p);
  void KeepDownTo(const Candidate& last);
  void FillLogprobs(std::span<const float> logits, int num_alternatives, SampledToken* token) const;

  const int vocab_size_;
  std::vector<float> adjusted_;
  float max_ = 0;
  int32_t argmax_ = 0;
  std::vector<Candidate> kept_;
  std::vector<Candidate> scratch_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_SAMPLER_H_
