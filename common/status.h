// Errors inside the process are absl::Status; on the wire they are grpc::Status with google.rpc details. Both
// directions, and the one table that says what a code means to the router and to an HTTP client.
//
// Thread contract: plain functions.
#ifndef BATON_COMMON_STATUS_H_
#define BATON_COMMON_STATUS_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton {

enum class RouterAction {
  kNone,            // OK
  kFail,            // the request's own fault or end: tell the client, do not retry
  kRetryElsewhere,  // this worker cannot, or what it held is lost: prefill prompt and emitted tokens on another pair
  kShed,            // out of room: another pair if one has room, else tell the client when to come back
};

struct StatusRule {
  absl::StatusCode code;
  const char* name;  // "INVALID_ARGUMENT"
  RouterAction action;
  int http_code;
  const char* meaning;  // in Baton
};
// The table. Codes that it does not list behave as UNKNOWN.
const StatusRule& RuleFor(absl::StatusCode code);
inline RouterAction ActionFor(const absl::Status& status) { return RuleFor(status.code()).action; }

// INVALID_ARGUMENT "<field>: <description>", with a BadRequest detail.
absl::Status InvalidField(absl::string_view field, absl::string_view description);
// `status` with ErrorInfo{reason, domain "baton"}; `reason` is UPPER_SNAKE_CASE and stable for programs.
absl::Status WithReason(absl::Status status, absl::string_view reason);
// `status` with RetryInfo.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);

// What the functions above attached; empty or nullopt when absent.
std::string ReasonOf(const absl::Status& status);
std::string FieldOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

// Details cross as google.rpc.Status in grpc-status-details-bin (left out when they would exceed 7 KiB, for metadata is
// limited to 8). Messages are cut to 2 KiB.
grpc::Status ToGrpcStatus(const absl::Status& status);
// Codes out of range become UNKNOWN; details that do not parse are dropped.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace baton

#endif  // BATON_COMMON_STATUS_H_
