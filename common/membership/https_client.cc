#include "common/membership/https_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include <atomic>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/address.h"

namespace baton::membership {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Stream = beast::ssl_stream<beast::tcp_stream>;

constexpr size_t kMaxBytes = 16u << 20;
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);

absl::Status FromHttpStatus(unsigned status) {
  if (status == 200) return absl::OkStatus();
  const std::string text = absl::StrCat("the server answered with HTTP status ", status);
  if (status == 410) return absl::AbortedError(text);
  if (status == 401 || status == 403) return absl::PermissionDeniedError(text);
  if (status == 404) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

}  // namespace

struct HttpsClient::Impl {
  rpc::HostPort server;
  asio::io_context io{1};
  asio::ssl::context tls{asio::ssl::context::tls_client};
  std::optional<Stream> stream;  // of the call that runs
  std::atomic<bool> stop{false};

  // Runs one asynchronous operation, which `start` starts with a handler that stores its error.
  template <class StartFn>
  absl::Status Await(absl::string_view what, StartFn start) {
    std::optional<error_code> result;
    start([&result](error_code error, auto&&...) { result = error; });
    io.restart();
    while (!result.has_value() && !stop) io.run_one_for(std::chrono::milliseconds(200));
    if (!result.has_value()) {  // stopped: the handler still refers to this frame
      beast::get_lowest_layer(*stream).cancel();
      while (!result.has_value() && io.run_one() > 0) {
      }
    }
    if (stop) return absl::CancelledError("stopping");
    if (!*result) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(what, " ", server.host, ":", server.port, ": ", result->message()));
  }
  void ExpireAfter(absl::Duration timeout) {
    beast::get_lowest_layer(*stream).expires_after(absl::ToChronoMilliseconds(timeout));
  }

  absl::Status Connect();
  // Sends the request and reads the answer's head.
  absl::Status Begin(const std::string& path, const HttpHeaders& headers, beast::flat_buffer* buffer,
                     http::response_parser<http::buffer_body>* parser);
  // Some of the body; an empty string at its end.
  absl::StatusOr<std::string> Read(beast::flat_buffer* buffer, http::response_parser<http::buffer_body>* parser);
};

absl::Status HttpsClient::Impl::Connect() {
  error_code error;
  asio::ip::tcp::resolver resolver(io);
  // An address resolves at once; a name (the API server's) by the pod's resolver.
  const auto found = resolver.resolve(server.host, absl::StrCat(server.port), error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot resolve ", server.host, ": ", error.message()));
  stream.emplace(io, tls);
  ExpireAfter(kConnectTimeout);
  absl::Status s = Await("cannot connect to", [&](auto done) {
    beast::get_lowest_layer(*stream).async_connect(found, std::move(done));
  });
  if (!s.ok()) return s;
  const bool is_address = (asio::ip::make_address(server.host, error), !error);
  if (!is_address) SSL_set_tlsext_host_name(stream->native_handle(), server.host.c_str());
  stream->set_verify_mode(asio::ssl::verify_peer);
  stream->set_verify_callback(asio::ssl::host_name_verification(server.host));
  return Await("no TLS with", [&](auto done) { stream->async_handshake(asio::ssl::stream_base::client, std::move(done)); });
}

absl::Status HttpsClient::Impl::Begin(const std::string& path, const HttpHeaders& headers, beast::flat_buffer* buffer,
                                      http::response_parser<http::buffer_body>* parser) {
  if (absl::Status s = Connect(); !s.ok()) return s;
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, rpc::JoinHostPort(server.host, server.port));
  request.set(http::field::user_agent, "baton");
  for (const auto& [name, value] : headers) request.set(name, value);
  absl::Status s = Await("cannot write to", [&](auto done) { http::async_write(*stream, request, std::move(done)); });
  if (!s.ok()) return s;
  parser->body_limit(boost::none);  // counted where it is read
  s = Await("cannot read from",
            [&](auto done) { http::async_read_header(*stream, *buffer, *parser, std::move(done)); });
  return s.ok() ? FromHttpStatus(parser->get().result_int()) : s;
}

absl::StatusOr<std::string> HttpsClient::Impl::Read(beast::flat_buffer* buffer,
                                                    http::response_parser<http::buffer_body>* parser) {
  std::string part(64 << 10, '\0');
  while (!parser->is_done()) {
    parser->get().body().data = part.data();
    parser->get().body().size = part.size();
    absl::Status s = Await("cannot read from", [&](auto done) {
      http::async_read_some(*stream, *buffer, *parser, [done](error_code error, size_t n) mutable {
        done(error == http::error::need_buffer ? error_code() : error, n);
      });
    });
    if (!s.ok()) return s;
    const size_t size = part.size() - parser->get().body().size;
    if (size > 0) return part.substr(0, size);
  }
  return std::string();
}

absl::StatusOr<std::unique_ptr<HttpsClient>> HttpsClient::Create(const std::string& url, const std::string& ca_file) {
  auto impl = std::make_unique<Impl>();
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "https://")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", url, "\" is not an https:// address"));
  }
  rest = absl::StripSuffix(rest, "/");
  const bool has_port = rest.rfind(':') != absl::string_view::npos && !absl::EndsWith(rest, "]");
  absl::StatusOr<rpc::HostPort> server = rpc::ParseHostPort(has_port ? std::string(rest) : absl::StrCat(rest, ":443"));
  if (!server.ok()) return server.status();
  impl->server = *std::move(server);
  error_code error;
  impl->tls.load_verify_file(ca_file, error);
  if (error) return absl::NotFoundError(absl::StrCat(ca_file, " does not hold an authority (PEM): ", error.message()));
  return std::unique_ptr<HttpsClient>(new HttpsClient(std::move(impl)));
}

HttpsClient::HttpsClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpsClient::~HttpsClient() = default;
void HttpsClient::Stop() { impl_->stop = true; }

absl::StatusOr<std::string> HttpsClient::Get(const std::string& path, const HttpHeaders& headers,
                                             absl::Duration timeout) {
  std::string body;
  const absl::Time until = absl::Now() + timeout;
  absl::Status status = GetLines(path, headers, timeout, [&](absl::string_view line) -> absl::Status {
    absl::StrAppend(&body, line, "\n");
    if (body.size() > kMaxBytes) return absl::ResourceExhaustedError("the answer is over 16 MiB");
    return absl::Now() < until ? absl::OkStatus() : absl::UnavailableError("the answer took too long");
  });
  if (!status.ok()) return status;
  return body;
}

absl::Status HttpsClient::GetLines(const std::string& path, const HttpHeaders& headers, absl::Duration silence,
                                   const std::function<absl::Status(absl::string_view line)>& on_line) {
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  absl::Status status = impl_->Begin(path, headers, &buffer, &parser);
  std::string pending;
  while (status.ok()) {
    impl_->ExpireAfter(silence);
    absl::StatusOr<std::string> part = impl_->Read(&buffer, &parser);
    if (!part.ok()) status = part.status();
    if (!part.ok() || part->empty()) break;
    absl::StrAppend(&pending, *part);
    size_t begin = 0;
    for (size_t end; status.ok() && (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
      status = on_line(absl::string_view(pending).substr(begin, end - begin));
    }
    pending.erase(0, begin);
    if (status.ok() && pending.size() > kMaxBytes) status = absl::ResourceExhaustedError("a line is over 16 MiB");
  }
  if (status.ok() && !pending.empty()) status = on_line(pending);
  impl_->stream.reset();  // closed without TLS's goodbye: the answer's end was seen, or is of no interest
  return status;
}

}  // namespace baton::membership
