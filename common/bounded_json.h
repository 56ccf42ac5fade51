// JSON from strangers. The shape is checked before anything is built from it: depth, number of values, members of one
// object (the ordered objects of nlohmann/json look a key up by walking). Order of members is kept, for templates.
//
// Thread contract: plain functions.
#ifndef BATON_COMMON_BOUNDED_JSON_H_
#define BATON_COMMON_BOUNDED_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct JsonLimits {
  int max_depth = 64;
  int64_t max_values = 1'000'000;      // scalars and containers, about
  int64_t max_members = 200'000;       // of all objects together
  int64_t max_object_members = 1'100;  // of one object; a logit_bias may have 1024
};

// INVALID_ARGUMENT: not JSON, not UTF-8, or beyond a limit. The message says where or which, and does not quote the
// text.
absl::StatusOr<nlohmann::ordered_json> ParseBoundedJson(absl::string_view text, const JsonLimits& limits = {});

}  // namespace baton

#endif  // BATON_COMMON_BOUNDED_JSON_H_
