// Names of members other than given ones.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_KEY_COMPLEMENT_H_
#define BATON_CONSTRAINT_KEY_COMPLEMENT_H_

#include <string>
#include <vector>

#include "constraint/grammar.h"

namespace baton::constraint {

// Adds a JSON string, quotes included, that is none of `names` (UTF-8), behind `from`; returns where it ends. Written
// without escapes, so that no name has a second spelling.
State AddOtherKey(Builder* builder, State from, const std::vector<std::string>& names);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_KEY_COMPLEMENT_H_
