// The certificate that an HttpServer shows: read from two files, and again when they change. Used by http_server.cc alone.
#ifndef BATON_COMMON_RPC_HTTP_TLS_H_
#define BATON_COMMON_RPC_HTTP_TLS_H_

#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/certificate_files.h"
#include "common/rpc/http_server.h"

namespace baton::rpc {

// TLS 1.2 with forward secrecy and AEAD, or 1.3; HTTP/1.1 where the client asks which protocol. This side keeps no sessions.
//
// Thread contract: thread-compatible.
class HttpTls {
 public:
  using Context = boost::asio::ssl::context;

  // Errors as ReadCertificatePair.
  static absl::StatusOr<std::unique_ptr<HttpTls>> Load(const HttpTlsFiles& files);

  // For the next connection. Looks at the files if it has not for `files.reload`; what is wrong with them is logged, and the
  // certificate before is shown on.
  std::shared_ptr<Context> Current();

 private:
  using Clock = std::chrono::steady_clock;
  HttpTls(HttpTlsFiles files, CertificatePair shown, std::shared_ptr<Context> context);
  absl::Status Reload();

  const HttpTlsFiles files_;
  CertificatePair shown_;
  std::shared_ptr<Context> context_;
  Clock::time_point next_look_;
  std::string logged_;  // what is wrong with the files, said once
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_TLS_H_
