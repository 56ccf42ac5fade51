#include "cli/sampling_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::cli {

void AddSamplingFlags(CLI::App* app, SamplingFlags* f, bool all) {
  const std::string group = "Sampling";
  app->add_option("--temperature", f->temperature, "0 is greedy; default 0.2")->group(group);
  app->add_option("--top-p", f->top_p, "(0, 1]; default 1")->group(group);
  app->add_option("--top-k", f->top_k, "0: off (default)")->group(group);
  app->add_option("--min-p", f->min_p, "[0, 1]; default 0")->group(group);
  app->add_option("--repetition-penalty", f->repetition_penalty, "(0, 100]; default 1")->group(group);
  app->add_option("--presence-penalty", f->presence_penalty, "[-2, 2]; default 0")->group(group);
  app->add_option("--frequency-penalty", f->frequency_penalty, "[-2, 2]; default 0")->group(group);
  app->add_option("--logit-bias", f->logit_bias, "ID=BIAS, bias in [-100, 100]; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--seed", f->seed, "Same seed, same answer; default: chosen and reported")->group(group);
  app->add_option("--max-tokens", f->max_tokens, absl::StrCat("Default ", f->default_max_tokens))->group(group);
  app->add_option("--min-tokens", f->min_tokens, "No end before that many; default 0")->group(group);
  app->add_flag("--ignore-eos", f->ignore_eos, "Go on after the end-of-sequence token")->group(group);
  app->add_option("--stop", f->stop, "Text that ends the answer; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--stop-token-id", f->stop_token_ids, "Token that ends the answer; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_flag("--include-stop", f->include_stop, "Keep the stop text in the answer")->group(group);
  if (!all) return;
  app->add_option("--logprobs", f->logprobs, "[0, 20] alternatives a token, in --json")->group(group);
  app->add_option("--n", f->n, "[1, 16] answers to one prompt; default 1")->group(group);
}

absl::Status ToSamplingParams(const SamplingFlags& f, v1::SamplingParams* s) {
  s->set_temperature(f.temperature.value_or(SamplingFlags::kTemperature));
  s->set_max_tokens(f.max_tokens.value_or(std::max(f.default_max_tokens, f.min_tokens.value_or(0))));
  if (f.top_p) s->set_top_p(*f.top_p);
  if (f.top_k) s->set_top_k(*f.top_k);
  if (f.min_p) s->set_min_p(*f.min_p);
  if (f.repetition_penalty) s->set_repetition_penalty(*f.repetition_penalty);
  if (f.presence_penalty) s->set_presence_penalty(*f.presence_penalty);
  if (f.frequency_penalty) s->set_frequency_penalty(*f.frequency_penalty);
  if (f.min_tokens) s->set_min_tokens(*f.min_tokens);
  if (!f.seed.empty()) {
    uint64_t seed = 0;
    if (!absl::SimpleAtoi(f.seed, &seed)) {
      return absl::InvalidArgumentError(absl::StrCat("--seed is \"", f.seed.substr(0, 40),
                                                     "\"; expected a whole number from 0 to 18446744073709551615"));
    }
    s->set_seed(seed);
  }
  if (f.logprobs) s->set_logprobs(*f.logprobs);
  if (f.n) s->set_n(*f.n);
  s->set_ignore_eos(f.ignore_eos);
  s->set_include_stop_str_in_output(f.include_stop);
  for (const std::string& stop : f.stop) s->add_stop(stop);
  for (const int32_t id : f.stop_token_ids) s->add_stop_token_ids(id);
  for (const std::string& entry : f.logit_bias) {
    const size_t equals = entry.find('=');
    int32_t id = 0;
    float bias = 0;
    if (equals == std::string::npos || !absl::SimpleAtoi(entry.substr(0, equals), &id) ||
        !absl::SimpleAtof(entry.substr(equals + 1), &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias is \"", entry.substr(0, 40), "\"; expected ID=BIAS, as in --logit-bias 42=-5"));
    }
    if (!s->mutable_logit_bias()->insert({id, bias}).second) {
      return absl::InvalidArgumentError(absl::StrCat("--logit-bias names token ", id, " twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::cli
