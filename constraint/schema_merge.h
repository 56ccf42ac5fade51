// Several schemas that must all hold, as one: what allOf and the keywords beside $ref and anyOf mean.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_SCHEMA_MERGE_H_
#define BATON_CONSTRAINT_SCHEMA_MERGE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::constraint {

using Json = nlohmann::ordered_json;

// Says nothing about the value.
bool IsAnnotation(absl::string_view keyword);

// Makes `into` hold what both say. Errors name the keyword. FAILED_PRECONDITION: no value satisfies both. INVALID_ARGUMENT: they
// cannot be put together otherwise. Neither has $ref or allOf.
absl::Status MergeSchemas(const Json& from, Json* into);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_SCHEMA_MERGE_H_
