#include "constraint/json_grammar.h"

#include "constraint/regex.h"

namespace baton::constraint {

template <typename Body>
State JsonGrammar::CallOnce(std::optional<Rule>* rule, State from, const Body& body) {
  if (!rule->has_value()) {
    *rule = builder_->NewRule();
    builder_->End(body(builder_->begin(**rule)));
  }
  return builder_->Call(from, **rule);
}

State JsonGrammar::Space(State from) {
  return CallOnce(&space_, from, [&](State begin) { return AddRegex(builder_, begin, "( |\\n[ \\t]{0,20})?"); });
}

State JsonGrammar::Character(State from) {
  return CallOnce(&character_, from, [&](State begin) {
    return AddRegex(builder_, begin,
                    R"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))");
  });
}

State JsonGrammar::String(State from) {
  return CallOnce(&string_, from, [&](State begin) {
    const State loop = builder_->Literal(begin, "\"");
    builder_->Empty(Character(loop), loop);
    return builder_->Literal(loop, "\"");
  });
}

State JsonGrammar::Number(State from) {
  return CallOnce(&number_, from, [&](State begin) {
    return AddRegex(builder_, begin, R"(-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?)");
  });
}

State JsonGrammar::Integer(State from) {
  return CallOnce(&integer_, from, [&](State begin) { return AddRegex(builder_, begin, "-?(0|[1-9][0-9]{0,14})"); });
}

State JsonGrammar::Boolean(State from) { return builder_->OneOf(from, {"true", "false"}); }

State JsonGrammar::Value(State from) {
  return CallOnce(&value_, from, [&](State begin) {
    const State end = builder_->OneOf(begin, {"true", "false", "null"});
    builder_->Empty(String(begin), end);
    builder_->Empty(Number(begin), end);
    builder_->Empty(Object(begin), end);
    builder_->Empty(Array(begin), end);
    return end;
  });
}

State JsonGrammar::Object(State from) {
  const State end = builder_->NewState();
  const State open = Space(builder_->Literal(from, "{"));
  builder_->Empty(builder_->Literal(open, "}"), end);
  const State member = builder_->NewState();
  builder_->Empty(open, member);
  const State after = Value(Space(builder_->Literal(String(member), ":")));
  builder_->Empty(Space(builder_->Literal(after, ",")), member);
  builder_->Empty(builder_->Literal(Space(after), "}"), end);
  return end;
}

State JsonGrammar::Array(State from) {
  const State end = builder_->NewState();
  const State open = Space(builder_->Literal(from, "["));
  builder_->Empty(builder_->Literal(open, "]"), end);
  const State item = builder_->NewState();
  builder_->Empty(open, item);
  const State after = Value(item);
  builder_->Empty(Space(builder_->Literal(after, ",")), item);
  builder_->Empty(builder_->Literal(Space(after), "]"), end);
  return end;
}

}  // namespace baton::constraint
