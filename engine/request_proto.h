// Between the wire and the engine: requests, tokens, load.
//
// Thread contract: plain functions.
#ifndef BATON_ENGINE_REQUEST_PROTO_H_
#define BATON_ENGINE_REQUEST_PROTO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/validate_request.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "proto/cluster.pb.h"
#include "proto/kv.pb.h"
#include "proto/worker.pb.h"

namespace baton::engine {

// `sampling` as the router sends it: defaults resolved, seed set. INVALID_ARGUMENT (naming the field) when it breaks
// the limits anyway: a worker's port is a door too.
absl::StatusOr<Request> RequestFromProto(const std::string& request_id,
                                         const google::protobuf::RepeatedField<int32_t>& prompt_token_ids,
                                         const v1::SamplingParams& sampling, const std::string& tenant,
                                         absl::Time deadline, const ModelLimits& limits);
// Without checks; optional fields that are unset take their defaults.
SamplingParams SamplingFromProto(const v1::SamplingParams& sampling);
v1::SamplingParams SamplingToProto(const SamplingParams& sampling);

v1::SampledToken TokenToProto(const SampledToken& token);
// INVALID_ARGUMENT for ids outside the vocabulary or an index that is not 0 <= choice_index < n.
absl::StatusOr<SampledToken> TokenFromProto(const v1::SampledToken& token, int n, int vocab_size);
// Index 0 of every choice, in order; finished ones included.
absl::StatusOr<std::vector<SampledToken>> FirstTokensFromProto(
    const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens, int n, int vocab_size);

// Request.resume: none, or a list for each of `n` choices. INVALID_ARGUMENT naming the list and what is wrong with it.
absl::StatusOr<std::vector<std::vector<int32_t>>> ResumeFromProto(
    const google::protobuf::RepeatedPtrField<v1::EmittedTokens>& resume, int n, int max_tokens,
    const ModelLimits& limits);

v1::FinishReason FinishReasonToProto(FinishReason reason);
FinishReason FinishReasonFromProto(v1::FinishReason reason);

v1::KvLedger LedgerToProto(const kvcache::Ledger& ledger);
v1::Prefilled PrefilledToProto(const RequestStats& stats);
v1::WorkerLoad LoadToProto(const EngineLoad& load);
v1::PrefixReport PrefixesToProto(const kvcache::PrefixJournal::Report& report);

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_PROTO_H_
