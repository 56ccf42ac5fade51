#include "common/tracing/http_poster.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/rpc/address.h"

namespace baton::tracing {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr size_t kMaxAnswer = 1u << 20;
constexpr char kDefaultPort[] = ":4318", kDefaultTlsPort[] = ":443";

}  // namespace

struct HttpPoster::Impl {
  rpc::HostPort server;
  std::string target;
  asio::io_context io{1};
  std::optional<asio::ssl::context> context;  // https
  std::optional<beast::tcp_stream> stream;    // the connection that is kept
  std::optional<asio::ssl::stream<beast::tcp_stream&>> tls;  // over it
  std::atomic<int64_t> stop_ns{INT64_MAX};

  // Runs one asynchronous operation until it is over, `until`, or the stop.
  template <class StartFn>
  absl::Status Await(absl::string_view what, absl::Time until, StartFn start) {
    std::optional<error_code> result;
    start([&result](error_code error, auto&&...) { result = error; });
    io.restart();
    const auto late = [&] { return absl::GetCurrentTimeNanos() >= std::min(stop_ns.load(), absl::ToUnixNanos(until)); };
    while (!result.has_value() && !late()) io.run_one_for(std::chrono::milliseconds(50));
    const bool gave_up = !result.has_value();
    if (gave_up) {  // the handler still refers to this frame
      stream->close();
      io.restart();
      while (!result.has_value() && io.run_one() > 0) {
      }
    }
    if (!gave_up && !*result) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(what, " ", rpc::JoinHostPort(server.host, server.port), ": ",
                                               gave_up ? "took too long" : result->message()));
  }

  absl::Status Connect(absl::Time until);
  absl::Status Handshake(absl::Time until);
  void Disconnect() {  // without TLS's goodbye, as HTTP says where an answer ends
    tls.reset();
    stream.reset();
  }
  absl::StatusOr<std::string> Exchange(const http::request<http::string_body>& request, absl::Time until) {
    return tls.has_value() ? ExchangeOver(&*tls, request, until) : ExchangeOver(&*stream, request, until);
  }
  template <class Stream>
  absl::StatusOr<std::string> ExchangeOver(Stream* over, const http::request<http::string_body>& request, absl::Time until);
};

absl::Status HttpPoster::Impl::Connect(absl::Time until) {
  asio::ip::tcp::resolver resolver(io);
  asio::ip::tcp::resolver::results_type found;
  Disconnect();
  stream.emplace(io);
  absl::Status s = Await("cannot resolve", until, [&](auto done) {
    resolver.async_resolve(server.host, absl::StrCat(server.port), [&found, done](error_code error, auto results) mutable {
      found = std::move(results);
      done(error);
    });
  });
  if (!s.ok()) return s;
  s = Await("cannot connect to", until, [&](auto done) { stream->async_connect(found, std::move(done)); });
  return s.ok() && context.has_value() ? Handshake(until) : s;
}

absl::Status HttpPoster::Impl::Handshake(absl::Time until) {
  tls.emplace(*stream, *context);
  error_code error;
  const bool is_address = (asio::ip::make_address(server.host, error), !error);
  if (!is_address) SSL_set_tlsext_host_name(tls->native_handle(), server.host.c_str());
  tls->set_verify_mode(asio::ssl::verify_peer);
  tls->set_verify_callback(asio::ssl::host_name_verification(server.host));
  const absl::Status s = Await(
      "no TLS with", until, [&](auto done) { tls->async_handshake(asio::ssl::stream_base::client, std::move(done)); });
  const long verified = SSL_get_verify_result(tls->native_handle());
  if (s.ok() || verified == X509_V_OK) return s;
  return absl::UnavailableError(absl::StrCat(s.message(), " (", X509_verify_cert_error_string(verified),
                                             "; otlp_tls_ca names the authority that signed the collector's certificate)"));
}

template <class Stream>
absl::StatusOr<std::string> HttpPoster::Impl::ExchangeOver(Stream* over, const http::request<http::string_body>& request,
                                                           absl::Time until) {
  absl::Status s =
      Await("cannot write to", until, [&](auto done) { http::async_write(*over, request, std::move(done)); });
  if (!s.ok()) return s;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswer);
  s = Await("no answer from", until, [&](auto done) { http::async_read(*over, buffer, parser, std::move(done)); });
  if (!s.ok()) return s;
  if (!parser.get().keep_alive()) Disconnect();
  const unsigned code = parser.get().result_int();
  if (code / 100 == 2) return std::move(parser.get().body());
  return absl::FailedPreconditionError(absl::StrCat("HTTP status ", code, " from ", rpc::JoinHostPort(server.host, server.port)));
}

absl::StatusOr<std::unique_ptr<HttpPoster>> HttpPoster::Create(const std::string& url, absl::string_view path,
                                                               const std::string& ca) {
  absl::string_view rest = url;
  const bool https = absl::ConsumePrefix(&rest, "https://");
  if (!https && !absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("otlp_endpoint: \"", url, "\" is not http://host:port or https://host:port"));
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority(rest.substr(0, slash));
  const bool has_port = authority.rfind(':') != std::string::npos && authority.back() != ']';
  absl::StatusOr<rpc::HostPort> server = rpc::ParseHostPort(has_port ? authority : absl::StrCat(authority, https ? kDefaultTlsPort : kDefaultPort));
  if (!server.ok()) return absl::InvalidArgumentError(absl::StrCat("otlp_endpoint: ", server.status().message()));
  auto impl = std::make_unique<Impl>();
  impl->server = *std::move(server);
  if (https) {
    error_code error;
    impl->context.emplace(asio::ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(impl->context->native_handle(), TLS1_2_VERSION);
    if (ca.empty()) {
      impl->context->set_default_verify_paths(error);
    } else {
      impl->context->load_verify_file(ca, error);
    }
    if (error) {
      return absl::NotFoundError(absl::StrCat("otlp_tls_ca: ", ca, " does not hold an authority (PEM): ", error.message()));
    }
  }
  impl->target = absl::StrCat(absl::StripSuffix(rest.substr(slash), "/"), path);
  return std::unique_ptr<HttpPoster>(new HttpPoster(std::move(impl)));
}

HttpPoster::HttpPoster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpPoster::~HttpPoster() = default;
void HttpPoster::StopAt(absl::Time time) { impl_->stop_ns = absl::ToUnixNanos(time); }

absl::StatusOr<std::string> HttpPoster::Post(std::string body, const std::string& content_type, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  http::request<http::string_body> request(http::verb::post, impl_->target, 11);
  request.set(http::field::host, rpc::JoinHostPort(impl_->server.host, impl_->server.port));
  request.set(http::field::user_agent, "baton");
  request.set(http::field::content_type, content_type);
  request.body() = std::move(body);
  request.prepare_payload();
  // A connection that was kept may have been closed meanwhile: then once more over a new one.
  absl::StatusOr<std::string> answer = absl::UnavailableError("not connected");
  for (const bool kept : {true, false}) {
    if (kept && !impl_->stream.has_value()) continue;
    absl::Status connected = kept ? absl::OkStatus() : impl_->Connect(until);
    if (connected.ok()) {
      answer = impl_->Exchange(request, until);
      if (!absl::IsUnavailable(answer.status())) break;
    } else {
      answer = connected;
    }
    impl_->Disconnect();
  }
  return answer;
}

}  // namespace baton::tracing
