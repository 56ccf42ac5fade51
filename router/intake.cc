#include "router/intake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/ids.h"
#include "common/status.h"
#include "constraint/compile.h"

namespace baton::router {

ModelLimits Intake::Limits() const {
  ModelLimits limits = text_->limits();
  if (const std::optional<uint32_t> workers = view_->MaxContext()) {
    limits.max_context = static_cast<int>(std::min<uint32_t>(limits.max_context, *workers));
  }
  return limits;
}

absl::StatusOr<AdmittedRequest> Intake::Prepare(const v1::GenerateRequest& request, std::string request_id) const {
  const ModelLimits limits = Limits();
  if (absl::Status status = ValidateGenerateRequest(request, limits); !status.ok()) return status;
  if (absl::Status status = constraint::CheckConstraint(request.sampling()); !status.ok()) return status;
  AdmittedRequest admitted;
  const absl::Time begin = context_->clock->Now();
  absl::StatusOr<std::vector<int32_t>> tokens = text_->PromptTokens(request);
  admitted.tokenize = context_->clock->Now() - begin;
  if (!tokens.ok()) return tokens.status();
  const auto num_tokens = static_cast<int64_t>(tokens->size());
  if (absl::Status status = ValidatePromptLength(num_tokens, request.sampling(), limits); !status.ok()) return status;
  // 63 bits, so that no language's integers have trouble with it.
  admitted.sampling = ResolveDefaults(request.sampling(), num_tokens, RandomU64() >> 1, limits);
  admitted.request_id = std::move(request_id);
  admitted.model = text_->model_name();
  admitted.priority = request.priority() == v1::PRIORITY_HIGH    ? Priority::kHigh
                      : request.priority() == v1::PRIORITY_BATCH ? Priority::kBatch
                                                                 : Priority::kStandard;
  admitted.prompt_token_ids = *std::move(tokens);
  return admitted;
}

void Intake::Generate(const absl::StatusOr<v1::GenerateRequest>& request, const Caller& caller,
                      absl::Time deadline, const MakeClient& make_client,
                      const std::optional<tracing::SpanContext>& trace) {
  ++requests_total_;
  // An id that is not valid is not shown anywhere.
  std::string key;
  if (request.ok() && request->request_id().size() <= kMaxRequestIdBytes) key = request->request_id();
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c <= 0x7e; })) key.clear();
  if (key.empty()) key = NewRequestId();
  deadline = std::min(deadline, context_->clock->Now() + options_.default_deadline);
  const std::shared_ptr<RequestDriver> driver = RequestDriver::Create(context_, key, deadline, make_client, std::nullopt, trace);
  if (!request.ok()) return driver->Reject(request.status());
  if (request->priority() == v1::PRIORITY_HIGH && !caller.priority) {
    return driver->Reject(WithReason(
        absl::PermissionDeniedError("this API key may not be served before others: leave priority out, or have the scope "
                                    "\"priority\" added to the key's line in api_keys_file"),
        "NO_PRIORITY_SCOPE"));
  }
  if (draining_) {
    return driver->Reject(
        WithReason(WithRetryAfter(absl::UnavailableError("this router is draining; ask another one"), absl::Seconds(1)),
                   "DRAINING"));
  }
  if (absl::Status status = context_->table->Add(key, driver); !status.ok()) return driver->Reject(std::move(status));
  absl::StatusOr<AdmittedRequest> admitted = Prepare(*request, key);
  if (!admitted.ok()) return driver->Reject(admitted.status());
  admitted->tenant = caller.tenant;
  driver->Admit(*std::move(admitted));
}

absl::Status Intake::CheckModel(const std::string& model) const {
  const std::vector<std::string>& names = text_->limits().model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return absl::OkStatus();
  return WithReason(absl::NotFoundError(absl::StrCat("that model is not served; served: ", absl::StrJoin(names, ", "))),
                    "MODEL_NOT_FOUND");
}

absl::StatusOr<v1::TokenizeResponse> Intake::Tokenize(const v1::TokenizeRequest& request) const {
  if (absl::Status status = CheckModel(request.model()); !status.ok()) return status;
  const ModelLimits limits = Limits();
  absl::StatusOr<std::vector<int32_t>> tokens = InvalidField("input", "none given; send text or chat");
  if (request.has_chat()) {
    // The same judgement of roles, number and UTF-8 as for Generate.
    v1::GenerateRequest checked;
    *checked.mutable_chat() = request.chat();
    if (absl::Status status = ValidateGenerateRequest(checked, limits); !status.ok()) return status;
    tokens = text_->TokenizeChat(request.chat());
  } else if (request.input_case() == v1::TokenizeRequest::kText) {
    const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
    tokens = text_->TokenizeText(request.text(), add_special);
  }
  if (!tokens.ok()) return tokens.status();
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Assign(tokens->begin(), tokens->end());
  response.set_max_context(static_cast<uint32_t>(limits.max_context));
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Intake::Detokenize(const v1::DetokenizeRequest& request) const {
  absl::Status status = CheckModel(request.model());
  if (status.ok()) status = ValidateTokenIds(request.token_ids(), "token_ids", text_->limits());
  if (!status.ok()) return status;
  absl::StatusOr<std::string> text = text_->Detokenize({request.token_ids().begin(), request.token_ids().end()});
  if (!text.ok()) return text.status();
  v1::DetokenizeResponse response;
  response.set_text(*std::move(text));
  return response;
}

v1::ListModelsResponse Intake::ListModels() const {
  v1::ListModelsResponse response;
  v1::Model* model = response.add_models();
  model->set_name(text_->model_name());
  model->set_architecture(text_->architecture());
  const ModelLimits limits = Limits();
  model->set_max_context(static_cast<uint32_t>(limits.max_context));
  model->set_vocab_size(static_cast<uint32_t>(limits.vocab_size));
  // The weights' once a worker has read them; the tokenizer's until then.
  v1::ClusterStatus status;
  view_->FillStatus(&status);
  const std::string& weights = status.fingerprint().weights();
  model->set_fingerprint(weights.empty() ? absl::StrCat("tokenizer-", text_->tokenizer_fingerprint().substr(0, 12))
                                         : weights.substr(0, 12));
  return response;
}

}  // namespace baton::router
