// The rules of JSON that schemas build on. What is written is a part of JSON that every parser takes: strings of valid
// UTF-8 in which \u names no surrogate, numbers of at most 15 digits on each side of the point and exponents of two, and
// at each place where white space may be at most one space, or one line break with up to 20 spaces or tabs, so that a
// model cannot fill its answer with it.
//
// Thread contract: one thread's.
#ifndef BATON_CONSTRAINT_JSON_GRAMMAR_H_
#define BATON_CONSTRAINT_JSON_GRAMMAR_H_

#include <optional>

#include "constraint/grammar.h"

namespace baton::constraint {

class JsonGrammar {
 public:
  explicit JsonGrammar(Builder* builder) : builder_(builder) {}

  // Each adds one thing behind `from` and returns where it ends.
  State Space(State from);
  State Character(State from);  // one code point of a string, escaped or not
  State String(State from);
  State Number(State from);
  State Integer(State from);
  State Boolean(State from);
  State Value(State from);
  State Object(State from);  // any
  State Array(State from);   // any

 private:
  template <typename Body>
  State CallOnce(std::optional<Rule>* rule, State from, const Body& body);

  Builder* const builder_;
  std::optional<Rule> space_, character_, string_, number_, integer_, value_;
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_JSON_GRAMMAR_H_
