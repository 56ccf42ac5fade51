#include "common/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/google_rpc.pb.h"

namespace baton {
namespace {

constexpr size_t kMaxDetailBytes = 7 << 10;
constexpr size_t kMaxMessageBytes = 2 << 10;

constexpr StatusRule kRules[] = {
    {absl::StatusCode::kOk, "OK", RouterAction::kNone, 200, "success"},
    {absl::StatusCode::kCancelled, "CANCELLED", RouterAction::kFail, 499, "the client went away or cancelled"},
    {absl::StatusCode::kUnknown, "UNKNOWN", RouterAction::kRetryElsewhere, 500, "a peer failed without saying how"},
    {absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", RouterAction::kFail, 400, "the request is wrong"},
    {absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", RouterAction::kFail, 504, "the request's own deadline"},
    {absl::StatusCode::kNotFound, "NOT_FOUND", RouterAction::kFail, 404, "no such model or method"},
    {absl::StatusCode::kAlreadyExists, "ALREADY_EXISTS", RouterAction::kFail, 409, "the request id is in use"},
    {absl::StatusCode::kPermissionDenied, "PERMISSION_DENIED", RouterAction::kRetryElsewhere, 403,
     "a ticket was not signed by this cluster, or is not for this request"},
    {absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED", RouterAction::kShed, 429,
     "queue or KV memory is full"},
    {absl::StatusCode::kFailedPrecondition, "FAILED_PRECONDITION", RouterAction::kRetryElsewhere, 503,
     "model or KV layout of a pair differ"},
    {absl::StatusCode::kAborted, "ABORTED", RouterAction::kRetryElsewhere, 503, "the KV is gone: compute it again"},
    {absl::StatusCode::kOutOfRange, "OUT_OF_RANGE", RouterAction::kFail, 400, "the request is wrong"},
    {absl::StatusCode::kUnimplemented, "UNIMPLEMENTED", RouterAction::kFail, 501, "not in this version"},
    {absl::StatusCode::kInternal, "INTERNAL", RouterAction::kRetryElsewhere, 500, "a defect; the worker may be ill"},
    {absl::StatusCode::kUnavailable, "UNAVAILABLE", RouterAction::kRetryElsewhere, 503, "draining, starting or dead"},
    {absl::StatusCode::kDataLoss, "DATA_LOSS", RouterAction::kRetryElsewhere, 500, "KV arrived damaged: compute again"},
    {absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED", RouterAction::kFail, 401, "no valid credential"},
};

template <class Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <class Detail>
absl::Status Attach(absl::Status status, const Detail& detail) {
  if (!status.ok()) status.SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
  return status;
}

template <class Detail>
std::optional<Detail> Find(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl<Detail>());
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace

const StatusRule& RuleFor(absl::StatusCode code) {
  for (const StatusRule& rule : kRules) {
    if (rule.code == code) return rule;
  }
  return RuleFor(absl::StatusCode::kUnknown);
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  return Attach(absl::InvalidArgumentError(absl::StrCat(field, ": ", description)), detail);
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(std::string(reason));
  detail.set_domain("baton");
  return Attach(std::move(status), detail);
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo detail;
  delay = std::max(delay, absl::ZeroDuration());
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  detail.mutable_retry_delay()->set_seconds(seconds);
  detail.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  return Attach(std::move(status), detail);
}

std::string ReasonOf(const absl::Status& status) {
  const auto detail = Find<google::rpc::ErrorInfo>(status);
  return detail.has_value() ? detail->reason() : "";
}

std::string FieldOf(const absl::Status& status) {
  const auto detail = Find<google::rpc::BadRequest>(status);
  return detail.has_value() && detail->field_violations_size() > 0 ? detail->field_violations(0).field() : "";
}

std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  const auto detail = Find<google::rpc::RetryInfo>(status);
  if (!detail.has_value()) return std::nullopt;
  return absl::Seconds(detail->retry_delay().seconds()) + absl::Nanoseconds(detail->retry_delay().nanos());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Cut at a code point: a proto3 string must be UTF-8.
  size_t length = std::min(status.message().size(), kMaxMessageBytes);
  while (length > 0 && length < status.message().size() && (status.message()[length] & 0xC0) == 0x80) --length;
  const std::string message(status.message().substr(0, length));
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(message);
  status.ForEachPayload([&rich](absl::string_view type_url, const absl::Cord& payload) {
    auto* any = rich.add_details();
    any->set_type_url(std::string(type_url));
    any->set_value(std::string(payload));
  });
  if (rich.details_size() == 0) return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
  std::string details = rich.SerializeAsString();
  if (details.size() > kMaxDetailBytes) details.clear();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int number = static_cast<int>(status.error_code());
  const auto code = number >= 1 && number <= 16 ? static_cast<absl::StatusCode>(number) : absl::StatusCode::kUnknown;
  absl::Status result(code, status.error_message());
  google::rpc::Status rich;
  if (!status.error_details().empty() && rich.ParseFromString(status.error_details())) {
    for (const auto& any : rich.details()) result.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return result;
}

}  // namespace baton
