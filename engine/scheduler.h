// What runs in the next step: continuous batching with chunked prefill. Pure: a state and a time in, a decision out.
//
// Rules, in this order:
//  1. Work whose deadline has passed ends.
//  2. Decode rows first, one for each sequence that lacks only its newest token; when they do not all fit, the least
//     recently run first. While a prefill is under way one row is left to it (when a step has only one, every fourth
//     step), so that neither kind starves the other.
//  3. A sequence that needs a block and finds none takes it from the youngest sequence younger than itself, which is
//     preempted (it recomputes later, exactly), unless its blocks are pinned: a pinned one needs none and ends by
//     itself. The youngest itself waits, keeping its blocks. So the oldest always moves, and by induction all do.
//  4. Prefill chunks, oldest first, up to the budget, which is max_mixed_tokens in a step that has decode rows: whoever
//     decodes waits for the whole step.
//  5. Admission, strictly first come, first served over sequences and reservations alike: nobody overtakes the head, so
//     a large request or reservation gets its room as the others end. A sequence is admitted with the blocks of all its
//     known tokens at once, and only if every resident sequence could still grow by one block. Nothing is admitted in a
//     step that preempted.
//
// Ids are ages: a smaller id came earlier. Blocks held by leases are nobody's here: they come back by themselves, and
// `available_blocks` says so when they have.
#ifndef BATON_ENGINE_SCHEDULER_H_
#define BATON_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"

namespace baton::engine {

struct SchedulerLimits {
  int max_batch_tokens = 512;  // rows of one step, >= 1
  int max_sequences = 64;      // sequences of one step and, but for choices and imports, resident at all; >= 1
  int block_size = 16;
  int max_mixed_tokens = INT32_MAX;  // rows of one step that has decode rows; those all get in, and one prefill row
};

// A sequence that holds blocks.
struct ResidentView {
  uint64_t id = 0;
  int num_tokens = 0;         // known: prompt and output
  int num_computed = 0;       // of those, KV in the blocks; < num_tokens
  int num_blocks = 0;
  int releasable_blocks = 0;  // would become available if it were preempted
  int64_t last_step = 0;      // it last ran in
  absl::Time deadline = absl::InfiniteFuture();
  bool pinned = false;  // others read its blocks as they are written: never preempted
};

struct WaitingView {
  enum class Kind { kSequence, kReservation };
  uint64_t id = 0;
  Kind kind = Kind::kSequence;
  int num_tokens = 0;
  int64_t num_blocks = 0;  // for all of num_tokens
  absl::Time deadline = absl::InfiniteFuture();
};

// The prefix that the index already holds for a waiting sequence or reservation.
struct PrefixHit {
  int blocks = 0;
  int cached_blocks = 0;  // of those, counted in available_blocks
};

struct SchedulerState {
  absl::Time now;
  int64_t step = 0;
  int64_t available_blocks = 0;            // free, or given up by the prefix index on demand
  std::span<const ResidentView> resident;  // ascending id
  std::span<const WaitingView> waiting;    // ascending id
  std::function<PrefixHit(uint64_t id)> peek;  // asked only of those that might be admitted; null: no prefix cache
};

struct ScheduledRows {
  uint64_t id = 0;
  int num_rows = 0;
  bool grow = false;  // allocate one block first
};

struct Decision {
  std::vector<uint64_t> expired;    // resident or waiting
  std::vector<uint64_t> preempted;  // resident, now to wait
  std::vector<uint64_t> admitted;   // waiting sequences, now resident
  std::vector<uint64_t> granted;    // waiting reservations
  std::vector<ScheduledRows> rows;  // of resident and admitted sequences
  bool empty() const {
    return expired.empty() && preempted.empty() && admitted.empty() && granted.empty() && rows.empty();
  }
};

Decision Schedule(const SchedulerState& state, const SchedulerLimits& limits);

}  // namespace baton::engine

#endif  // BATON_ENGINE_SCHEDULER_H_
