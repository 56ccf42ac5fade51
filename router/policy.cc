#include "router/policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

// Costs within this of the least are taken as equal: the fit's own noise is of this size.
constexpr double kNearRatio = 1.15;
constexpr double kNearUs = 300;
constexpr uint64_t kStepsAhead = 64;  // of decode that weigh against the hand-over
constexpr size_t kShown = 4;
// Of a worker that has not told its cost: only comparisons between such workers mean something.
constexpr double kUnknownRowUs = 1000;
constexpr uint32_t kUnknownBatch = 512;
constexpr uint64_t kFewSamples = 64;  // steps of a worker, below which others' are looked at too
constexpr double kQueueContext = 256;  // positions that a token ahead attends to, taken as a mean

struct Scored {
  size_t index = 0;
  bool avoided = false;
  double us = 0;
  uint32_t load = 0;
  uint64_t cached = 0;
};

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Counts {
  int draining = 0, lost = 0, suspect = 0, warming = 0;
  bool too_small = false, full = false;
};

absl::Status NoWorker(Role role, const Counts& counts, const PlacementNeed& need) {
  if (counts.full) {
    return absl::ResourceExhaustedError(
        absl::StrCat("every ready ", Name(role), " worker is full",
                     role == Role::kDecode ? " (KV blocks for prompt and expected output, or a place in a step)" : " (tokens ahead)",
                     "; try again, or start another"));
  }
  if (counts.too_small) {
    return absl::FailedPreconditionError(absl::StrCat("no ready ", Name(role), " worker takes ", need.total_tokens,
                                                      " tokens; start one with a larger --max-context"));
  }
  return absl::UnavailableError(absl::StrCat(
      "no ", Name(role), " worker is ready (", counts.draining, " draining, ", counts.lost, " lost",
      counts.suspect > 0 ? absl::StrCat(", ", counts.suspect, " not answering") : std::string(),
      counts.warming > 0 ? absl::StrCat(", ", counts.warming, " warming up") : std::string(), "); start one with `",
      Name(role), "_worker --router HOST:PORT`, or a whole cluster with `baton up`"));
}

// Ready workers that may take it.
std::vector<Scored> Eligible(std::span<const WorkerSnapshot> workers, Role role, const PlacementNeed& need,
                             Counts* counts) {
  std::vector<Scored> out;
  out.reserve(workers.size());
  bool any_fresh = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerSnapshot& w = workers[i];
    if (w.role != role) continue;
    counts->draining += w.state == WorkerState::kDraining;
    counts->lost += w.state == WorkerState::kLost;
    counts->warming += w.state == WorkerState::kWarming;
    if (w.state != WorkerState::kReady) continue;
    counts->suspect += w.suspect;
    if (w.suspect) continue;
    const bool avoided = !need.avoid.empty() && need.avoid.count(w.id) > 0;
    if (avoided && need.only_others) continue;
    if (w.max_context < need.total_tokens) {
      counts->too_small = true;
      continue;
    }
    any_fresh |= !avoided;
    out.push_back({i, avoided});
  }
  if (any_fresh) std::erase_if(out, [](const Scored& s) { return s.avoided; });
  return out;
}

// Leaves `sample` of them, drawn by the seed, and the deepest holder of the prefix.
void Sample(std::vector<Scored>* eligible, int sample, uint64_t seed) {
  if (sample <= 0 || eligible->size() <= static_cast<size_t>(sample)) return;
  const auto best = std::max_element(eligible->begin(), eligible->end(),
                                     [](const Scored& a, const Scored& b) { return a.cached < b.cached; });
  std::iter_swap(eligible->begin(), best);
  const size_t first = eligible->front().cached > 0 ? 1 : 0;
  for (size_t i = first; i < first + static_cast<size_t>(sample) && i < eligible->size(); ++i) {
    std::swap((*eligible)[i], (*eligible)[i + Mix(seed + i) % (eligible->size() - i)]);
  }
  eligible->resize(std::min(eligible->size(), first + static_cast<size_t>(sample)));
}

// Puts the chosen one first and the next ones by cost behind it; at most kShown are kept.
void Decide(std::vector<Scored>* scored, PlacementRule rule, uint64_t seed) {
  if (rule == PlacementRule::kRoundRobin || rule == PlacementRule::kRandom) {
    const uint64_t draw = rule == PlacementRule::kRandom ? Mix(seed) : seed;
    std::iter_swap(scored->begin(), scored->begin() + static_cast<ptrdiff_t>(draw % scored->size()));
    scored->resize(1);
    return;
  }
  const auto by_us = [](const Scored& a, const Scored& b) { return a.us != b.us ? a.us < b.us : a.index < b.index; };
  double least = scored->front().us;
  for (const Scored& s : *scored) least = std::min(least, s.us);
  const double near = rule == PlacementRule::kCost ? least * kNearRatio + kNearUs : least;
  uint32_t lightest = UINT32_MAX;
  for (const Scored& s : *scored) {
    if (s.us <= near) lightest = std::min(lightest, s.load);
  }
  const auto equal = [&](const Scored& s) { return s.us <= near && s.load == lightest; };
  uint64_t turn = seed % static_cast<uint64_t>(std::count_if(scored->begin(), scored->end(), equal));
  for (size_t i = 0; i < scored->size(); ++i) {
    if (!equal((*scored)[i]) || turn-- > 0) continue;
    std::swap((*scored)[0], (*scored)[i]);
    break;
  }
  const size_t shown = std::min(scored->size(), kShown);
  std::partial_sort(scored->begin() + 1, scored->begin() + static_cast<ptrdiff_t>(shown), scored->end(), by_us);
  scored->resize(shown);
}

// Orders by the rule; `describe` says of each candidate why.
template <typename Describe>
Choice Decided(std::span<const WorkerSnapshot> workers, std::vector<Scored>* eligible, PlacementRule rule, uint64_t seed,
               const Describe& describe) {
  Choice choice;
  choice.considered = static_cast<uint32_t>(eligible->size());
  Decide(eligible, rule, seed);
  choice.worker = eligible->front().index;
  for (const Scored& s : *eligible) {
    Candidate& candidate = choice.candidates.emplace_back();
    candidate.id = workers[s.index].id;
    describe(s, workers[s.index], candidate);
  }
  return choice;
}

double PrefillUsAt(const StepCost& cost, const WorkerSnapshot& w, uint64_t queue, uint64_t cached, uint64_t tokens) {
  const double own = static_cast<double>(tokens), ahead = static_cast<double>(queue);
  if (cost.samples == 0) return (own + ahead) * kUnknownRowUs;
  const double batch = w.max_batch_tokens > 0 ? w.max_batch_tokens : kUnknownBatch;
  const double steps = static_cast<double>(static_cast<uint64_t>((own + ahead) / batch)) + 1;
  // Token i of the prompt attends to i + 1 positions.
  const double positions = own * (static_cast<double>(cached) + (own + 1) / 2) + ahead * kQueueContext;
  return cost.fixed_us * steps + cost.per_row_us * (own + ahead) + cost.per_position_us * positions;
}

double StepUsAt(const StepCost& cost, const WorkerSnapshot& w, uint32_t more, uint64_t tokens) {
  const double rows = static_cast<double>(w.sequences) + more;
  if (cost.samples == 0) return rows * kUnknownRowUs;
  const double positions = static_cast<double>(w.context_tokens) + static_cast<double>(more) * tokens;
  const double step = cost.fixed_us + cost.per_row_us * rows + cost.per_position_us * positions;
  // More sequences than a step takes share the steps.
  const double turns = w.max_sequences > 0 ? std::max(1.0, rows / w.max_sequences) : 1.0;
  return step * turns;
}

// What a worker that has not told its cost is taken to take: the mean of those that have.
class MeanCost {
 public:
  void Add(const StepCost& cost) {
    if (cost.samples == 0) return;
    sum_.fixed_us += cost.fixed_us;
    sum_.per_row_us += cost.per_row_us;
    sum_.per_position_us += cost.per_position_us;
    ++sum_.samples;
  }
  StepCost Get() const {
    if (sum_.samples == 0) return {};
    const double n = static_cast<double>(sum_.samples);
    return {sum_.fixed_us / n, sum_.per_row_us / n, sum_.per_position_us / n, sum_.samples};
  }

 private:
  StepCost sum_;
};

const StepCost& OfPrefill(const WorkerSnapshot& w) { return w.prefill_cost.samples > 0 ? w.prefill_cost : w.cost; }

// Of those that have made more than a few steps, and some of them lately, if there are any.
StepCost TypicalCost(std::span<const WorkerSnapshot> workers, const std::vector<Scored>& eligible, Role role) {
  MeanCost all, known;
  for (const Scored& s : eligible) {
    const StepCost& cost = role == Role::kPrefill ? OfPrefill(workers[s.index]) : workers[s.index].cost;
    all.Add(cost);
    if (cost.samples >= kFewSamples && !workers[s.index].cost_aged) known.Add(cost);
  }
  const StepCost typical = known.Get();
  return typical.samples > 0 ? typical : all.Get();
}

// `us` of the worker's own cost; of the typical one where that is unknown, or is less and the worker has made few steps or none
// lately: its first ones, on cold memory, are slow, so are those beside a passing neighbour, and a worker that is taken for slow
// gets no others to show better.
template <typename Us>
double Believed(const WorkerSnapshot& w, const StepCost& own, const StepCost& typical, const Us& us) {
  if (own.samples == 0) return us(typical);
  return own.samples < kFewSamples || w.cost_aged ? std::min(us(own), us(typical)) : us(own);
}

uint64_t CachedTokens(const WorkerSnapshot& w, const PlacementNeed& need, std::span<const uint16_t> depth) {
  const uint64_t held = w.slot < depth.size() ? uint64_t{depth[w.slot]} * w.block_size : 0;
  return std::min(held, need.prompt_tokens - std::min<uint64_t>(need.prompt_tokens, 1));  // one is computed anyway
}

// Prompt tokens that wait on a decode worker. The newest token of each sequence is not among them.
uint64_t LocalQueue(const WorkerSnapshot& w) { return w.pending_tokens - std::min<uint64_t>(w.pending_tokens, w.sequences); }

// Rows of a step beside those that decode.
double ChunkRows(const WorkerSnapshot& w) {
  const uint64_t batch = w.max_batch_tokens > 0 ? w.max_batch_tokens : kUnknownBatch;
  if (w.sequences == 0) return static_cast<double>(batch);
  const uint64_t mixed = w.mixed_batch_tokens > 0 ? w.mixed_batch_tokens : batch;
  return static_cast<double>(std::max<uint64_t>(mixed, w.sequences + 1) - w.sequences);
}

uint64_t FreeBlocks(const WorkerSnapshot& w) {
  const uint64_t unpromised = w.total_blocks - std::min(w.total_blocks, w.promised_blocks);
  return std::min(w.free_blocks, unpromised);
}

// Sequences that the worker may have: those of a step, and some that are on their way, so that a place which falls free is taken
// at once. Beyond, a request would wait there, out of reach of admission, which orders, forecasts and refuses.
uint64_t Places(const WorkerSnapshot& w) { return uint64_t{w.max_sequences} + std::max<uint32_t>(1, w.max_sequences / 8); }

// Takes out decode workers without room. True when there were any.
bool DropFull(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, std::vector<Scored>* eligible) {
  return std::erase_if(*eligible, [&](const Scored& s) {
           const WorkerSnapshot& w = workers[s.index];
           // An idle worker takes what it can hold at all: then its own queue and preemption decide.
           if (w.in_flight == 0) return false;
           return (w.total_blocks > 0 && FreeBlocks(w) < need.Blocks(w.block_size)) ||
                  (w.max_sequences > 0 &&
                   uint64_t{std::max(w.sequences, w.promised_sequences)} + need.choices > Places(w));
         }) > 0;
}

}  // namespace

PlacementRule PlacementRuleFrom(absl::string_view name) {
  for (const PlacementRule rule : {PlacementRule::kRoundRobin, PlacementRule::kRandom, PlacementRule::kLeastLoaded}) {
    if (name == Name(rule)) return rule;
  }
  return PlacementRule::kCost;
}

absl::string_view Name(PlacementRule rule) {
  switch (rule) {
    case PlacementRule::kCost:
      return "cost";
    case PlacementRule::kRoundRobin:
      return "round_robin";
    case PlacementRule::kRandom:
      return "random";
    case PlacementRule::kLeastLoaded:
      return "least_loaded";
  }
  return "cost";
}

uint64_t PlacementNeed::Blocks(uint32_t block_size) const {
  const uint64_t size = std::max<uint32_t>(block_size, 1);
  // The prompt is shared by the choices, but for the partly filled block.
  return prompt_tokens / size + (output_tokens / size + 1) * std::max<uint32_t>(choices, 1);
}

double PrefillUs(const WorkerSnapshot& w, uint64_t queue, uint64_t cached, uint64_t tokens) {
  return PrefillUsAt(OfPrefill(w), w, queue, cached, tokens);
}

double StepUs(const WorkerSnapshot& w, uint32_t more, uint64_t tokens) {
  return StepUsAt(w.cost.samples > 0 ? w.cost : w.prefill_cost, w, more, tokens);
}

double FinishedPerSecond(const WorkerSnapshot& w, const PlacementNeed& need) {
  if (w.cost.samples == 0 || need.output_tokens == 0) return 0;
  uint64_t requests = w.total_blocks / std::max<uint64_t>(need.Blocks(w.block_size), 1);
  if (w.max_sequences > 0) requests = std::min<uint64_t>(requests, w.max_sequences / std::max<uint32_t>(need.choices, 1));
  requests = std::max<uint64_t>(requests, 1);
  WorkerSnapshot full = w;
  full.sequences = 0;
  full.context_tokens = 0;
  const double step = StepUsAt(w.cost, full, static_cast<uint32_t>(requests) * need.choices,
                               need.prompt_tokens + need.output_tokens / 2);
  return static_cast<double>(requests) * 1e6 / (step * static_cast<double>(need.output_tokens));
}

double LocalPrefillUs(const WorkerSnapshot& w, const StepCost& cost, uint64_t cached, uint64_t tokens) {
  const uint64_t queue = LocalQueue(w);
  if (w.sequences == 0 || cost.samples == 0) return PrefillUsAt(cost, w, queue, cached, tokens);
  const double own = static_cast<double>(tokens), ahead = static_cast<double>(queue);
  const double steps = std::ceil((own + ahead) / ChunkRows(w));
  const double positions = own * (static_cast<double>(cached) + (own + 1) / 2) + ahead * kQueueContext;
  const double decoding = cost.per_row_us * w.sequences + cost.per_position_us * static_cast<double>(w.context_tokens);
  return steps * (cost.fixed_us + decoding) + cost.per_row_us * (own + ahead) + cost.per_position_us * positions;
}

double MixedStepUs(const WorkerSnapshot& w, const StepCost& cost, uint64_t tokens) {
  const double rows = std::min(ChunkRows(w), static_cast<double>(tokens));
  const double positions = static_cast<double>(w.context_tokens) + rows * static_cast<double>(tokens) / 2;
  return cost.fixed_us + cost.per_row_us * (rows + w.sequences) + cost.per_position_us * positions;
}

StepCost PrefillCostOf(std::span<const WorkerSnapshot> workers, const WorkerSnapshot& worker) {
  const StepCost& own = worker.prefill_cost;
  if (own.samples >= kFewSamples) return own;
  MeanCost mean;
  for (const WorkerSnapshot& w : workers) {
    if (w.state == WorkerState::kLost || w.id == worker.id) continue;
    mean.Add(w.role == Role::kPrefill ? OfPrefill(w) : w.prefill_cost);
  }
  const StepCost others = mean.Get();
  if (own.samples == 0 || others.samples == 0) return own.samples == 0 ? others : own;
  return LocalPrefillUs(worker, own, 0, kUnknownBatch) <= LocalPrefillUs(worker, others, 0, kUnknownBatch) ? own : others;
}

double LeastTtftUs(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, std::span<const uint16_t> depth,
                   bool remote, bool local) {
  double least = 0;
  for (const WorkerSnapshot& w : workers) {
    if (w.state != WorkerState::kReady || !(w.role == Role::kPrefill ? remote : local)) continue;
    const StepCost cost = w.role == Role::kPrefill ? OfPrefill(w) : PrefillCostOf(workers, w);
    // A decode worker that has computed few prompts has others' cost here, if there is one.
    if (cost.samples == 0 || w.cost_aged || (w.role == Role::kPrefill && cost.samples < kFewSamples)) return 0;
    const uint64_t cached = CachedTokens(w, need, depth);
    const double us = PrefillUsAt(cost, w, 0, cached, need.prompt_tokens - cached);
    if (least == 0 || us < least) least = us;
  }
  return least;
}

absl::StatusOr<Choice> PickPrefill(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                   std::span<const uint16_t> depth, const PolicyOptions& options, uint64_t seed) {
  Counts counts;
  std::vector<Scored> eligible = Eligible(workers, Role::kPrefill, need, &counts);
  if (options.check_room && options.max_backlog_tokens > 0) {
    counts.full |= std::erase_if(eligible, [&](const Scored& s) {
                     return workers[s.index].pending_tokens >= options.max_backlog_tokens;
                   }) > 0;
  }
  if (eligible.empty()) return NoWorker(Role::kPrefill, counts, need);
  for (Scored& s : eligible) {
    const WorkerSnapshot& w = workers[s.index];
    s.cached = CachedTokens(w, need, depth);
  }
  const StepCost typical = TypicalCost(workers, eligible, Role::kPrefill);
  const auto predict = [&](const Scored& s) {
    const WorkerSnapshot& w = workers[s.index];
    return Believed(w, OfPrefill(w), typical, [&](const StepCost& cost) {
      return PrefillUsAt(cost, w, w.pending_tokens, s.cached, need.prompt_tokens - s.cached);
    });
  };
  Sample(&eligible, options.sample, seed);
  for (Scored& s : eligible) {
    const WorkerSnapshot& w = workers[s.index];
    s.us = options.rule == PlacementRule::kCost ? predict(s) : static_cast<double>(w.pending_tokens);
    s.load = w.in_flight;
  }
  return Decided(workers, &eligible, options.rule, seed, [&](const Scored& s, const WorkerSnapshot& w, Candidate& c) {
    c.predicted_us = c.ttft_us = predict(s);
    c.queue_tokens = w.pending_tokens;
    c.cached_tokens = s.cached;
    c.measured = OfPrefill(w).samples > 0;
  });
}

absl::StatusOr<Choice> PickDecode(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                  const std::function<double(const WorkerSnapshot&)>& transfer_us,
                                  const PolicyOptions& options, uint64_t seed) {
  Counts counts;
  std::vector<Scored> eligible = Eligible(workers, Role::kDecode, need, &counts);
  if (options.check_room) counts.full |= DropFull(workers, need, &eligible);
  if (eligible.empty()) return NoWorker(Role::kDecode, counts, need);
  const StepCost typical = TypicalCost(workers, eligible, Role::kDecode);
  Sample(&eligible, options.sample, Mix(seed));
  const uint64_t steps = std::clamp<uint64_t>(need.output_tokens, 1, kStepsAhead);
  const auto cost = [&](const WorkerSnapshot& w) {
    return Believed(w, w.cost, typical,
                    [&](const StepCost& cost) {
                      return StepUsAt(cost, w, need.choices, need.prompt_tokens + need.output_tokens / 2);
                    }) *
           static_cast<double>(steps);
  };
  if (transfer_us) {
    bool any_good = false;
    for (Scored& s : eligible) {
      s.us = transfer_us(workers[s.index]);
      any_good |= s.us >= 0;
    }
    if (any_good) std::erase_if(eligible, [](const Scored& s) { return s.us < 0; });
  }
  for (Scored& s : eligible) {
    const WorkerSnapshot& w = workers[s.index];
    s.us = options.rule == PlacementRule::kCost ? std::max(s.us, 0.0) + cost(w) : static_cast<double>(w.sequences);
    s.load = w.in_flight;
  }
  return Decided(workers, &eligible, options.rule, seed, [&](const Scored& s, const WorkerSnapshot& w, Candidate& c) {
    c.predicted_us = options.rule == PlacementRule::kCost ? s.us : cost(w);
    c.sequences = w.sequences;
    c.free_blocks = FreeBlocks(w);
    c.measured = w.cost.samples > 0;
  });
}

absl::StatusOr<Choice> PickLocal(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                 std::span<const uint16_t> depth, const PolicyOptions& options, uint64_t seed) {
  Counts counts;
  std::vector<Scored> eligible = Eligible(workers, Role::kDecode, need, &counts);
  if (options.check_room) {
    counts.full |= DropFull(workers, need, &eligible);
    if (options.max_backlog_tokens > 0) {
      counts.full |= std::erase_if(eligible, [&](const Scored& s) {
                       return LocalQueue(workers[s.index]) >= options.max_backlog_tokens;
                     }) > 0;
    }
  }
  if (eligible.empty()) return NoWorker(Role::kDecode, counts, need);
  for (Scored& s : eligible) s.cached = CachedTokens(workers[s.index], need, depth);
  const auto to_first = [&](const Scored& s) {
    const WorkerSnapshot& w = workers[s.index];
    return LocalPrefillUs(w, PrefillCostOf(workers, w), s.cached, need.prompt_tokens - s.cached);
  };
  const double steps = static_cast<double>(std::min<uint64_t>(need.output_tokens, kStepsAhead));
  const auto predict = [&](const Scored& s) {
    return to_first(s) +
           steps * StepUs(workers[s.index], need.choices, need.prompt_tokens + need.output_tokens / 2);
  };
  Sample(&eligible, options.sample, seed);
  for (Scored& s : eligible) {
    const WorkerSnapshot& w = workers[s.index];
    s.us = options.rule == PlacementRule::kCost ? predict(s) : static_cast<double>(w.pending_tokens + w.sequences);
    s.load = w.in_flight;
  }
  return Decided(workers, &eligible, options.rule, seed, [&](const Scored& s, const WorkerSnapshot& w, Candidate& c) {
    c.predicted_us = predict(s);
    c.ttft_us = to_first(s);
    c.queue_tokens = LocalQueue(w);
    c.cached_tokens = s.cached;
    c.sequences = w.sequences;
    c.free_blocks = FreeBlocks(w);
    c.measured = PrefillCostOf(workers, w).samples > 0;
  });
}

}  // namespace baton::router
