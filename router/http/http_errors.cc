#include "router/http/http_errors.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace baton::router::http {
namespace {

using Json = nlohmann::ordered_json;

// "sampling.top_p" is "top_p" to an HTTP client.
std::string PublicField(absl::string_view field, const std::string& constraint_field) {
  if (field == "input") return "prompt";
  if (absl::ConsumePrefix(&field, "token_ids.ids")) return absl::StrCat("prompt", field);
  if (absl::ConsumePrefix(&field, "token_ids")) return absl::StrCat("tokens", field);
  absl::ConsumePrefix(&field, "sampling.");
  absl::ConsumePrefix(&field, "chat.");
  if (absl::StartsWith(field, "constraint") && !constraint_field.empty()) return constraint_field;
  if (absl::ConsumePrefix(&field, "template_arguments")) return absl::StrCat("chat_template_kwargs", field);
  return std::string(field);
}

std::string PublicMessage(const absl::Status& status, absl::string_view field, absl::string_view public_field) {
  absl::string_view message = status.message();
  if (!field.empty() && absl::ConsumePrefix(&message, field)) return absl::StrCat(public_field, message);
  return std::string(message);
}

}  // namespace

int HttpCodeOf(const absl::Status& status) {
  if (ReasonOf(status) == "NO_CHAT_TEMPLATE") return 400;  // the model's, and the request asked for it
  return RuleFor(status.code()).http_code;
}

rpc::HttpResponse ErrorResponse(const absl::Status& status, const std::string& constraint_field) {
  const int code = HttpCodeOf(status);
  const std::string field = FieldOf(status);
  const std::string param = PublicField(field, constraint_field);
  rpc::HttpResponse response = rpc::HttpError(code, RuleFor(status.code()).name, PublicMessage(status, field, param),
                                              param, absl::AsciiStrToLower(ReasonOf(status)));
  if (code == 401) response.headers["WWW-Authenticate"] = "Bearer";
  if (code == 429 || code == 503) {
    const absl::Duration wait = RetryAfterOf(status).value_or(absl::Seconds(1));
    response.headers["Retry-After"] =
        absl::StrCat(std::max<int64_t>(1, std::llround(std::ceil(absl::ToDoubleSeconds(wait)))));
    response.headers["retry-after-ms"] = absl::StrCat(absl::ToInt64Milliseconds(wait));
    response.headers["x-should-retry"] = "true";
  } else if (code >= 500) {
    // It was tried on other workers already, or its own time is over.
    response.headers["x-should-retry"] = "false";
  }
  return response;
}

std::string StreamError(const absl::Status& status, const std::string& constraint_field) {
  Json error = Json::parse(ErrorResponse(status, constraint_field).body, nullptr, false);
  error["error"]["code"] = HttpCodeOf(status);
  return error.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton::router::http
