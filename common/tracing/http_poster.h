// POST over HTTP or HTTPS, with a bound on how long it takes.
#ifndef BATON_COMMON_TRACING_HTTP_POSTER_H_
#define BATON_COMMON_TRACING_HTTP_POSTER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::tracing {

// Keeps its connection between calls, and connects anew when that is gone.
//
// Thread contract: one thread posts; StopAt from any thread.
class HttpPoster {
 public:
  // `url`: http://host[:port][/path], port 4318 by default, or https://..., port 443; `path` is appended to it. A server's
  // certificate is checked against its host name and `ca` (PEM file; empty: what the system trusts, or SSL_CERT_FILE says).
  // INVALID_ARGUMENT: it is not such a URL. NOT_FOUND: `ca` holds no authority.
  static absl::StatusOr<std::unique_ptr<HttpPoster>> Create(const std::string& url, absl::string_view path,
                                                            const std::string& ca = "");
  ~HttpPoster();

  // The body of a 2xx. FAILED_PRECONDITION: another status. UNAVAILABLE: no answer came within `timeout`, or by the time
  // that StopAt gave.
  absl::StatusOr<std::string> Post(std::string body, const std::string& content_type, absl::Duration timeout);
  // From then on every call fails, also one that runs.
  void StopAt(absl::Time time);

 private:
  struct Impl;
  explicit HttpPoster(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_HTTP_POSTER_H_
