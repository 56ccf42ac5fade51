// Private to this folder: early return on error.
#ifndef BATON_MODEL_TEMPLATE_STATUS_MACROS_H_
#define BATON_MODEL_TEMPLATE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define JINJA_RETURN_IF_ERROR(expr)              \
  do {                                           \
    absl::Status jinja_status = (expr);          \
    if (!jinja_status.ok()) return jinja_status; \
  } while (false)

#define JINJA_CONCAT_INNER(a, b) a##b
#define JINJA_CONCAT(a, b) JINJA_CONCAT_INNER(a, b)
#define JINJA_ASSIGN_OR_RETURN(lhs, expr) JINJA_ASSIGN_IMPL(JINJA_CONCAT(jinja_result_, __LINE__), lhs, expr)
#define JINJA_ASSIGN_IMPL(result, lhs, expr) \
  auto result = (expr);                      \
  if (!result.ok()) return result.status();  \
  lhs = *std::move(result)

#endif  // BATON_MODEL_TEMPLATE_STATUS_MACROS_H_
