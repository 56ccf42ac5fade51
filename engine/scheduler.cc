#include "engine/scheduler.h"

#include <algorithm>

namespace baton::engine {
namespace {

class Planner {
 public:
  Planner(const SchedulerState& state, const SchedulerLimits& limits)
      : state_(state),
        limits_(limits),
        gone_(state.resident.size(), false),
        scheduled_(state.resident.size(), false),
        available_(state.available_blocks),
        budget_(limits.max_batch_tokens) {}

  Decision Plan() {
    Expire();
    PlanDecode();
    if (const int decoding = static_cast<int>(decision_.rows.size()); decoding > 0) {
      budget_ = std::min(budget_, std::max(limits_.max_mixed_tokens - decoding, 1));
    }
    PlanPrefill();
    Admit();
    return std::move(decision_);
  }

 private:
  static int Remaining(const ResidentView& view) { return view.num_tokens - view.num_computed; }

  void Expire() {
    for (size_t i = 0; i < state_.resident.size(); ++i) {
      if (state_.resident[i].deadline > state_.now) continue;
      decision_.expired.push_back(state_.resident[i].id);
      available_ += state_.resident[i].releasable_blocks;
      gone_[i] = true;
    }
    for (const WaitingView& view : state_.waiting) {
      if (view.deadline <= state_.now) decision_.expired.push_back(view.id);
    }
  }

  // Rows that decode may take, so that a prefill under way gets on too.
  int DecodeCap() const {
    int64_t prefill_last_step = -1;
    for (size_t i = 0; i < state_.resident.size(); ++i) {
      if (gone_[i] || Remaining(state_.resident[i]) <= 1) continue;
      prefill_last_step = state_.resident[i].last_step;
      break;
    }
    const int cap = std::min(limits_.max_batch_tokens, limits_.max_sequences);
    if (prefill_last_step < 0) return cap;
    if (cap > 1) return cap - 1;
    return state_.step - prefill_last_step >= 4 ? 0 : cap;
  }

  void PlanDecode() {
    std::vector<size_t> chosen;
    for (size_t i = 0; i < state_.resident.size(); ++i) {
      if (!gone_[i] && Remaining(state_.resident[i]) == 1) chosen.push_back(i);
    }
    const int cap = DecodeCap();
    // When all fit, the oldest is served first. When not, turns are taken, and one that must wait for a block does not
    // use its turn up.
    if (static_cast<int>(chosen.size()) > cap) {
      std::ranges::stable_sort(chosen, {}, [&](size_t i) { return state_.resident[i].last_step; });
    }
    for (size_t i : chosen) {
      if (static_cast<int>(decision_.rows.size()) >= cap) break;
      if (gone_[i]) continue;
      const ResidentView& view = state_.resident[i];
      const bool grow = view.num_computed >= view.num_blocks * limits_.block_size;
      if (grow && !TakeBlock(i)) continue;
      scheduled_[i] = true;
      decision_.rows.push_back({view.id, 1, grow});
      --budget_;
    }
  }

  // One block for resident `i`, preempting younger ones if it must.
  bool TakeBlock(size_t i) {
    for (size_t victim = state_.resident.size(); available_ <= 0 && --victim > i;) {
      if (gone_[victim] || scheduled_[victim] || state_.resident[victim].pinned) continue;
      gone_[victim] = true;
      decision_.preempted.push_back(state_.resident[victim].id);
      available_ += state_.resident[victim].releasable_blocks;
    }
    if (available_ <= 0) return false;
    --available_;
    return true;
  }

  bool RowsLeft() const {
    return budget_ > 0 && static_cast<int>(decision_.rows.size()) < limits_.max_sequences;
  }

  void PlanPrefill() {
    for (size_t i = 0; i < state_.resident.size() && RowsLeft(); ++i) {
      const int remaining = Remaining(state_.resident[i]);
      if (!gone_[i] && remaining > 1) AddChunk(state_.resident[i].id, remaining);
    }
  }

  void AddChunk(uint64_t id, int remaining) {
    const int rows = std::min(remaining, budget_);
    decision_.rows.push_back({id, rows, false});
    budget_ -= rows;
  }

  // Blocks that become unavailable with it: its own, and cached ones that it shares.
  int64_t BlocksTaken(const WaitingView& view, PrefixHit* hit) const {
    if (state_.peek) *hit = state_.peek(view.id);
    return view.num_blocks - hit->blocks + hit->cached_blocks;
  }

  void Admit() {
    if (!decision_.preempted.empty()) return;
    int64_t residents = std::ranges::count(gone_, false);
    for (const WaitingView& view : state_.waiting) {
      if (view.deadline <= state_.now) continue;
      if (view.kind == WaitingView::Kind::kReservation) {
        PrefixHit hit;
        const int64_t taken = BlocksTaken(view, &hit);
        if (taken + residents > available_) break;
        available_ -= taken;
        decision_.granted.push_back(view.id);
        continue;
      }
      if (residents >= limits_.max_sequences || !RowsLeft()) break;
      PrefixHit hit;
      const int64_t taken = BlocksTaken(view, &hit);
      if (taken + residents > available_) break;
      available_ -= taken;
      ++residents;
      decision_.admitted.push_back(view.id);
      AddChunk(view.id, view.num_tokens - hit.blocks * limits_.block_size);
    }
  }

  const SchedulerState& state_;
  const SchedulerLimits& limits_;
  std::vector<bool> gone_;       // [resident] expired or preempted in this step
  std::vector<bool> scheduled_;  // [resident] has its decode row
  int64_t available_;
  int budget_;
  Decision decision_;
};

}  // namespace

Decision Schedule(const SchedulerState& state, const SchedulerLimits& limits) { return Planner(state, limits).Plan(); }

}  // namespace baton::engine
