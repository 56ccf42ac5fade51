// JSON Schema (the part that docs/API.md lists) as a grammar. Every text of the grammar satisfies the schema; not every
// value that satisfies it can be written: properties come in the schema's order, undeclared ones only where
// patternProperties or additionalProperties say so, and oneOf is read as anyOf.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_JSON_SCHEMA_H_
#define BATON_CONSTRAINT_JSON_SCHEMA_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr size_t kMaxSchemaBytes = 64 << 10;
inline constexpr int kMaxSchemaDepth = 64;

// Adds a rule of the schema's texts and returns it (the builder's first one, if there was none). The builder's error names the
// keyword and its path in the schema (as a JSON pointer).
Rule BuildSchema(Builder* builder, absl::string_view schema);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_JSON_SCHEMA_H_
