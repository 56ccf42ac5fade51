// RawHttp through TLS.
#ifndef BATON_TESTS_COMMON_RPC_TLS_HTTP_H_
#define BATON_TESTS_COMMON_RPC_TLS_HTTP_H_

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>

#include <string>

#include "tests/common/rpc/raw_http.h"

namespace baton::testing {

struct TlsOptions {
  std::string ca;  // PEM file; the server's certificate must pass under it and be for `host`
  std::string host = "localhost";
  int max_version = 0;  // as TLS1_2_VERSION; 0: the newest
  std::string ciphers;  // of TLS 1.2; empty: OpenSSL's
  std::string alpn;     // as on the wire: "\x02h2"
};

class TlsHttp : public RawHttp {
 public:
  TlsHttp(int port, const TlsOptions& options) : RawHttp(port) {
    signal(SIGPIPE, SIG_IGN);
    ERR_clear_error();
    context_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context_, 0);  // this client would take what the server must refuse
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    EXPECT_EQ(SSL_CTX_load_verify_locations(context_, options.ca.c_str(), nullptr), 1) << options.ca;
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    if (options.max_version != 0) SSL_CTX_set_max_proto_version(context_, options.max_version);
    if (!options.ciphers.empty()) {
      EXPECT_EQ(SSL_CTX_set_cipher_list(context_, options.ciphers.c_str()), 1);
    }
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd());
    SSL_set1_host(ssl_, options.host.c_str());
    SSL_set_tlsext_host_name(ssl_, options.host.c_str());
    if (!options.alpn.empty()) {
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(options.alpn.data()),
                          static_cast<unsigned>(options.alpn.size()));
    }
    connected_ = SSL_connect(ssl_) == 1;
    char text[256] = "";
    if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
    error_ = text;
  }
  ~TlsHttp() override {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  bool connected() const { return connected_; }
  const std::string& error() const { return error_; }  // of the handshake
  std::string version() const { return SSL_get_version(ssl_); }
  std::string alpn() const {
    const unsigned char* chosen = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_, &chosen, &size);
    return {reinterpret_cast<const char*>(chosen), size};
  }
  // The server said that no more comes, rather than just hung up.
  bool ended_well() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }

 protected:
  ssize_t Write(const char* bytes, size_t size) override { return SSL_write(ssl_, bytes, static_cast<int>(size)); }
  ssize_t Read(char* bytes, size_t size) override { return SSL_read(ssl_, bytes, static_cast<int>(size)); }

 private:
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  std::string error_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_COMMON_RPC_TLS_HTTP_H_
