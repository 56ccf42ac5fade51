// GET over HTTPS, whole or line by line. The server's certificate is checked against one authority and its host name.
#ifndef BATON_COMMON_MEMBERSHIP_HTTPS_CLIENT_H_
#define BATON_COMMON_MEMBERSHIP_HTTPS_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::membership {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Thread contract: one thread calls; Stop from any thread breaks a call off, and every later one (CANCELLED).
class HttpsClient {
 public:
  // `url`: https://host[:port]; `ca_file`: PEM. INVALID_ARGUMENT, NOT_FOUND.
  static absl::StatusOr<std::unique_ptr<HttpsClient>> Create(const std::string& url, const std::string& ca_file);
  ~HttpsClient();

  // The body of a 200. Other statuses: ABORTED for 410, PERMISSION_DENIED for 401 and 403, NOT_FOUND for 404, UNAVAILABLE
  // for the rest, as for whatever keeps an answer from coming. RESOURCE_EXHAUSTED: over 16 MiB.
  absl::StatusOr<std::string> Get(const std::string& path, const HttpHeaders& headers, absl::Duration timeout);
  // Calls `on_line` for each line of a 200's body, without its end, until it returns an error, which is returned, or the
  // body ends (OK). UNAVAILABLE also when nothing came for `silence`; RESOURCE_EXHAUSTED for a line over 16 MiB.
  absl::Status GetLines(const std::string& path, const HttpHeaders& headers, absl::Duration silence,
                        const std::function<absl::Status(absl::string_view line)>& on_line);
  void Stop();

 private:
  struct Impl;
  explicit HttpsClient(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_HTTPS_CLIENT_H_
