// Random but valid requests from a seed: mixed lengths and every sampling parameter.
#ifndef BATON_TESTS_E2E_RANDOM_REQUESTS_H_
#define BATON_TESTS_E2E_RANDOM_REQUESTS_H_

#include <random>

#include "absl/strings/str_cat.h"
#include "proto/inference.pb.h"

namespace baton::e2e {

struct RequestShape {
  int vocab_size = 0;
  int max_prompt_tokens = 300;
  int max_output_tokens = 32;
  int max_n = 4;
};

// std:: distributions differ between libraries; plain modulo keeps a seed's request the same everywhere.
inline v1::GenerateRequest RandomRequest(uint64_t seed, const RequestShape& shape) {
  std::mt19937_64 rng(seed);
  auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  auto chance = [&](int percent) { return below(100) < percent; };
  v1::GenerateRequest request;
  request.set_request_id(absl::StrCat("random-", seed));
  // Half of the prompts share one of four prefixes, so that prefix caches are hit.
  const int length = chance(20) ? 1 + below(4) : 1 + below(shape.max_prompt_tokens);
  std::mt19937_64 prefix_rng(below(4));
  const int shared = chance(50) ? below(length) : 0;
  for (int i = 0; i < length; ++i) {
    request.mutable_token_ids()->add_ids((i < shared ? prefix_rng() : rng()) % shape.vocab_size);
  }
  v1::SamplingParams* params = request.mutable_sampling();
  params->set_seed(rng());
  params->set_max_tokens(chance(10) ? 1 : 1 + below(shape.max_output_tokens));
  params->set_temperature(chance(30) ? 0.0f : 0.2f + 0.1f * below(14));
  if (chance(30)) params->set_top_k(1 + below(100));
  if (chance(30)) params->set_top_p(0.5f + 0.05f * below(11));
  if (chance(20)) params->set_min_p(0.01f * below(20));
  if (chance(20)) params->set_repetition_penalty(0.8f + 0.1f * below(8));
  if (chance(20)) params->set_presence_penalty(-1.0f + 0.25f * below(9));
  if (chance(20)) params->set_frequency_penalty(-1.0f + 0.25f * below(9));
  if (chance(15)) {
    for (int i = 0; i < 8; ++i) (*params->mutable_logit_bias())[below(shape.vocab_size)] = -5 + below(11);
  }
  if (chance(20)) params->set_min_tokens(below(params->max_tokens() + 1));
  if (chance(30)) params->set_ignore_eos(true);
  if (chance(20)) {
    for (int i = 0; i < 100; ++i) params->add_stop_token_ids(below(shape.vocab_size));
  }
  if (chance(25)) params->set_logprobs(below(6));
  params->set_n(chance(30) ? 1 + below(shape.max_n) : 1);
  return request;
}

}  // namespace baton::e2e

#endif  // BATON_TESTS_E2E_RANDOM_REQUESTS_H_
