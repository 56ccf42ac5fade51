// Constraints written as they are on the wire, and a small vocabulary to write with.
#ifndef BATON_TESTS_CONSTRAINT_CONSTRAINT_TEST_UTIL_H_
#define BATON_TESTS_CONSTRAINT_CONSTRAINT_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "constraint/compile.h"

namespace baton::constraint {

inline v1::Constraint Schema(const std::string& text) {
  v1::Constraint c;
  c.set_json_schema(text);
  return c;
}
inline v1::Constraint Regex(const std::string& text) {
  v1::Constraint c;
  c.set_regex(text);
  return c;
}
inline v1::Constraint Choice(const std::vector<std::string>& texts) {
  v1::Constraint c;
  for (const std::string& text : texts) c.mutable_choice()->add_texts(text);
  return c;
}
inline v1::Constraint Gbnf(const std::string& text) {
  v1::Constraint c;
  c.set_grammar(text);
  return c;
}
inline v1::Constraint AnyObject() {
  v1::Constraint c;
  c.set_json_object(true);
  return c;
}

inline absl::StatusOr<std::shared_ptr<const Grammar>> Compiled(const v1::Constraint& c) {
  return Compile(c, ByteSet().set());
}

// Whether the whole of `text` satisfies the constraint. Fails the test where it does not compile.
inline bool Accepts(const v1::Constraint& c, const std::string& text) {
  const auto grammar = Compiled(c);
  if (!grammar.ok()) {
    ADD_FAILURE() << grammar.status();
    return false;
  }
  Automaton automaton(*grammar);
  Automaton::StateId state = Automaton::kStart;
  for (const char byte : text) state = automaton.Next(state, static_cast<uint8_t>(byte));
  return state != Automaton::kDead && automaton.MayEnd(state);
}

inline std::string ErrorOf(const v1::Constraint& c) {
  const auto grammar = Compiled(c);
  if (grammar.ok()) return "";
  EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(grammar.status().message());
}

// Single bytes (not all: some models lack a few), pieces of JSON and of text, a special token at 0 and EOS at 1.
inline constexpr int32_t kSpecial = 0;
inline constexpr int32_t kEos = 1;
inline const std::vector<std::string>& TestTokens() {
  static const auto* const kTokens = [] {
    auto* tokens = new std::vector<std::string>{"", ""};
    for (int b = 0; b < 256; ++b) {
      if (b != 0x06 && b < 0xf5) tokens->push_back(std::string(1, static_cast<char>(b)));
    }
    for (const char* piece : {"{\"", "\":", "\": \"", "\",", "\"}", "{}", "[]", "[[", "]]", "}}", "true", "false", "null", " \"", "10", "12",
                              "-1", "0.5", "e", "na", "name", "age", "the", " the", "\n  ", "\\n", "\\u00", "\xc3\xa9", "\xe2\x82\xac",
                              "\xf0\x9f\x98\x80", "\xf0\x9f", "aaaa", ", ", "abc", "</tool>", "\xff\xfe"}) {
      tokens->push_back(piece);
    }
    return tokens;
  }();
  return *kTokens;
}
inline std::shared_ptr<const Vocabulary> TestVocabulary() {
  auto vocabulary = Vocabulary::Create(static_cast<int>(TestTokens().size()),
                                       [](int32_t id) { return absl::string_view(TestTokens()[static_cast<size_t>(id)]); });
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *vocabulary;
}

}  // namespace baton::constraint

#endif  // BATON_TESTS_CONSTRAINT_CONSTRAINT_TEST_UTIL_H_
