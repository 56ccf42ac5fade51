#include "router/console/same_origin.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::router::console {
namespace {

// "[::1]:8000" and "127.0.0.1:8000" to what is before the port; brackets go.
std::string NameOf(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return std::string(host.substr(1, host.find(']') - 1));
  return std::string(host.substr(0, host.rfind(':')));
}

bool IsAddressOrLocalhost(const std::string& name) {
  in6_addr parsed;
  return name == "localhost" || inet_pton(AF_INET, name.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &parsed) == 1;
}

}  // namespace

absl::Status CheckSameOrigin(const rpc::HttpRequest& request) {
  const absl::string_view host = request.header("host");
  const absl::string_view origin = request.header("origin");
  const absl::string_view site = request.header("sec-fetch-site");
  if (request.header("x-baton-console") != "1") {
    return absl::PermissionDeniedError("only the console may do this: there is no header X-Baton-Console: 1");
  }
  if (!absl::StartsWith(absl::AsciiStrToLower(request.header("content-type")), "application/json")) {
    return absl::PermissionDeniedError("the body must be JSON, and said to be: send Content-Type: application/json");
  }
  if (origin.empty() || (origin != absl::StrCat("http://", host) && origin != absl::StrCat("https://", host))) {
    return absl::PermissionDeniedError("only a page of this origin may do this: Origin is not this Host");
  }
  if (!site.empty() && site != "same-origin") {
    return absl::PermissionDeniedError("only a page of this origin may do this: Sec-Fetch-Site says otherwise");
  }
  if (!IsAddressOrLocalhost(NameOf(host))) {
    return absl::PermissionDeniedError(
        "open the console by an address or as localhost to change something: any other name may be another site's");
  }
  return absl::OkStatus();
}

}  // namespace baton::router::console
