// Names of members, told apart by the patterns that they match: what patternProperties says.
//
// All patterns run over a name at once, as one automaton with determinism, so for each set of them the names that match these
// and no others are known exactly.
//
// Thread contract: one thread's.
#ifndef BATON_CONSTRAINT_KEY_PATTERNS_H_
#define BATON_CONSTRAINT_KEY_PATTERNS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "constraint/automaton.h"
#include "constraint/grammar.h"

namespace baton::constraint {

class KeyPatterns {
 public:
  using Set = uint32_t;  // bit i: pattern i matches somewhere in the name
  static constexpr size_t kMaxPatterns = 32;

  // The next pattern. INVALID_ARGUMENT: as AddRegex, or one too many.
  absl::Status Add(absl::string_view pattern);
  size_t size() const { return patterns_.size(); }

  // Which match `name` (UTF-8). INVALID_ARGUMENT: one is too ambiguous to say.
  absl::StatusOr<Set> Matching(absl::string_view name);

  // Adds JSON strings, quotes included, other than `names` (UTF-8), behind `from`; returns for each set of patterns that some
  // of them match where these end. Written without escapes, so that no name has a second spelling. The builder keeps an error.
  std::map<Set, State> AddOtherKeys(Builder* builder, State from, const std::vector<std::string>& names);

 private:
  std::vector<std::shared_ptr<const Grammar>> grammars_;
  std::vector<Automaton> patterns_;  // over them
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_KEY_PATTERNS_H_
