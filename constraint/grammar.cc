#include "constraint/grammar.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace baton::constraint {
namespace {

constexpr size_t kEdgesPerState = 8;  // at most, on average

// The largest code point whose UTF-8 has as many bytes as a place of this list says, plus one.
constexpr uint32_t kLast[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};

int Encode(uint32_t c, uint8_t* out) {
  if (c <= 0x7f) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const int n = c <= 0x7ff ? 2 : c <= 0xffff ? 3 : 4;
  for (int i = n - 1; i > 0; --i) {
    out[i] = static_cast<uint8_t>(0x80 | (c & 0x3f));
    c >>= 6;
  }
  constexpr uint8_t kLead[] = {0, 0, 0xc0, 0xe0, 0xf0};
  out[0] = static_cast<uint8_t>(kLead[n] | c);
  return n;
}

}  // namespace

void Builder::Locate(absl::string_view place) {
  if (!ok()) status_ = absl::Status(status_.code(), absl::StrCat(place, ": ", status_.message()));
}

State Builder::NewState() {
  if (!ok()) return 0;
  if (states_.size() >= kMaxGrammarStates) {
    Fail(absl::ResourceExhaustedError(
        absl::StrCat("is too big: it needs more than ", kMaxGrammarStates,
                     " states; use smaller counts of repetition, shorter lengths or fewer alternatives")));
    return 0;
  }
  states_.emplace_back();
  is_end_.push_back(false);
  return static_cast<State>(states_.size() - 1);
}

void Builder::Add(State from, const Edge& edge) {
  if (!ok()) return;
  if (++num_edges_ > kEdgesPerState * kMaxGrammarStates) {
    return Fail(absl::ResourceExhaustedError("is too big: it needs too many transitions between states"));
  }
  states_[from].push_back(edge);
}

State Builder::Literal(State from, absl::string_view text) {
  for (const char c : text) {
    const State next = NewState();
    Bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    from = next;
  }
  return from;
}

State Builder::Call(State from, Rule rule) {
  const State next = NewState();
  Call(from, rule, next);
  return next;
}

Rule Builder::NewRule() {
  begins_.push_back(NewState());
  return static_cast<Rule>(begins_.size() - 1);
}

State Builder::OneOf(State from, const std::vector<std::string>& texts) {
  const State end = NewState();
  std::map<std::pair<State, char>, State> trie;
  for (const std::string& text : texts) {
    State at = from;
    for (const char c : text) {
      const auto [it, inserted] = trie.try_emplace({at, c}, 0);
      if (inserted) {
        it->second = NewState();
        Bytes(at, static_cast<uint8_t>(c), static_cast<uint8_t>(c), it->second);
      }
      if (!ok()) return 0;
      at = it->second;
    }
    Empty(at, end);
  }
  return end;
}

void Builder::ByteSequence(State from, std::span<const std::pair<uint8_t, uint8_t>> ranges, State to) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const State next = i + 1 == ranges.size() ? to : NewState();
    Bytes(from, ranges[i].first, ranges[i].second, next);
    from = next;
  }
}

void Builder::CodePoints(State from, uint32_t low, uint32_t high, State to) {
  if (!ok() || low > high) return;
  if (low <= 0xdfff && high >= 0xd800) {
    if (low < 0xd800) CodePoints(from, low, 0xd7ff, to);
    return CodePoints(from, 0xe000, high, to);
  }
  for (const uint32_t last : kLast) {
    if (low <= last && high > last) {
      CodePoints(from, low, last, to);
      return CodePoints(from, last + 1, high, to);
    }
  }
  if (high <= 0x7f) return Bytes(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to);
  // Split until each byte's range does not depend on the bytes before it.
  for (int i = 1; i < 4; ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      CodePoints(from, low, low | mask, to);
      return CodePoints(from, (low | mask) + 1, high, to);
    }
    if ((high & mask) != mask) {
      CodePoints(from, low, (high & ~mask) - 1, to);
      return CodePoints(from, high & ~mask, high, to);
    }
  }
  uint8_t first[4], second[4];
  const int n = Encode(low, first);
  Encode(high, second);
  std::pair<uint8_t, uint8_t> ranges[4];
  for (int i = 0; i < n; ++i) ranges[i] = {first[i], second[i]};
  ByteSequence(from, std::span(ranges, static_cast<size_t>(n)), to);
}

absl::Status Builder::CheckLeftCalls() const {
  const size_t num_rules = begins_.size();
  std::vector<std::vector<Rule>> calls(num_rules);  // before a byte was taken
  std::vector<bool> nullable(num_rules, false);
  // Rules that take nothing are few (space), so this settles at once.
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule rule = 0; rule < num_rules; ++rule) {
      std::vector<State> open = {begins_[rule]};
      std::vector<State> seen = open;
      calls[rule].clear();
      std::vector<bool> visited;  // only for rules with many states before their first byte
      bool null = false;
      const auto visit = [&](State s) {
        if (visited.empty() && seen.size() > 64) {
          visited.assign(states_.size(), false);
          for (const State old : seen) visited[old] = true;
        }
        if (visited.empty() ? std::ranges::find(seen, s) != seen.end() : visited[s]) return;
        seen.push_back(s);
        if (!visited.empty()) visited[s] = true;
        open.push_back(s);
      };
      while (!open.empty()) {
        const State state = open.back();
        open.pop_back();
        null = null || is_end_[state];
        for (const Edge& edge : states_[state]) {
          if (edge.kind == Edge::Kind::kEmpty) visit(edge.target);
          if (edge.kind != Edge::Kind::kCall) continue;
          calls[rule].push_back(edge.rule);
          if (nullable[edge.rule]) visit(edge.target);
        }
      }
      if (null && !nullable[rule]) nullable[rule] = changed = true;
    }
  }
  // A cycle of such calls never takes a byte. Depth first; 1: open, 2: done.
  std::vector<uint8_t> mark(num_rules, 0);
  for (Rule root = 0; root < num_rules; ++root) {
    if (mark[root] != 0) continue;
    std::vector<std::pair<Rule, size_t>> path = {{root, 0}};
    mark[root] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == calls[rule].size()) {
        mark[rule] = 2;
        path.pop_back();
        continue;
      }
      const Rule called = calls[rule][next++];
      if (mark[called] == 1) {
        return absl::InvalidArgumentError("refers to itself with nothing in between, so that it has no beginning");
      }
      if (mark[called] == 0) {
        mark[called] = 1;
        path.push_back({called, 0});
      }
    }
  }
  return absl::OkStatus();
}

void Builder::FillClasses(const ByteSet& spellable, Grammar* grammar) const {
  std::bitset<257> cuts;
  for (const auto& edges : states_) {
    for (const Edge& edge : edges) {
      if (edge.kind != Edge::Kind::kBytes) continue;
      cuts[edge.low] = true;
      cuts[edge.high + 1] = true;
    }
  }
  int of_range = 0;  // of the range between two cuts; 0: not numbered yet
  for (int byte = 0; byte < 256; ++byte) {
    if (cuts[byte]) of_range = 0;
    if (!spellable[byte]) continue;
    if (of_range == 0 && grammar->num_classes_ < 256) {
      of_range = grammar->num_classes_++;
      grammar->byte_of_[of_range] = static_cast<uint8_t>(byte);
    }
    grammar->class_of_[byte] = static_cast<uint8_t>(of_range);
  }
}

void Builder::FillHeights(Grammar* grammar) const {
  const size_t n = states_.size();
  struct Back {
    State from;
    const Edge* edge;
  };
  std::vector<std::vector<Back>> back(n);
  for (State s = 0; s < n; ++s) {
    for (const Edge& edge : states_[s]) {
      bool usable = edge.kind != Edge::Kind::kBytes;
      for (int b = edge.low; !usable && b <= edge.high; ++b) usable = grammar->class_of_[b] != 0;
      if (usable) back[edge.target].push_back({s, &edge});
    }
  }
  grammar->heights_.assign(n, Grammar::kNever);
  std::vector<std::vector<std::pair<State, State>>> callers(begins_.size());  // of each rule: from, target
  for (State s = 0; s < n; ++s) {
    for (const Edge& edge : states_[s]) {
      if (edge.kind == Edge::Kind::kCall) callers[edge.rule].push_back({s, edge.target});
    }
  }
  std::vector<Rule> reached, reached_now;  // rules whose begin got its height in the level before, and in this one
  std::vector<Rule> rule_at(n, UINT32_MAX);
  for (Rule r = 0; r < begins_.size(); ++r) rule_at[begins_[r]] = r;
  std::vector<State> open;
  const auto set = [&](State s, int level) {
    if (grammar->heights_[s] != Grammar::kNever) return;
    grammar->heights_[s] = static_cast<uint16_t>(level);
    open.push_back(s);
    if (rule_at[s] != UINT32_MAX) reached_now.push_back(rule_at[s]);
  };
  for (int level = 0; level <= kMaxCallDepth; ++level) {
    if (level == 0) {
      for (State s = 0; s < n; ++s) {
        if (is_end_[s]) set(s, 0);
      }
    }
    for (const Rule rule : reached) {
      for (const auto& [from, target] : callers[rule]) {
        if (grammar->heights_[target] != Grammar::kNever) set(from, level);
      }
    }
    while (!open.empty()) {
      const State s = open.back();
      open.pop_back();
      for (const Back& b : back[s]) {
        // A call counts once the rule's own height is below this level.
        if (b.edge->kind == Edge::Kind::kCall && !(grammar->heights_[begins_[b.edge->rule]] < level)) {
          continue;
        }
        set(b.from, level);
      }
    }
    reached.swap(reached_now);
    reached_now.clear();
    if (reached.empty()) break;
  }
}

absl::StatusOr<std::shared_ptr<const Grammar>> Builder::Finish(const ByteSet& spellable) {
  if (!ok()) return status_;
  if (absl::Status s = CheckLeftCalls(); !s.ok()) return s;
  auto grammar = std::make_shared<Grammar>();
  FillClasses(spellable, grammar.get());
  FillHeights(grammar.get());
  if (grammar->heights_[begins_[0]] == Grammar::kNever) {
    return absl::InvalidArgumentError(
        absl::StrCat("no text satisfies it that this model can write within ", kMaxCallDepth,
                     " levels of nesting; a recursive schema needs a case that does not recurse"));
  }
  grammar->begins_ = begins_;
  grammar->is_end_ = is_end_;
  grammar->first_edge_.reserve(states_.size() + 1);
  grammar->edges_.reserve(num_edges_);
  for (const auto& edges : states_) {
    grammar->first_edge_.push_back(static_cast<uint32_t>(grammar->edges_.size()));
    grammar->edges_.insert(grammar->edges_.end(), edges.begin(), edges.end());
    grammar->has_bytes_.push_back(
        std::ranges::any_of(edges, [](const Edge& e) { return e.kind == Edge::Kind::kBytes; }));
  }
  grammar->first_edge_.push_back(static_cast<uint32_t>(grammar->edges_.size()));
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

}  // namespace baton::constraint
