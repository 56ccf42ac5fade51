// What somebody probably meant. (The settings have the like for their own names, in common/config.h.)
#ifndef BATON_CLI_NEAREST_H_
#define BATON_CLI_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::cli {

// The candidate with the fewest letters changed, added, left out or swapped with their neighbour; "" when even that is
// another word (more than a third of its letters and more than two).
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace baton::cli

#endif  // BATON_CLI_NEAREST_H_
