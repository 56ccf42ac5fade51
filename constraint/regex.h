// Regular expressions, as a subset of RE2's syntax that has no surprises left:
//
//   x  \n \t \r \f \v \xHH \x{H..} \uHHHH  \. and other escaped punctuation   one code point
//   .  [a-z_]  [^"]  \d \w \s \D \W \S (ASCII, also inside of classes)         one code point of a set; . is not \n
//   xy  x|y  (x)  (?:x)  (?P<name>x)  (?<name>x)
//   x* x+ x? x{n} x{n,} x{n,m}, each also with ? behind it (which changes nothing of what matches); n, m <= 1000
//   ^ at the beginning and $ at the end of an alternative of the whole
//
// Everything else (assertions, \b, back references, flags, \p{..}, POSIX classes) is refused by name. Works on code
// points: what is written is always UTF-8.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_REGEX_H_
#define BATON_CONSTRAINT_REGEX_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr size_t kMaxRegexBytes = 8 << 10;

struct RegexOptions {
  bool whole = true;  // false: somewhere in the text, unless ^ or $ say where
  bool json = false;  // written inside of a JSON string: quotes, backslashes and control characters are escaped
};

// Adds what `regex` matches behind `from` and returns where it ends. An error is also the builder's: INVALID_ARGUMENT with
// the byte offset.
State AddRegex(Builder* builder, State from, absl::string_view regex, const RegexOptions& options = {});

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_REGEX_H_
