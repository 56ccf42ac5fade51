// One choice of one request on its way through the engine.
//
// Thread contract: the engine's thread only.
#ifndef BATON_ENGINE_SEQUENCE_H_
#define BATON_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "constraint/token_constraint.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "kvcache/block_pool.h"
#include "kvcache/prefix_index.h"

namespace baton::engine {

enum class Mode { kComplete, kPrefill, kDecode };

// A request and what its choices share.
struct RequestState {
  Request request;
  Mode mode = Mode::kComplete;
  std::shared_ptr<RequestSink> sink;
  uint64_t arrival = 0;
  int open_choices = 0;
  absl::Time submitted;
  bool scheduled = false;  // ever
  bool exposed = false;    // a prefill whose blocks its sink has: it keeps them
  absl::Time first_scheduled;
  int64_t last_decode_step = -1;
  std::shared_ptr<const std::unordered_set<int32_t>> prompt_set;  // for the repetition penalty
  RequestStats stats;
};

// Choices per request; an id has this many places for them.
constexpr int kMaxChoices = 1024;
// Ids are ages: requests by arrival, the choices of one by index.
constexpr uint64_t SequenceId(uint64_t arrival, int choice) { return arrival * kMaxChoices + choice; }

// Resident when it holds blocks, else waiting. Before token 0 is sampled one sequence stands for all choices.
struct Sequence {
  RequestState* request = nullptr;  // owned by the engine, outlives the sequence
  int choice_index = 0;
  bool stands_for_all = false;
  std::vector<int32_t> token_ids;   // prompt and output
  int num_computed = 0;             // KV of these is in the table
  kvcache::BlockTable table;
  TokenHistory history;
  constraint::TokenConstraint::Position place;  // in the text that the constraint allows
  int64_t last_step = 0;

  // Where the next sealed block goes in the prefix index.
  kvcache::PrefixIndex::Cursor cursor;
  int num_sealed = 0;    // blocks offered to the index so far
  bool sealing = false;  // false: no index, or this chain can no longer be extended

  uint64_t id() const { return SequenceId(request->arrival, choice_index); }
  int num_tokens() const { return static_cast<int>(token_ids.size()); }
  int prompt_tokens() const { return static_cast<int>(request->request.prompt_token_ids.size()); }
  int num_outputs() const { return num_tokens() - prompt_tokens(); }
  std::span<const int32_t> outputs() const { return std::span(token_ids).subspan(static_cast<size_t>(prompt_tokens())); }
  const SamplingParams& params() const { return request->request.sampling; }

  void AppendOutput(int32_t token_id) {
    token_ids.push_back(token_id);
    if (Sampler::NeedsHistory(params())) ++history.output_counts[token_id];
  }
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_SEQUENCE_H_
