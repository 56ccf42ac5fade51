#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "engine/stopping.h"

namespace baton::engine {
namespace {

constexpr double kNegligible = -50.0;
constexpr int kFewCandidates = 1024;  // up to which a heap of them beats weighing the whole vocabulary

// Index of the first logit that is not finite, or -1.
int64_t FirstNonFinite(std::span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000;
  bool bad = false;
  for (float logit : logits) bad |= (std::bit_cast<uint32_t>(logit) & kExponent) == kExponent;
  if (!bad) return -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

// The largest of finite (or masked, -inf) values and its lowest index. As integers of the same order, which the compiler
// compares several at a time; -0 counts as 0.
struct Largest {
  float value;
  int32_t index;
};
Largest FindLargest(std::span<const float> values) {
  int32_t best = std::numeric_limits<int32_t>::min();
  for (float value : values) {
    const int32_t bits = std::bit_cast<int32_t>(value + 0.0f);
    const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
    best = ordered > best ? ordered : best;
  }
  const float value = std::bit_cast<float>(best ^ ((best >> 31) & 0x7fffffff));
  const auto first = std::find(values.begin(), values.end(), value);
  return {*first, static_cast<int32_t>(first - values.begin())};
}

// A user's extreme bias or penalty must not make an infinity, which means "masked".
float Finite(double v) { return static_cast<float>(std::clamp(v, -double{FLT_MAX}, double{FLT_MAX})); }

}  // namespace

double ExpNonPositive(double x) {
  if (!(x > -700.0)) return 0.0;
  // x = k ln2 + r with |r| <= ln2 / 2; e^r by its Taylor series to r^13 (the rest is below 1e-17).
  constexpr double kLog2E = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fefa3800p-1;  // low bits zero, so that k * kLn2High is exact
  constexpr double kLn2Low = 0x1.ef35793c76730p-45;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, which the low bits then hold
  const double shifted = x * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  for (double c : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                   1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    p = p * r + c;
  }
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

Sampler::Sampler(int vocab_size) : vocab_size_(vocab_size), adjusted_(vocab_size) { kept_.reserve(vocab_size); }

bool Sampler::NeedsHistory(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

void Sampler::ApplyPenalties(const SampleContext& context) {
  const SamplingParams& params = *context.params;
  if (!NeedsHistory(params) || context.history == nullptr) return;
  const TokenHistory& history = *context.history;
  const auto repeat = [&](int32_t id) {
    if (id < 0 || id >= vocab_size_ || std::isinf(adjusted_[id])) return;
    const double l = adjusted_[id];
    adjusted_[id] = Finite(l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty);
  };
  // Each token is changed on its own, once, so the order of iteration does not matter.
  if (params.repetition_penalty != 1.0f) {
    if (history.prompt != nullptr) {
      for (int32_t id : *history.prompt) repeat(id);
    }
    for (const auto& [id, count] : history.output_counts) {
      if (history.prompt == nullptr || !history.prompt->contains(id)) repeat(id);
    }
  }
  for (const auto& [id, count] : history.output_counts) {
    if (id < 0 || id >= vocab_size_ || std::isinf(adjusted_[id])) continue;
    adjusted_[id] = Finite(double{adjusted_[id]} - double{params.frequency_penalty} * count -
                           double{params.presence_penalty});
  }
}

void Sampler::ApplyMasks(const SampleContext& context) {
  const SamplingParams& params = *context.params;
  const bool complete = context.mask != nullptr && context.mask->num_tokens() == 0;
  if (context.mask != nullptr) {
    // A stop id without text is an end like EOS; one with text is text.
    std::vector<int32_t> ends(context.eos_token_ids.begin(), context.eos_token_ids.end());
    ends.insert(ends.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
    context.mask->Apply(adjusted_, ends);
  }
  if (complete || context.token_index >= params.min_tokens) return;
  const auto mask = [&](int32_t id) {
    if (id >= 0 && id < vocab_size_) adjusted_[id] = -std::numeric_limits<float>::infinity();
  };
  if (!params.ignore_eos) std::ranges::for_each(context.eos_token_ids, mask);
  std::ranges::for_each(params.stop_token_ids, mask);
}

absl::Status Sampler::Adjust(std::span<const float> logits, const SampleContext& context) {
  const SamplingParams& params = *context.params;
  if (static_cast<int>(logits.size()) != vocab_size_) {
    return absl::InternalError(absl::StrCat("the model gave ", logits.size(), " logits for a vocabulary of ", vocab_size_));
  }
  if (const int64_t bad = FirstNonFinite(logits); bad >= 0) {
    return absl::InternalError(absl::StrCat("the model's logits at position ", context.position - 1,
                                            " are not finite (first at token id ", bad,
                                            "); the model file may be damaged or of an unsupported kind"));
  }
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) {
    if (id >= 0 && id < vocab_size_) adjusted_[id] = Finite(double{adjusted_[id]} + bias);
  }
  ApplyPenalties(context);
  ApplyMasks(context);
  const Largest largest = FindLargest(adjusted_);
  argmax_ = largest.index;
  max_ = largest.value;
  if (std::isinf(max_)) {
    return absl::InternalError(context.mask == nullptr
                                   ? "min_tokens masks every token of the vocabulary: give fewer stop_token_ids"
                                   : "no token may come next: all that the constraint allows is kept from ending the text "
                                     "by min_tokens; give a smaller one, or fewer stop_token_ids");
  }
  return absl::OkStatus();
}

void Sampler::KeepDownTo(const Candidate& last) {
  std::erase_if(kept_, [&](const Candidate& c) { return Larger(last, c); });
}

void Sampler::FindTopK(int k) {
  scratch_.clear();
  for (int32_t id = 0; id < k; ++id) scratch_.push_back({adjusted_[id], id, 0});
  std::make_heap(scratch_.begin(), scratch_.end(), Larger);  // the smallest in front
  for (int32_t id = k; id < vocab_size_; ++id) {
    // Of equals the lower id is larger, and it is in already.
    if (adjusted_[id] <= scratch_.front().logit) continue;
    std::pop_heap(scratch_.begin(), scratch_.end(), Larger);
    scratch_.back() = {adjusted_[id], id, 0};
    std::push_heap(scratch_.begin(), scratch_.end(), Larger);
  }
  std::ranges::sort(scratch_, {}, &Candidate::id);
}

void Sampler::KeepTopK(size_t k) {
  if (k >= kept_.size()) return;
  scratch_ = kept_;
  std::nth_element(scratch_.begin(), scratch_.begin() + (k - 1), scratch_.end(), Larger);
  KeepDownTo(Candidate(scratch_[k - 1]));
}

void Sampler::KeepTopP(double p) {
  double total = 0;
  for (const Candidate& c : kept_) total += c.weight;
  scratch_ = kept_;
  const double target = p * total;
  double mass = 0;
  // Only as much is sorted as the mass asks for: usually a few of many thousands.
  size_t sorted = 0;
  for (size_t step = 64; sorted < scratch_.size(); step *= 4) {
    const size_t end = std::min(scratch_.size(), sorted + step);
    if (end < scratch_.size()) {
      std::nth_element(scratch_.begin() + sorted, scratch_.begin() + end, scratch_.end(), Larger);
    }
    std::sort(scratch_.begin() + sorted, scratch_.begin() + end, Larger);
    for (; sorted < end; ++sorted) {
      mass += scratch_[sorted].weight;
      if (mass < target) continue;
      KeepDownTo(Candidate(scratch_[sorted]));
      return;
    }
  }
}

double Sampler::Filter(const SamplingParams& params) {
  kept_.clear();
  if (params.temperature <= 0.0f) {
    kept_.push_back({max_, argmax_, 1.0});
    return 1.0;
  }
  const double temperature = params.temperature;
  const auto keep = [&](float logit, int32_t id) {
    // 0 / T is 0 for the maximum, however small T is.
    const double x = (double{logit} - double{max_}) / temperature;
    if (!(x >= kNegligible)) return;
    const double weight = ExpNonPositive(x);
    // The maximum weighs 1, so a weight is a probability relative to the largest.
    if (weight >= params.min_p) kept_.push_back({logit, id, weight});
  };
  if (params.min_p == 0.0f && params.top_k > 0 && params.top_k <= kFewCandidates && params.top_k < vocab_size_) {
    // What remains is known before any weight is.
    FindTopK(params.top_k);
    for (const Candidate& c : scratch_) keep(c.logit, c.id);
  } else {
    for (int32_t id = 0; id < vocab_size_; ++id) keep(adjusted_[id], id);
  }
  // min_p is at most 1, but rounding of a float near 1 must not empty the set.
  if (kept_.empty()) kept_.push_back({max_, argmax_, 1.0});
  if (params.top_k > 0) KeepTopK(params.top_k);
  if (params.top_p < 1.0f) KeepTopP(params.top_p);
  double total = 0;
  for (const Candidate& c : kept_) total += c.weight;
  return total;
}

void Sampler::FillLogprobs(std::span<const float> logits, int num_alternatives, SampledToken* token) const {
  const double max = FindLargest(logits).value;
  double sum = 0;
  for (float logit : logits) sum += ExpNonPositive(double{logit} - max);
  const double log_total = max + std::log(sum);
  token->logprob = static_cast<float>(logits[token->token_id] - log_total);
  const size_t count = std::min<size_t>(std::max(num_alternatives, 0), logits.size());
  if (count == 0) return;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto larger = [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), larger);
  for (size_t i = 0; i < count; ++i) {
    token->top_logprobs.push_back({ids[i], static_cast<float>(logits[ids[i]] - log_total)});
  }
}

absl::StatusOr<SampledToken> Sampler::Sample(std::span<const float> logits, const SampleContext& context) {
  if (absl::Status status = Adjust(logits, context); !status.ok()) return status;
  const SamplingParams& params = *context.params;
  SampledToken token;
  token.choice_index = context.choice_index;
  token.token_index = context.token_index;
  token.token_id = argmax_;
  if (params.temperature > 0.0f) {
    const double total = Filter(params);
    const double target = total * PhiloxUniform(params.seed, static_cast<uint32_t>(context.choice_index),
                                                static_cast<uint32_t>(context.position), 0);
    double mass = 0;
    for (const Candidate& c : kept_) {
      token.token_id = c.id;
      mass += c.weight;
      if (mass > target) break;
    }
  }
  if (params.logprobs >= 0) FillLogprobs(logits, params.logprobs, &token);
  return token;
}

absl::StatusOr<std::vector<double>> Sampler::Distribution(std::span<const float> logits,
                                                          const SampleContext& context) {
  if (absl::Status status = Adjust(logits, context); !status.ok()) return status;
  const double total = Filter(*context.params);
  std::vector<double> distribution(vocab_size_, 0.0);
  for (const Candidate& c : kept_) distribution[c.id] = c.weight / total;
  return distribution;
}

}  // namespace baton::engine
