#include "common/rpc/http_tls.h"

#include <boost/asio/buffer.hpp>
#include <openssl/ssl.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"

namespace baton::rpc {
namespace {

namespace asio = boost::asio;
using Context = HttpTls::Context;

constexpr char kCiphersOfTls12[] =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

// A client that offers other protocols only, as one of gRPC, is told so by TLS's own alert.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                   unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof(kOurs), offered, offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

absl::StatusOr<std::shared_ptr<Context>> MakeContext(const CertificatePair& pair, const HttpTlsFiles& files) {
  auto context = std::make_shared<Context>(Context::tls_server);
  SSL_CTX* const ssl = context->native_handle();
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(ssl, ChooseProtocol, nullptr);
  if (SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(ssl, kCiphersOfTls12) != 1) {
    return absl::InternalError("OpenSSL knows none of the ciphers of TLS 1.2 that Baton uses");
  }
  boost::system::error_code error;
  context->set_password_callback([](size_t, Context::password_purpose) { return std::string(); }, error);
  if (!error) context->use_certificate_chain(asio::buffer(pair.cert), error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("the certificate ", files.cert, " cannot be used: ", error.message()));
  }
  context->use_private_key(asio::buffer(pair.key), Context::pem, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("the key ", files.key, " cannot be used: ", error.message()));
  }
  return context;
}

}  // namespace

HttpTls::HttpTls(HttpTlsFiles files, CertificatePair shown, std::shared_ptr<Context> context)
    : files_(std::move(files)),
      shown_(std::move(shown)),
      context_(std::move(context)),
      next_look_(Clock::now() + absl::ToChronoNanoseconds(files_.reload)) {}

absl::StatusOr<std::unique_ptr<HttpTls>> HttpTls::Load(const HttpTlsFiles& files) {
  absl::StatusOr<CertificatePair> pair = ReadCertificatePair(files.cert, files.key);
  if (!pair.ok()) return pair.status();
  absl::StatusOr<std::shared_ptr<Context>> context = MakeContext(*pair, files);
  if (!context.ok()) return context.status();
  WarnBeforeItEnds(pair->info, files.cert, "put a new one in its place");
  return std::unique_ptr<HttpTls>(new HttpTls(files, *std::move(pair), *std::move(context)));
}

std::shared_ptr<HttpTls::Context> HttpTls::Current() {
  if (const Clock::time_point now = Clock::now(); now >= next_look_) {
    next_look_ = now + absl::ToChronoNanoseconds(files_.reload);
    const absl::Status status = Reload();
    const std::string wrong(status.message());
    if (!status.ok() && wrong != logged_) {
      LogWarn("HTTPS goes on with the certificate that was read before", {{"error", wrong}});
    }
    logged_ = wrong;
  }
  return context_;
}

absl::Status HttpTls::Reload() {
  absl::StatusOr<CertificatePair> pair = ReadCertificatePair(files_.cert, files_.key);
  if (!pair.ok()) return pair.status();
  if (pair->cert == shown_.cert && pair->key == shown_.key) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<Context>> context = MakeContext(*pair, files_);
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  shown_ = *std::move(pair);
  LogInfo("HTTPS shows a new certificate", {{"certificate", files_.cert}});
  WarnBeforeItEnds(shown_.info, files_.cert, "put a new one in its place");
  return absl::OkStatus();
}

}  // namespace baton::rpc
