#include "engine/request_proto.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::engine {

SamplingParams SamplingFromProto(const v1::SamplingParams& s) {
  SamplingParams out;
  if (s.has_temperature()) out.temperature = s.temperature();
  if (s.has_top_p()) out.top_p = s.top_p();
  out.top_k = std::max(0, s.top_k());
  if (s.has_min_p()) out.min_p = s.min_p();
  if (s.has_repetition_penalty()) out.repetition_penalty = s.repetition_penalty();
  if (s.has_presence_penalty()) out.presence_penalty = s.presence_penalty();
  if (s.has_frequency_penalty()) out.frequency_penalty = s.frequency_penalty();
  out.logit_bias.assign(s.logit_bias().begin(), s.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());  // a protobuf map has no order
  out.seed = s.seed();
  out.max_tokens = s.max_tokens();
  out.min_tokens = s.min_tokens();
  out.ignore_eos = s.ignore_eos();
  out.stop_token_ids.assign(s.stop_token_ids().begin(), s.stop_token_ids().end());
  out.logprobs = s.has_logprobs() ? s.logprobs() : -1;
  if (s.has_n()) out.n = s.n();
  return out;
}

v1::SamplingParams SamplingToProto(const SamplingParams& s) {
  v1::SamplingParams out;
  out.set_temperature(s.temperature);
  out.set_top_p(s.top_p);
  out.set_top_k(s.top_k);
  out.set_min_p(s.min_p);
  out.set_repetition_penalty(s.repetition_penalty);
  out.set_presence_penalty(s.presence_penalty);
  out.set_frequency_penalty(s.frequency_penalty);
  for (const auto& [id, bias] : s.logit_bias) (*out.mutable_logit_bias())[id] = bias;
  out.set_seed(s.seed);
  out.set_max_tokens(s.max_tokens);
  out.set_min_tokens(s.min_tokens);
  out.set_ignore_eos(s.ignore_eos);
  out.mutable_stop_token_ids()->Assign(s.stop_token_ids.begin(), s.stop_token_ids.end());
  if (s.logprobs >= 0) out.set_logprobs(s.logprobs);
  out.set_n(s.n);
  return out;
}

absl::StatusOr<Request> RequestFromProto(const std::string& request_id,
                                         const google::protobuf::RepeatedField<int32_t>& prompt_token_ids,
                                         const v1::SamplingParams& sampling, const std::string& tenant,
                                         absl::Time deadline, const ModelLimits& limits) {
  if (request_id.empty() || request_id.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat(request_id.size(), " bytes; must be 1 to ", kMaxRequestIdBytes));
  }
  if (absl::Status s = ValidateTokenIds(prompt_token_ids, "prompt_token_ids", limits); !s.ok()) return s;
  if (absl::Status s = ValidateSamplingParams(sampling, limits); !s.ok()) return s;
  if (absl::Status s = ValidatePromptLength(prompt_token_ids.size(), sampling, limits); !s.ok()) return s;
  Request request;
  request.request_id = request_id;
  request.prompt_token_ids.assign(prompt_token_ids.begin(), prompt_token_ids.end());
  request.sampling = SamplingFromProto(ResolveDefaults(sampling, prompt_token_ids.size(), sampling.seed(), limits));
  request.tenant = tenant;
  request.deadline = deadline;
  return request;
}

v1::FinishReason FinishReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

FinishReason FinishReasonFromProto(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_UNSPECIFIED:
      return FinishReason::kNone;
    case v1::FINISH_REASON_STOP:
      return FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return FinishReason::kLength;
    case v1::FINISH_REASON_CANCELLED:
      return FinishReason::kCancelled;
    default:
      return FinishReason::kError;
  }
}

v1::SampledToken TokenToProto(const SampledToken& token) {
  v1::SampledToken out;
  out.set_choice_index(token.choice_index);
  out.set_token_index(token.token_index);
  out.set_token_id(token.token_id);
  out.set_logprob(token.logprob);
  for (const TopLogprob& top : token.top_logprobs) {
    auto* t = out.add_top_logprobs();
    t->set_token_id(top.token_id);
    t->set_logprob(top.logprob);
  }
  out.set_finish_reason(FinishReasonToProto(token.finish_reason));
  if (token.finish_reason == FinishReason::kStop) out.set_stop_token_id(token.token_id);
  return out;
}

absl::StatusOr<SampledToken> TokenFromProto(const v1::SampledToken& token, int n, int vocab_size) {
  if (token.choice_index() >= static_cast<uint32_t>(n)) {
    return InvalidField("choice_index", absl::StrCat(token.choice_index(), " is not below n, which is ", n));
  }
  if (token.token_id() < 0 || token.token_id() >= vocab_size) {
    return InvalidField("token_id", absl::StrCat(token.token_id(), " is not in [0, ", vocab_size, ")"));
  }
  SampledToken out;
  out.choice_index = static_cast<int>(token.choice_index());
  out.token_index = static_cast<int>(token.token_index());
  out.token_id = token.token_id();
  out.logprob = token.logprob();
  for (const auto& top : token.top_logprobs()) out.top_logprobs.push_back({top.token_id(), top.logprob()});
  out.finish_reason = FinishReasonFromProto(token.finish_reason());
  return out;
}

absl::StatusOr<std::vector<SampledToken>> FirstTokensFromProto(
    const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens, int n, int vocab_size) {
  if (tokens.size() != n) {
    return InvalidField("first_tokens", absl::StrCat(tokens.size(), " tokens; one for each of the ", n, " choices"));
  }
  std::vector<SampledToken> out;
  bool any_open = false;
  for (int i = 0; i < n; ++i) {
    absl::StatusOr<SampledToken> token = TokenFromProto(tokens.Get(i), n, vocab_size);
    if (!token.ok()) return token.status();
    if (token->choice_index != i || token->token_index != 0) {
      return InvalidField(absl::StrCat("first_tokens[", i, "]"),
                          absl::StrCat("must be choice ", i, ", index 0; is choice ", token->choice_index, ", index ",
                                       token->token_index));
    }
    any_open = any_open || token->finish_reason == FinishReason::kNone;
    out.push_back(*std::move(token));
  }
  if (!any_open) return InvalidField("first_tokens", "every choice is finished; there is nothing to decode");
  return out;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ResumeFromProto(
    const google::protobuf::RepeatedPtrField<v1::EmittedTokens>& resume, int n, int max_tokens,
    const ModelLimits& limits) {
  std::vector<std::vector<int32_t>> out;
  if (resume.empty()) return out;
  if (resume.size() != n) {
    return InvalidField("resume", absl::StrCat(resume.size(), " lists; none, or one for each of the ", n, " choices"));
  }
  for (int i = 0; i < n; ++i) {
    const auto& ids = resume.Get(i).token_ids();
    const std::string field = absl::StrCat("resume[", i, "]");
    if (ids.size() >= max_tokens) {
      return InvalidField(field, absl::StrCat(ids.size(), " tokens, and max_tokens is ", max_tokens,
                                              "; a choice that has all its tokens is finished"));
    }
    if (!ids.empty()) {
      if (absl::Status s = ValidateTokenIds(ids, field, limits); !s.ok()) return s;
    }
    out.emplace_back(ids.begin(), ids.end());
  }
  return out;
}

v1::KvLedger LedgerToProto(const kvcache::Ledger& ledger) {
  v1::KvLedger out;
  out.set_total(ledger.total);
  out.set_free(ledger.free);
  out.set_active(ledger.active);
  out.set_leased(ledger.leased);
  out.set_cached(ledger.cached);
  out.set_quarantined(ledger.quarantined);
  out.set_block_bytes(ledger.block_bytes);
  return out;
}

namespace {

void CostToProto(const StepCost& cost, v1::StepCost* out) {
  out->set_fixed_us(cost.fixed_us);
  out->set_per_row_us(cost.per_row_us);
  out->set_per_position_us(cost.per_position_us);
  out->set_samples(cost.samples);
}

}  // namespace

v1::WorkerLoad LoadToProto(const EngineLoad& load) {
  v1::WorkerLoad out;
  out.set_running(load.running);
  out.set_waiting(load.waiting);
  out.set_waiting_tokens(load.waiting_tokens);
  *out.mutable_ledger() = LedgerToProto(load.ledger);
  out.set_steps(load.steps);
  out.set_tokens_per_second(load.tokens_per_second);
  out.set_pending_tokens(load.pending_tokens);
  out.set_context_tokens(load.context_tokens);
  CostToProto(load.cost, out.mutable_cost());
  CostToProto(load.prefill_cost, out.mutable_prefill_cost());
  out.set_mixed_batch_tokens(static_cast<uint32_t>(load.mixed_batch_tokens));
  return out;
}

v1::Prefilled PrefilledToProto(const RequestStats& stats) {
  v1::Prefilled out;
  out.set_cached_tokens(stats.cached_tokens);
  out.set_queue_ms(absl::ToDoubleMilliseconds(stats.queue));
  out.set_prefill_ms(absl::ToDoubleMilliseconds(stats.prefill));
  out.set_num_chunks(stats.num_chunks);
  out.set_sample_ms(absl::ToDoubleMilliseconds(stats.sample));
  return out;
}

v1::PrefixReport PrefixesToProto(const kvcache::PrefixJournal::Report& report) {
  v1::PrefixReport out;
  out.set_base_version(report.base_version);
  out.set_version(report.version);
  out.mutable_added()->Assign(report.added.begin(), report.added.end());
  out.mutable_removed()->Assign(report.removed.begin(), report.removed.end());
  return out;
}

}  // namespace baton::engine
