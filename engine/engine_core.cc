// Requests coming and going; engine_step.cc has the step.
#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::engine {

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(const EngineOptions& options,
                                                               model::ModelRunner* runner, Clock* clock) {
  if (options.max_batch_tokens < 1 || options.max_sequences < 1 || options.max_queue < 1 || options.block_size < 1 ||
      options.num_blocks < 1 || options.mixed_batch_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "engine options must be at least 1: max_batch_tokens ", options.max_batch_tokens, ", max_sequences ",
        options.max_sequences, ", max_queue ", options.max_queue, ", block_size ", options.block_size, ", num_blocks ",
        options.num_blocks));
  }
  auto pool = kvcache::BlockPool::Create(runner->KvLayoutFor(options.kv_dtype, options.block_size), options.num_blocks,
                                         runner->device());
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<EngineCore>(new EngineCore(options, runner, clock, *std::move(pool)));
}

EngineCore::EngineCore(const EngineOptions& options, model::ModelRunner* runner, Clock* clock,
                       std::shared_ptr<kvcache::BlockPool> pool)
    : options_(options),
      runner_(runner),
      clock_(clock),
      pool_(std::move(pool)),
      sampler_(runner->vocab_size()),
      window_start_(clock->Now()) {
  if (options_.prefix_cache) {
    index_ = std::make_unique<kvcache::PrefixIndex>(pool_.get(), kvcache::ExtendPrefixHash, &journal_);
  }
}

EngineCore::~EngineCore() {
  EndAll(absl::CancelledError("the engine stopped"));
  pool_->DropDevice();
}

absl::Status EngineCore::Validate(const Request& request, Mode mode) const {
  const SamplingParams& params = request.sampling;
  const int64_t prompt = static_cast<int64_t>(request.prompt_token_ids.size());
  const int64_t context = runner_->max_context();
  if (prompt == 0) return absl::InvalidArgumentError("the prompt is empty: give at least one token");
  if (prompt >= context) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt, " tokens; at most ", context - 1,
                                                   " fit the context of ", context, " with one token to answer"));
  }
  const int vocab = runner_->vocab_size();
  for (size_t i = 0; i < request.prompt_token_ids.size(); ++i) {
    const int32_t id = request.prompt_token_ids[i];
    if (id < 0 || id >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt token ", i, " has id ", id, "; the vocabulary has ids 0 to ", vocab - 1));
    }
  }
  if (params.max_tokens < 1 || params.n < 1 || params.n > kMaxChoices) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens must be at least 1 (is ", params.max_tokens,
                                                   ") and n from 1 to ", kMaxChoices, " (is ", params.n, ")"));
  }
  // The last token of an answer is sampled but never computed.
  const int64_t positions =
      mode == Mode::kPrefill ? prompt : std::min(prompt + int64_t{params.max_tokens}, context) - 1;
  const int64_t blocks = pool_->BlocksFor(positions);
  if (blocks > pool_->num_blocks()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request needs the KV of ", positions, " positions (prompt ", prompt, ", max_tokens ",
                     params.max_tokens, ", context ", context, "), which is ", blocks, " blocks of ",
                     options_.block_size, "; this worker has ", pool_->num_blocks(),
                     " in all. Lower max_tokens, shorten the prompt, or give the worker more KV memory"));
  }
  return absl::OkStatus();
}

absl::Status EngineCore::ValidateImport(const Request& request, const kvcache::BlockLease& prompt_kv,
                                        const std::vector<SampledToken>& first_tokens) const {
  const int64_t want = pool_->BlocksFor(static_cast<int64_t>(request.prompt_token_ids.size()));
  if (prompt_kv.pool() != pool_.get() || !prompt_kv.Valid()) {
    return absl::InvalidArgumentError("the prompt's KV is not a valid lease of this engine: reserve room here first");
  }
  if (static_cast<int64_t>(prompt_kv.blocks().size()) < want) {
    return absl::InvalidArgumentError(absl::StrCat("the KV lease has ", prompt_kv.blocks().size(), " blocks; ",
                                                   request.prompt_token_ids.size(), " prompt tokens need ", want));
  }
  if (static_cast<int64_t>(first_tokens.size()) != request.sampling.n) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", first_tokens.size(), " first tokens for n = ",
                                                   request.sampling.n, " choices"));
  }
  for (size_t i = 0; i < first_tokens.size(); ++i) {
    const SampledToken& token = first_tokens[i];
    if (token.choice_index != static_cast<int>(i) || token.token_index != 0 || token.token_id < 0 ||
        token.token_id >= runner_->vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat("first token ", i, " is of choice ", token.choice_index, ", index ",
                                                     token.token_index, ", id ", token.token_id,
                                                     ": want its own choice, index 0 and an id of the vocabulary"));
    }
  }
  return ValidateResume(request, first_tokens);
}

absl::Status EngineCore::ValidateResume(const Request& request, const std::vector<SampledToken>& first_tokens) const {
  if (request.resume.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(request.resume.size()) != request.sampling.n) {
    return absl::InvalidArgumentError(absl::StrCat("there are tokens to resume for ", request.resume.size(), " of ",
                                                   request.sampling.n, " choices; want one list for each"));
  }
  const int64_t room = int64_t{runner_->max_context()} - static_cast<int64_t>(request.prompt_token_ids.size());
  for (size_t i = 0; i < request.resume.size(); ++i) {
    if (!first_tokens.empty() && first_tokens[i].finish_reason != FinishReason::kNone) continue;
    const std::vector<int32_t>& tokens = request.resume[i];
    const int64_t count = static_cast<int64_t>(tokens.size());
    if (count >= request.sampling.max_tokens || count >= room) {
      return absl::InvalidArgumentError(absl::StrCat("choice ", i, " has ", count,
                                                     " tokens already, and at most ",
                                                     std::min<int64_t>(request.sampling.max_tokens, room),
                                                     " are asked for: there is nothing to resume"));
    }
    for (const int32_t id : tokens) {
      if (id < 0 || id >= runner_->vocab_size()) {
        return absl::InvalidArgumentError(absl::StrCat("choice ", i, " resumes after token ", id,
                                                       ", which is not in the vocabulary"));
      }
    }
    if (first_tokens.empty()) continue;
    if (absl::Status s = CheckFirst(request, first_tokens[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status EngineCore::CheckFirst(const Request& request, const SampledToken& first) {
  if (request.resume.empty()) return absl::OkStatus();
  const std::vector<int32_t>& tokens = request.resume[first.choice_index];
  if (tokens.empty() || tokens[0] == first.token_id) return absl::OkStatus();
  // Both come from the same distribution and the same draw: other arithmetic, or another request's tokens.
  return absl::InternalError(absl::StrCat("choice ", first.choice_index, " began with token ", tokens[0],
                                          " and prefill now computed ", first.token_id,
                                          "; the workers' arithmetic differs"));
}

RequestState* EngineCore::Open(Request request, Mode mode, std::shared_ptr<RequestSink> sink, absl::Time submitted) {
  auto state = std::make_unique<RequestState>();
  state->request = std::move(request);
  state->mode = mode;
  state->sink = std::move(sink);
  state->arrival = next_arrival_++;
  state->submitted = submitted;
  state->open_choices = state->request.sampling.n;
  state->stats.prompt_tokens = static_cast<int>(state->request.prompt_token_ids.size());
  if (state->request.sampling.repetition_penalty != 1.0f) {
    const auto& prompt = state->request.prompt_token_ids;
    state->prompt_set = std::make_shared<const std::unordered_set<int32_t>>(prompt.begin(), prompt.end());
  }
  RequestState* raw = state.get();
  requests_.emplace(raw->request.request_id, std::move(state));
  return raw;
}

std::unique_ptr<Sequence> EngineCore::NewSequence(RequestState* state) const {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = state;
  sequence->token_ids = state->request.prompt_token_ids;
  sequence->history.prompt = state->prompt_set;
  sequence->last_step = step_;
  if (index_ != nullptr) {
    sequence->cursor = index_->Root(state->request.tenant);
    sequence->sealing = true;
  }
  return sequence;
}

void EngineCore::Submit(Request request, Mode mode, std::shared_ptr<RequestSink> sink, absl::Time submitted) {
  RequestStats stats;
  stats.prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
  absl::Status status;
  if (draining_) {
    status = absl::UnavailableError("this worker is draining: send the request to another");
  } else if (requests_.contains(request.request_id)) {
    status = absl::AlreadyExistsError(absl::StrCat("request ", request.request_id, " is already running here"));
  } else if (static_cast<int64_t>(waiting_.size() + reservations_.size()) >= options_.max_queue) {
    status = absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", waiting_.size() + reservations_.size(),
                                                       " waiting, limit ", options_.max_queue, "; try again later"));
  } else {
    status = Validate(request, mode);
    if (status.ok()) status = ValidateResume(request, {});
  }
  if (!status.ok()) return sink->OnDone(status, stats);
  auto sequence = NewSequence(Open(std::move(request), mode, std::move(sink), submitted));
  sequence->stands_for_all = true;
  const uint64_t id = sequence->id();
  waiting_.emplace(id, std::move(sequence));
}

void EngineCore::SubmitDecode(Request request, kvcache::BlockLease prompt_kv, std::vector<SampledToken> first_tokens,
                              std::shared_ptr<RequestSink> sink, absl::Time submitted) {
  RequestStats stats;
  stats.prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
  absl::Status status = Validate(request, Mode::kDecode);
  if (status.ok() && requests_.contains(request.request_id)) {
    status = absl::AlreadyExistsError(absl::StrCat("request ", request.request_id, " is already running here"));
  }
  if (status.ok()) status = ValidateImport(request, prompt_kv, first_tokens);
  if (!status.ok()) {
    prompt_kv.Reset();
    return sink->OnDone(status, stats);
  }
  RequestState* state = Open(std::move(request), Mode::kDecode, std::move(sink), submitted);
  auto table = pool_->Adopt(std::move(prompt_kv));
  if (!table.ok()) return Finish(state, table.status());
  if (pool_->device() == nullptr) return Join(state, *std::move(table), first_tokens);
  AfterCopies([this, key = KeyOf(*state), table = *std::move(table), first_tokens = std::move(first_tokens)]() mutable {
    if (RequestState* open = Find(key)) Join(open, std::move(table), first_tokens);
  });
}

void EngineCore::Join(RequestState* state, kvcache::BlockTable prompt_kv,
                      const std::vector<SampledToken>& first_tokens) {
  auto sequence = NewSequence(state);
  sequence->table = std::move(prompt_kv);
  sequence->num_computed = sequence->num_tokens();
  Seal(sequence.get());
  for (const SampledToken& token : first_tokens) state->open_choices -= token.finish_reason != FinishReason::kNone;
  if (state->open_choices == 0) {
    sequence.reset();
    return Finish(state, absl::OkStatus());
  }
  Fork(std::move(sequence), first_tokens);
}

void EngineCore::Reserve(std::string request_id, int num_tokens, absl::Time deadline, ReserveDone done,
                         PrefixQuery prefix) {
  absl::Status status;
  const int64_t blocks = num_tokens > 0 ? pool_->BlocksFor(num_tokens) : 0;
  if (draining_) {
    status = absl::UnavailableError("this worker is draining: send the request to another");
  } else if (num_tokens <= 0) {
    status = absl::InvalidArgumentError(absl::StrCat("room for ", num_tokens, " tokens makes no sense"));
  } else if (blocks > pool_->num_blocks()) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("room for the KV of ", num_tokens, " tokens is ", blocks, " blocks of ", options_.block_size,
                     "; this worker has ", pool_->num_blocks(), " in all"));
  } else if (static_cast<int64_t>(waiting_.size() + reservations_.size()) >= options_.max_queue) {
    status = absl::ResourceExhaustedError(absl::StrCat("the queue is full: limit ", options_.max_queue));
  } else {
    for (const auto& [id, reservation] : reservations_) {
      if (reservation.request_id == request_id) {
        status = absl::AlreadyExistsError(absl::StrCat("a reservation for request ", request_id, " already waits"));
      }
    }
  }
  if (!status.ok()) return done(status);
  reservations_.emplace(SequenceId(next_arrival_++, 0),
                        Reservation{std::move(request_id), blocks, deadline, std::move(done), std::move(prefix)});
}

void EngineCore::AdoptPrefix(const std::string& tenant, std::span<const int32_t> token_ids, kvcache::BlockLease kv) {
  const size_t block_size = options_.block_size;
  if (index_ == nullptr || kv.blocks().size() * block_size > token_ids.size()) return;
  auto table = pool_->Adopt(std::move(kv));
  if (!table.ok()) return;
  if (pool_->device() == nullptr) return InsertPrefix(tenant, token_ids, *table);
  AfterCopies([this, tenant, ids = std::vector<int32_t>(token_ids.begin(), token_ids.end()),
               table = *std::move(table)] { InsertPrefix(tenant, ids, table); });
}

void EngineCore::CopyToHost(kvcache::BlockLease blocks, std::function<void()> done) {
  if (pool_->device() == nullptr) return done();
  pool_->device()->Download(blocks.blocks());
  AfterCopies([blocks = std::move(blocks), done = std::move(done)] { done(); });
}

void EngineCore::MakeReadable(const kvcache::BlockLease& blocks) {
  options_.exports_from_device ? pool_->device()->Await() : pool_->device()->Download(blocks.blocks());
}

void EngineCore::InsertPrefix(const std::string& tenant, std::span<const int32_t> token_ids,
                              const kvcache::BlockTable& table) {
  const size_t block_size = options_.block_size;
  kvcache::PrefixIndex::Cursor cursor = index_->Root(tenant);
  for (int i = 0; i < table.size(); ++i) {
    if (!index_->Insert(&cursor, token_ids.subspan(i * block_size, block_size), table.ids()[i])) return;
  }
}

RequestState* EngineCore::Find(const RequestKey& key) const {
  const auto it = requests_.find(key.request_id);
  return it == requests_.end() || it->second->arrival != key.arrival ? nullptr : it->second.get();
}

bool EngineCore::RunCopied(bool wait) {
  bool any = false;
  while (!copying_.empty()) {
    kvcache::DeviceBlocks* const device = pool_->device();
    if (wait && !any) device->Wait(copying_.front().last_copy);
    if (!device->Done(copying_.front().last_copy)) break;
    Copying done = std::move(copying_.front());
    copying_.pop_front();
    done.then();
    any = true;
  }
  return any;
}

void EngineCore::FinishAfterCopies(RequestState* state) {
  if (copying_.empty()) return Finish(state, absl::OkStatus());
  AfterCopies([this, key = KeyOf(*state)] {
    if (RequestState* open = Find(key)) Finish(open, absl::OkStatus());
  });
}

void EngineCore::Finish(RequestState* state, const absl::Status& status) {
  const auto drop = [&](std::map<uint64_t, std::unique_ptr<Sequence>>& sequences) {
    sequences.erase(sequences.lower_bound(SequenceId(state->arrival, 0)),
                    sequences.lower_bound(SequenceId(state->arrival + 1, 0)));
  };
  drop(resident_);
  drop(waiting_);
  auto node = requests_.extract(state->request.request_id);
  node.mapped()->sink->OnDone(status, node.mapped()->stats);
}

void EngineCore::FinishReservation(uint64_t id, absl::StatusOr<kvcache::BlockLease> result) {
  auto node = reservations_.extract(id);
  node.mapped().done(std::move(result));
}

void EngineCore::Cancel(const std::string& request_id) {
  const absl::Status cancelled = absl::CancelledError("cancelled");
  if (const auto it = requests_.find(request_id); it != requests_.end()) Finish(it->second.get(), cancelled);
  for (auto it = reservations_.begin(); it != reservations_.end();) {
    const auto next = std::next(it);
    if (it->second.request_id == request_id) FinishReservation(it->first, cancelled);
    it = next;
  }
}

void EngineCore::EndAll(const absl::Status& status) {
  while (RunCopied(/*wait=*/true)) continue;
  while (!reservations_.empty()) FinishReservation(reservations_.begin()->first, status);
  // In order of arrival, so that a simulation is repeatable.
  std::map<uint64_t, RequestState*> open;
  for (const auto& [id, state] : requests_) open.emplace(state->arrival, state.get());
  for (const auto& [arrival, state] : open) Finish(state, status);
}

absl::Time EngineCore::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, state] : requests_) next = std::min(next, state->request.deadline);
  for (const auto& [id, reservation] : reservations_) next = std::min(next, reservation.deadline);
  return next;
}

EngineLoad EngineCore::load() const {
  EngineLoad load;
  load.running = static_cast<int>(resident_.size());
  load.waiting = static_cast<int>(waiting_.size() + reservations_.size());
  for (const auto& [id, sequence] : waiting_) load.waiting_tokens += sequence->num_tokens();
  load.pending_tokens = load.waiting_tokens;
  for (const auto& [id, sequence] : resident_) {
    load.pending_tokens += sequence->num_tokens() - sequence->num_computed;
    load.context_tokens += sequence->num_tokens();
  }
  load.cost = cost_.Fit();
  load.prefill_cost = prefill_cost_.Fit();
  load.mixed_batch_tokens = MixedBudget();
  load.steps = num_forwards_;
  load.tokens_per_second = tokens_per_second_;
  if (const kvcache::DeviceBlocks* device = pool_->device(); device != nullptr) {
    load.blocks_to_host = device->copied().to_host;
    load.blocks_to_device = device->copied().to_device;
  }
  load.ledger = pool_->ledger();
  return load;
}

void EngineCore::DropPrefixCache() {
  if (index_ != nullptr) index_->Clear();
}

}  // namespace baton::engine
