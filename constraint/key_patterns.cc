#include "constraint/key_patterns.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "constraint/regex.h"

namespace baton::constraint {
namespace {

constexpr size_t kMaxKeyStates = 4000;
constexpr int64_t kMaxKeyWork = 3'000'000;  // places of automata that are looked at
constexpr int kNoClass = -1;

using StateId = Automaton::StateId;

absl::Status TooMuch() {
  return absl::InvalidArgumentError(
      "the patterns need too many states together; use fewer or simpler ones, or begin them with ^");
}

template <typename Body>
absl::StatusOr<std::shared_ptr<const Grammar>> GrammarOf(const Body& body) {
  Builder builder;
  const Rule rule = builder.NewRule();
  builder.End(body(&builder, builder.begin(rule)));
  return builder.Finish(ByteSet().set());
}

// Follows several automata over the same bytes; the first says which strings there are at all.
class Product {
 public:
  Product(Builder* builder, std::vector<Automaton*> automata, std::vector<std::shared_ptr<const Grammar>> grammars)
      : builder_(builder), automata_(std::move(automata)) {
    std::map<std::vector<int>, int> known;
    for (int byte = 0; byte < 256; ++byte) {
      std::vector<int> classes;
      for (const auto& grammar : grammars) classes.push_back(grammar->ClassOf(static_cast<uint8_t>(byte)));
      class_of_[static_cast<size_t>(byte)] = kNoClass;
      if (classes[0] == 0) continue;
      const auto [it, inserted] = known.try_emplace(classes, static_cast<int>(samples_.size()));
      if (inserted) samples_.push_back(static_cast<uint8_t>(byte));
      class_of_[static_cast<size_t>(byte)] = it->second;
    }
  }

  // `ended` hears of each state that is reached, and of those of the automata that it stands for.
  template <typename Ended>
  State Run(const Ended& ended) {
    const std::optional<State> begin = StateOf(std::vector<StateId>(automata_.size(), Automaton::kStart));
    for (size_t i = 0; i < queue_.size() && builder_->ok(); ++i) {
      ended(queue_[i]->second, queue_[i]->first);
      Follow(queue_[i]->first, queue_[i]->second);
    }
    return begin.value_or(0);
  }

 private:
  using States = std::map<std::vector<StateId>, State>;

  // nullopt: none; then the builder may have an error.
  std::optional<State> StateOf(const std::vector<StateId>& states) {
    if (states[0] == Automaton::kDead || !builder_->ok()) return std::nullopt;
    const auto [it, inserted] = states_.try_emplace(states, 0);
    if (inserted) {
      if (states_.size() > kMaxKeyStates) builder_->Fail(TooMuch());
      it->second = builder_->NewState();
      queue_.push_back(it);
    }
    return it->second;
  }

  void Follow(const std::vector<StateId>& from, State state) {
    std::vector<std::optional<State>> targets;
    for (const uint8_t sample : samples_) {
      std::vector<StateId> next;
      for (size_t k = 0; k < automata_.size(); ++k) {
        next.push_back(automata_[k]->Next(from[k], sample));
        const size_t places = automata_[k]->num_places(next.back());
        work_ += static_cast<int64_t>(places) + 1;
        if (places > Automaton::kMaxPlaces || work_ > kMaxKeyWork) return builder_->Fail(TooMuch());
      }
      targets.push_back(StateOf(next));
    }
    const auto target = [&](size_t byte) {
      return class_of_[byte] == kNoClass ? std::nullopt : targets[static_cast<size_t>(class_of_[byte])];
    };
    for (size_t byte = 0; byte < 256;) {
      const size_t first = byte;
      const std::optional<State> to = target(first);
      while (byte < 256 && target(byte) == to) ++byte;
      if (to.has_value()) builder_->Bytes(state, static_cast<uint8_t>(first), static_cast<uint8_t>(byte - 1), *to);
    }
  }

  Builder* const builder_;
  const std::vector<Automaton*> automata_;
  std::array<int, 256> class_of_;
  std::vector<uint8_t> samples_;  // a byte of each class
  States states_;
  std::vector<States::const_iterator> queue_;
  int64_t work_ = 0;
};

}  // namespace

absl::Status KeyPatterns::Add(absl::string_view pattern) {
  if (patterns_.size() >= kMaxPatterns) return absl::InvalidArgumentError(absl::StrCat("at most ", kMaxPatterns, " patterns"));
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = GrammarOf(
      [&](Builder* builder, State begin) { return AddRegex(builder, begin, pattern, {.whole = false}); });
  if (!grammar.ok()) return grammar.status();
  grammars_.push_back(*grammar);
  patterns_.emplace_back(*std::move(grammar));
  return absl::OkStatus();
}

absl::StatusOr<KeyPatterns::Set> KeyPatterns::Matching(absl::string_view name) {
  Set set = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    StateId state = Automaton::kStart;
    for (const char byte : name) {
      state = patterns_[i].Next(state, static_cast<uint8_t>(byte));
      if (patterns_[i].num_places(state) > Automaton::kMaxPlaces) return TooMuch();
    }
    if (patterns_[i].MayEnd(state)) set |= Set{1} << i;
  }
  return set;
}

std::map<KeyPatterns::Set, State> KeyPatterns::AddOtherKeys(Builder* builder, State from,
                                                            const std::vector<std::string>& names) {
  std::map<Set, State> ends;
  absl::StatusOr<std::shared_ptr<const Grammar>> any = GrammarOf(
      [](Builder* b, State begin) { return AddRegex(b, begin, R"([^"\\\x00-\x1f]*)"); });
  // Without names, what no such string is.
  absl::StatusOr<std::shared_ptr<const Grammar>> named =
      GrammarOf([&](Builder* b, State begin) { return b->OneOf(begin, names.empty() ? std::vector<std::string>{"\""} : names); });
  if (!any.ok() || !named.ok()) {
    builder->Fail(any.ok() ? named.status() : any.status());
    return ends;
  }
  Automaton string(*any), name(*named);
  std::vector<Automaton*> automata = {&string, &name};
  std::vector<std::shared_ptr<const Grammar>> grammars = {*any, *named};
  for (Automaton& pattern : patterns_) automata.push_back(&pattern);
  grammars.insert(grammars.end(), grammars_.begin(), grammars_.end());

  const State open = builder->Literal(from, "\"");
  Product product(builder, automata, grammars);
  const State begin = product.Run([&](State state, const std::vector<StateId>& of) {
    if (!string.MayEnd(of[0]) || name.MayEnd(of[1])) return;
    Set set = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (patterns_[i].MayEnd(of[i + 2])) set |= Set{1} << i;
    }
    const auto [it, inserted] = ends.try_emplace(set, 0);
    if (inserted) it->second = builder->NewState();
    builder->Bytes(state, '"', '"', it->second);
  });
  builder->Empty(open, begin);
  return ends;
}

}  // namespace baton::constraint
