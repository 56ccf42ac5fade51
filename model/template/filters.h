// The filters, by what they work on. Private to this folder.
#ifndef BATON_MODEL_TEMPLATE_FILTERS_H_
#define BATON_MODEL_TEMPLATE_FILTERS_H_

#include <string>

#include "absl/status/statusor.h"
#include "model/template/interpreter.h"

namespace baton::model::jinja {

struct FilterCall {
  Interpreter& interpreter;
  Budget& budget;
  const std::string& name;
  const Value& operand;
  const CallArgs& args;
};
using Filter = absl::StatusOr<Value> (*)(const FilterCall& call);

// Null if there is none of that name.
Filter FindTextFilter(absl::string_view name);      // text_filters.cc
Filter FindSequenceFilter(absl::string_view name);  // sequence_filters.cc

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_FILTERS_H_
