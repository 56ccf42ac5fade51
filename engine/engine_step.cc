// One step of the engine: plan, give and take blocks, compute, sample, tell.
#include <algorithm>
#include <utility>

#include "constraint/token_constraint.h"
#include "engine/engine_core.h"
#include "engine/stopping.h"
#include "kvcache/device_blocks.h"

namespace baton::engine {

PrefixHit EngineCore::Peek(uint64_t id) const {
  if (index_ == nullptr) return {};
  if (const auto it = reservations_.find(id); it != reservations_.end()) {
    const PrefixQuery& prefix = it->second.prefix;
    const auto hit = index_->Peek(prefix.tenant, prefix.token_ids, static_cast<int>(it->second.num_blocks));
    return {hit.blocks, hit.cached_blocks};
  }
  const Sequence& sequence = *waiting_.at(id);
  // At least one token must be computed, for its logits.
  const auto hit = index_->Peek(sequence.request->request.tenant, sequence.token_ids,
                                (sequence.num_tokens() - 1) / options_.block_size);
  return {hit.blocks, hit.cached_blocks};
}

Decision EngineCore::Plan(absl::Time now) {
  SchedulerState state;
  state.now = now;
  state.step = step_;
  state.available_blocks = pool_->Available();
  // What preemption would bring is asked only when it may be needed: at most one block a sequence a step.
  const bool scarce = state.available_blocks < static_cast<int64_t>(resident_.size());
  std::vector<ResidentView> resident;
  resident.reserve(resident_.size());
  for (const auto& [id, sequence] : resident_) {
    resident.push_back({id, sequence->num_tokens(), sequence->num_computed, sequence->table.size(),
                        scarce ? sequence->table.Releasable() : 0, sequence->last_step,
                        sequence->request->request.deadline, sequence->request->exposed});
  }
  std::vector<WaitingView> waiting;
  waiting.reserve(waiting_.size() + reservations_.size());
  for (const auto& [id, sequence] : waiting_) {
    waiting.push_back({id, WaitingView::Kind::kSequence, sequence->num_tokens(),
                       pool_->BlocksFor(sequence->num_tokens()), sequence->request->request.deadline});
  }
  for (const auto& [id, reservation] : reservations_) {
    waiting.push_back({id, WaitingView::Kind::kReservation, 0, reservation.num_blocks, reservation.deadline});
  }
  std::ranges::sort(waiting, {}, &WaitingView::id);
  state.resident = resident;
  state.waiting = waiting;
  if (index_ != nullptr) state.peek = [this](uint64_t id) { return Peek(id); };
  return Schedule(state, {options_.max_batch_tokens, options_.max_sequences, options_.block_size, MixedBudget()});
}

int EngineCore::MixedBudget() const {
  constexpr int kLeast = 16;        // rows, so that prompts get on whatever the target is
  constexpr double kForward = 0.95;  // of the time between tokens; sampling and their way take the rest
  const int most = options_.mixed_batch_tokens > 0 ? std::min(options_.mixed_batch_tokens, options_.max_batch_tokens)
                                                   : options_.max_batch_tokens;
  if (options_.step_target == absl::InfiniteDuration()) return most;
  const StepCost cost = prefill_cost_.Fit();
  if (cost.samples == 0) return std::min(most, kLeast);
  double decoding = 0, prefix = 0;  // positions that are attended to: by all decode rows, and by each prefill row
  for (const auto& [id, sequence] : resident_) {
    if (sequence->num_tokens() - sequence->num_computed == 1) {
      decoding += sequence->num_tokens();
    } else if (prefix == 0) {
      prefix = sequence->num_computed;
    }
  }
  const double left = kForward * absl::ToDoubleMicroseconds(options_.step_target) / mixed_excess_.factor() -
                      cost.fixed_us - cost.per_position_us * decoding;
  const double per_row = cost.per_row_us + cost.per_position_us * prefix;
  if (!(per_row > 0)) return most;
  return static_cast<int>(std::clamp<double>(left / per_row, std::min(most, kLeast), most));
}

bool EngineCore::Step() {
  const bool copied = RunCopied(/*wait=*/false);
  const absl::Time now = clock_->Now();
  const Decision decision = Plan(now);
  if (decision.empty()) return copied || RunCopied(/*wait=*/true);
  ++step_;
  for (uint64_t id : decision.expired) Expire(id);
  for (uint64_t id : decision.preempted) Preempt(id);
  for (uint64_t id : decision.admitted) Admit(id);
  for (uint64_t id : decision.granted) Grant(id);
  BuildBatch(decision, now);
  if (!batch_.empty()) RunBatch();
  if (const absl::Duration window = clock_->Now() - window_start_; window >= absl::Seconds(1)) {
    tokens_per_second_ = static_cast<int64_t>(static_cast<double>(window_tokens_) / absl::ToDoubleSeconds(window));
    window_tokens_ = 0;
    window_start_ += window;
  }
  return true;
}

void EngineCore::Expire(uint64_t id) {
  const absl::Status expired = absl::DeadlineExceededError("the request's deadline passed");
  if (reservations_.contains(id)) {
    return FinishReservation(id, absl::DeadlineExceededError("no room for the KV before the request's deadline"));
  }
  // Another choice of the same request may have ended it just before.
  if (const auto it = resident_.find(id); it != resident_.end()) return Finish(it->second->request, expired);
  if (const auto it = waiting_.find(id); it != waiting_.end()) return Finish(it->second->request, expired);
}

void EngineCore::Preempt(uint64_t id) {
  auto node = resident_.extract(id);
  if (node.empty()) return;
  Sequence& sequence = *node.mapped();
  sequence.table.Reset();
  sequence.num_computed = 0;
  sequence.num_sealed = 0;
  sequence.sealing = index_ != nullptr;
  if (index_ != nullptr) sequence.cursor = index_->Root(sequence.request->request.tenant);
  ++sequence.request->stats.num_preemptions;
  waiting_.insert(std::move(node));
}

std::optional<kvcache::BlockTable> EngineCore::Allocate(int64_t num_blocks) {
  if (index_ != nullptr && !index_->EnsureFree(num_blocks)) return std::nullopt;
  return pool_->Allocate(num_blocks);
}

void EngineCore::Admit(uint64_t id) {
  const auto it = waiting_.find(id);
  if (it == waiting_.end()) return;
  Sequence& sequence = *it->second;
  kvcache::BlockTable table;
  if (index_ != nullptr) {
    table = index_->Match(sequence.request->request.tenant, sequence.token_ids,
                          (sequence.num_tokens() - 1) / options_.block_size, &sequence.cursor);
  }
  const int hit_blocks = table.size();
  auto rest = Allocate(pool_->BlocksFor(sequence.num_tokens()) - hit_blocks);
  if (!rest) return;  // the plan was too hopeful; it stays the head of the queue
  table.Append(*std::move(rest));
  sequence.table = std::move(table);
  sequence.num_sealed = hit_blocks;
  sequence.num_computed = hit_blocks * options_.block_size;
  sequence.last_step = step_;
  // Of the prompt's first computation; what preemption recomputes is not the client's affair.
  RequestStats& stats = sequence.request->stats;
  if (sequence.num_outputs() == 0 && stats.num_preemptions == 0) stats.cached_tokens = sequence.num_computed;
  const auto resident = resident_.insert(waiting_.extract(it)).position;
  if (sequence.request->mode == Mode::kPrefill) Expose(resident->second.get());
}

void EngineCore::Expose(Sequence* sequence) {
  RequestState& request = *sequence->request;
  if (request.exposed) return;
  request.exposed = true;
  request.sink->OnScheduled(pool_->Lease(sequence->table, sequence->table.size()));
  if (sequence->num_computed > 0) TellComputed(*sequence);
}

void EngineCore::TellComputed(const Sequence& sequence) {
  RequestState& request = *sequence.request;
  const int computed = sequence.num_computed;
  if (pool_->device() == nullptr) return request.sink->OnComputed(computed);
  // Blocks that change no more: whole ones, and with the prompt's end its last.
  const int blocks = computed == sequence.num_tokens() ? sequence.table.size() : computed / options_.block_size;
  kvcache::BlockLease lease = pool_->Lease(sequence.table, blocks);
  MakeReadable(lease);
  AfterCopies([this, key = KeyOf(request), computed, lease = std::move(lease)] {
    if (RequestState* open = Find(key)) open->sink->OnComputed(computed);
  });
}

void EngineCore::Grant(uint64_t id) {
  const auto it = reservations_.find(id);
  if (it == reservations_.end()) return;
  const int64_t num_blocks = it->second.num_blocks;
  kvcache::BlockTable held;  // keeps the prefix from being evicted for the rest
  if (index_ != nullptr) {
    kvcache::PrefixIndex::Cursor end;
    const PrefixQuery& prefix = it->second.prefix;
    held = index_->Match(prefix.tenant, prefix.token_ids, static_cast<int>(num_blocks), &end);
    index_->EnsureFree(num_blocks - held.size());
  }
  auto lease = pool_->AllocateLeaseBehind(held, num_blocks - held.size());
  held.Reset();
  if (lease) FinishReservation(id, *std::move(lease));
}

void EngineCore::BuildBatch(const Decision& decision, absl::Time now) {
  batch_.Clear();
  for (const ScheduledRows& rows : decision.rows) {
    const auto it = resident_.find(rows.id);
    if (it == resident_.end()) continue;
    Sequence& sequence = *it->second;
    if (rows.grow) {
      auto block = Allocate(1);
      if (!block) continue;
      sequence.table.Append(*std::move(block));
    }
    RequestState& request = *sequence.request;
    if (!request.scheduled) {
      request.scheduled = true;
      request.first_scheduled = now;
      request.stats.queue = now - request.submitted;
    }
    sequence.last_step = step_;
    batch_.Add(sequence, std::min(rows.num_rows, sequence.num_tokens() - sequence.num_computed));
  }
}

void EngineCore::RunBatch() {
  const size_t vocab = runner_->vocab_size();
  logits_.resize(batch_.num_logits() * vocab);
  if (kvcache::DeviceBlocks* device = pool_->device(); device != nullptr) {
    for (const kernels::SequenceChunk& chunk : batch_.batch().chunks) device->Write(chunk);
  }
  const absl::Time begin = clock_->Now();
  runner_->Forward(batch_.batch(), pool_->kernel_view(), logits_);
  StepCostModel& cost = batch_.has_prefill() ? prefill_cost_ : cost_;
  const absl::Duration took = clock_->Now() - begin;
  if (batch_.has_prefill() && batch_.has_single_rows()) {
    mixed_excess_.Learn(cost.Fit().Microseconds(batch_.num_rows(), batch_.num_positions()), took);
  }
  cost.Learn(batch_.num_rows(), batch_.num_positions(), took);
  ++num_forwards_;
  // Sampling changes tables and token vectors, so the batch's views are dead from here on; its items are not.
  for (const BatchBuilder::Item& item : batch_.items()) {
    std::span<const float> logits;
    if (item.logit_index >= 0) logits = std::span(logits_).subspan(item.logit_index * vocab, vocab);
    AfterForward(item, took, logits);
  }
}

void EngineCore::AfterForward(const BatchBuilder::Item& item, absl::Duration forward, std::span<const float> logits) {
  const auto it = resident_.find(item.id);
  if (it == resident_.end()) return;  // its request ended with an error in this very step
  Sequence& sequence = *it->second;
  RequestState& request = *sequence.request;
  if (sequence.num_outputs() == 0 || sequence.num_computed + 1 < sequence.num_tokens()) {
    ++request.stats.num_chunks;
  } else if (request.last_decode_step != step_) {
    request.last_decode_step = step_;
    ++request.stats.num_steps;
    request.stats.logits += forward;
  }
  sequence.num_computed += item.num_rows;
  Seal(&sequence);
  if (request.exposed) TellComputed(sequence);
  if (logits.empty()) return;
  if (sequence.stands_for_all) {
    auto node = resident_.extract(it);
    return SampleFirst(std::move(node.mapped()), logits);
  }
  const auto token = SampleNext(sequence, sequence.choice_index, logits);
  if (!token.ok()) return Finish(&request, token.status());
  sequence.AppendOutput(token->token_id);
  if (token->finish_reason == FinishReason::kNone) return;
  if (request.mode == Mode::kDecode && sequence.params().n == 1) OfferHistory(sequence);
  resident_.erase(it);
  if (--request.open_choices == 0) FinishAfterCopies(&request);
}

absl::StatusOr<SampledToken> EngineCore::SampleNext(Sequence& sequence, int choice_index,
                                                    std::span<const float> logits) {
  SampleContext context;
  context.params = &sequence.params();
  context.history = &sequence.history;
  context.eos_token_ids = options_.eos_token_ids;
  context.choice_index = choice_index;
  context.token_index = sequence.num_outputs();
  context.position = sequence.num_tokens();
  const absl::Time begin = clock_->Now();
  if (constraint::TokenConstraint* constraint = sequence.request->request.constraint.get(); constraint != nullptr) {
    if (absl::Status s = constraint->MoveTo(sequence.outputs(), &sequence.place); !s.ok()) return s;
    const auto mask = constraint->Mask(sequence.place);
    if (!mask.ok()) return mask.status();
    context.mask = *mask;
  }
  auto token = sampler_.Sample(logits, context);
  if (!token.ok()) return token;
  sequence.request->stats.sample += clock_->Now() - begin;
  token->finish_reason = CheckStop(sequence.params(), options_.eos_token_ids, token->token_id,
                                   sequence.num_outputs() + 1, sequence.num_tokens() + 1, runner_->max_context());
  ++window_tokens_;
  sequence.request->sink->OnToken(*token);
  return token;
}

void EngineCore::SampleFirst(std::unique_ptr<Sequence> sequence, std::span<const float> logits) {
  RequestState& request = *sequence->request;
  request.stats.prefill = clock_->Now() - request.first_scheduled;
  std::vector<SampledToken> first_tokens;
  for (int choice = 0; choice < sequence->params().n; ++choice) {
    auto token = SampleNext(*sequence, choice, logits);
    if (!token.ok()) {
      sequence.reset();
      return Finish(&request, token.status());
    }
    if (absl::Status other = CheckFirst(request.request, *token); !other.ok()) {
      sequence.reset();
      return Finish(&request, other);
    }
    if (token->finish_reason == FinishReason::kNone && std::ranges::count(request.request.ended_choices, choice) > 0) {
      token->finish_reason = FinishReason::kStop;
    }
    request.open_choices -= token->finish_reason != FinishReason::kNone;
    first_tokens.push_back(*std::move(token));
  }
  if (request.mode == Mode::kComplete) request.sink->OnPrefilled(request.stats);
  if (request.open_choices == 0 || request.mode == Mode::kPrefill) {
    sequence.reset();
    return FinishAfterCopies(&request);
  }
  Fork(std::move(sequence), first_tokens);
}

void EngineCore::Fork(std::unique_ptr<Sequence> sequence, const std::vector<SampledToken>& first_tokens) {
  const int full = sequence->num_computed / options_.block_size;
  const bool partial = sequence->num_computed % options_.block_size != 0;
  const Request& request = sequence->request->request;
  Sequence* first = nullptr;
  std::vector<uint64_t> resumed;
  for (const SampledToken& token : first_tokens) {
    if (token.finish_reason != FinishReason::kNone) continue;
    auto fork = std::make_unique<Sequence>();
    fork->request = sequence->request;
    fork->choice_index = token.choice_index;
    fork->token_ids = sequence->token_ids;
    fork->history = sequence->history;
    fork->AppendOutput(token.token_id);
    if (!request.resume.empty()) {
      const std::vector<int32_t>& known = request.resume[token.choice_index];
      for (size_t i = 1; i < known.size(); ++i) fork->AppendOutput(known[i]);
    }
    fork->last_step = step_;
    bool resident = true;
    if (first == nullptr) {
      fork->table = std::move(sequence->table);
    } else {
      fork->table = first->table.Share(full);
      if (partial) {
        if (index_ != nullptr) index_->EnsureFree(1);
        auto copy = pool_->Clone(first->table.ids()[full]);
        if (copy) {
          fork->table.Append(*std::move(copy));
        } else {
          // No room: this choice waits, and recomputes its prompt when there is some.
          fork->table.Reset();
          resident = false;
        }
      }
    }
    if (resident) {
      fork->num_computed = sequence->num_computed;
      fork->num_sealed = sequence->num_sealed;
      fork->cursor = sequence->cursor;
      fork->sealing = sequence->sealing;
    } else if (index_ != nullptr) {
      fork->cursor = index_->Root(fork->request->request.tenant);
      fork->sealing = true;
    }
    if (first == nullptr) first = fork.get();
    const uint64_t id = fork->id();
    (resident ? resident_ : waiting_).emplace(id, std::move(fork));
    if (resident && !request.resume.empty()) resumed.push_back(id);
  }
  // Their tokens beyond the first have no blocks yet. Last, because the choices before shared the first one's table.
  for (const uint64_t id : resumed) {
    Sequence& fork = *resident_.at(id);
    if (fork.num_tokens() - fork.num_computed > 1 && !GrowToTokens(&fork)) Preempt(id);
  }
}

bool EngineCore::GrowToTokens(Sequence* sequence) {
  const int64_t missing = pool_->BlocksFor(sequence->num_tokens()) - sequence->table.size();
  if (missing <= 0) return true;
  auto blocks = Allocate(missing);
  if (!blocks) return false;
  sequence->table.Append(*std::move(blocks));
  return true;
}

void EngineCore::OfferHistory(const Sequence& sequence) {
  const int full = sequence.num_computed / options_.block_size;
  RequestState& request = *sequence.request;
  if (full <= sequence.prompt_tokens() / options_.block_size || !request.sink->WantsHistory()) return;
  std::vector<int32_t> tokens(sequence.token_ids.begin(), sequence.token_ids.begin() + full * options_.block_size);
  kvcache::BlockLease lease = pool_->Lease(sequence.table, full);
  if (pool_->device() == nullptr) return request.sink->OnHistory(std::move(tokens), std::move(lease));
  MakeReadable(lease);
  AfterCopies([this, key = KeyOf(request), tokens = std::move(tokens), lease = std::move(lease)]() mutable {
    if (RequestState* open = Find(key)) open->sink->OnHistory(std::move(tokens), std::move(lease));
  });
}

void EngineCore::Seal(Sequence* sequence) {
  const int block_size = options_.block_size;
  while (sequence->sealing && (sequence->num_sealed + 1) * block_size <= sequence->num_computed) {
    const auto tokens = std::span(sequence->token_ids).subspan(sequence->num_sealed * block_size, block_size);
    sequence->sealing = index_->Insert(&sequence->cursor, tokens, sequence->table.ids()[sequence->num_sealed]);
    ++sequence->num_sealed;
  }
}

}  // namespace baton::engine
