// Grammars in GBNF, the notation of llama.cpp's grammars/ (vLLM's guided_grammar takes it too), read generously about line ends:
//
//   root ::= item ("," item)*        # a comment
//   item ::= "text\n" | [a-z_]+ | [^"\x00-\x1F] | . | other{2,3} |
//
// A rule goes on until the next `name ::=`, so alternatives may begin a line. Escapes: \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH
// \UHHHHHHHH. Bounds as of regular expressions; calls of rules nest at most 64 deep, so a long list is written with * or +,
// not as a rule that ends with itself. Not left-recursive.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_GBNF_H_
#define BATON_CONSTRAINT_GBNF_H_

#include "absl/strings/string_view.h"
#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr size_t kMaxGbnfBytes = 64 << 10;
inline constexpr size_t kMaxGbnfRules = 1000;

// Adds a rule for each of the grammar's and returns that of "root" (the builder's first one, if there was none). The builder's
// error has the byte offset.
Rule BuildGbnf(Builder* builder, absl::string_view text);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_GBNF_H_
