#include "common/rpc/http_server.h"

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/rpc/server.h"

namespace baton::rpc {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = boost::asio::ip::tcp;
using BeastRequest = http::request<http::string_body>;
using BeastResponse = http::response<http::string_body>;

class HttpServer::Impl {
 public:
  explicit Impl(const HttpServerOptions& options) : options(options), acceptor(context) {}

  absl::Status Listen();
  void Accept();
  void Stop();
  HttpResponse Dispatch(const HttpRequest& request) const;

  const HttpServerOptions options;
  std::map<std::string, std::map<std::string, Handler>> handlers;  // path, then method
  int num_connections = 0;  // server thread only; outlives `context`, whose end closes the last sessions
  asio::io_context context{1};
  Tcp::acceptor acceptor;
  std::thread thread;
  std::string address;
  int port = 0;
  bool stopped = false;  // owner's thread only
};

namespace {

std::string ToString(beast::string_view s) { return std::string(s.data(), s.size()); }

HttpRequest Convert(BeastRequest request) {
  HttpRequest out;
  out.method = ToString(request.method_string());
  const std::string target = ToString(request.target());
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : request) {
    out.headers[absl::AsciiStrToLower(ToString(field.name_string()))] = ToString(field.value());
  }
  out.body = std::move(request.body());
  return out;
}

// One connection. Kept alive by the operation that is outstanding; the server's thread only.
template <class ServerImpl>
class Session : public std::enable_shared_from_this<Session<ServerImpl>> {
 public:
  Session(ServerImpl* server, Tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    ++server_->num_connections;
  }
  ~Session() { --server_->num_connections; }

  void ReadNext() {
    // The idle time ends with the first byte of the next request.
    stream_.expires_after(absl::ToChronoNanoseconds(server_->options.idle_timeout));
    if (buffer_.size() > 0) return ReadRequest();
    stream_.async_read_some(buffer_.prepare(4096), [self = this->shared_from_this()](beast::error_code ec, size_t n) {
      if (ec) return self->Close();
      self->buffer_.commit(n);
      self->ReadRequest();
    });
  }

  // Answers 503 and closes, for a connection over the limit.
  void Refuse() {
    keep_alive_ = false;
    Write(HttpError(503, "UNAVAILABLE", "too many connections; try again"), 11, /*head=*/false);
  }

 private:
  void ReadRequest() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
    parser_->body_limit(server_->options.max_body_bytes);
    stream_.expires_after(absl::ToChronoNanoseconds(server_->options.header_timeout));
    http::async_read(stream_, buffer_, *parser_,
                     [self = this->shared_from_this()](beast::error_code ec, size_t) { self->OnRequest(ec); });
  }

  void OnRequest(beast::error_code ec) {
    if (ec == http::error::header_limit) {
      return Reject(431, "INVALID_ARGUMENT",
                    absl::StrCat("headers have more than ", server_->options.max_header_bytes, " bytes"));
    }
    if (ec == http::error::body_limit) {
      return Reject(413, "INVALID_ARGUMENT",
                    absl::StrCat("the body has more than ", server_->options.max_body_bytes, " bytes"));
    }
    if (ec == beast::error::timeout) return Close();
    if (ec && ec.category() == http::make_error_code(http::error::bad_method).category() &&
        ec != http::error::end_of_stream && ec != http::error::partial_message) {
      return Reject(400, "INVALID_ARGUMENT", absl::StrCat("not an HTTP/1.1 request: ", ec.message()));
    }
    if (ec) return Close();
    BeastRequest request = parser_->release();
    keep_alive_ = request.keep_alive();
    const unsigned version = request.version();
    const bool head = request.method() == http::verb::head;
    Write(server_->Dispatch(Convert(std::move(request))), version, head);
  }

  void Reject(int code, absl::string_view status, absl::string_view message) {
    keep_alive_ = false;
    Write(HttpError(code, status, message), 11, /*head=*/false);
  }

  void Write(HttpResponse answer, unsigned version, bool head) {
    response_.emplace();
    response_->version(version);
    response_->result(static_cast<unsigned>(answer.status));
    response_->set(http::field::server, "baton");
    response_->set(http::field::content_type, answer.content_type);
    response_->set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : answer.headers) response_->set(name, value);
    response_->keep_alive(keep_alive_);
    response_->content_length(answer.body.size());
    if (!head) response_->body() = std::move(answer.body);
    stream_.expires_after(absl::ToChronoNanoseconds(server_->options.write_timeout));
    // A HEAD answer announces a length that its body does not have, so only its header goes through the serializer.
    serializer_.emplace(*response_);
    const auto done = [self = this->shared_from_this()](beast::error_code ec, size_t) {
      if (ec || !self->keep_alive_) return self->Close();
      self->ReadNext();
    };
    if (head) {
      http::async_write_header(stream_, *serializer_, done);
    } else {
      http::async_write(stream_, *serializer_, done);
    }
  }

  void Close() {
    beast::error_code ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  }

  ServerImpl* const server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<BeastResponse> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  bool keep_alive_ = true;
};

}  // namespace

HttpResponse HttpError(int code, absl::string_view status, absl::string_view message) {
  const nlohmann::ordered_json body = {
      {"error", {{"code", code}, {"status", std::string(status)}, {"message", std::string(message)}}}};
  HttpResponse response;
  response.status = code;
  response.body = body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return response;
}

absl::Status HttpServer::Impl::Listen() {
  absl::StatusOr<HostPort> target = ParseHostPort(options.listen);
  if (!target.ok()) return target.status();
  if (absl::Status s = ExplainBindFailure(options.listen); !s.ok()) return s;
  beast::error_code ec;
  Tcp::resolver resolver(context);
  const auto found = resolver.resolve(target->host, absl::StrCat(target->port), Tcp::resolver::passive, ec);
  if (ec || found.empty()) return absl::InvalidArgumentError(absl::StrCat("host ", target->host, ": ", ec.message()));
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen, ": ", ec.message()));
  port = acceptor.local_endpoint(ec).port();
  address = JoinHostPort(target->host, port);
  return absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept([this](beast::error_code ec, Tcp::socket socket) {
    if (ec == asio::error::operation_aborted) return;
    if (!ec) {
      auto session = std::make_shared<Session<Impl>>(this, std::move(socket));
      if (num_connections > options.max_connections) {
        session->Refuse();
      } else {
        session->ReadNext();
      }
    } else {
      // Such as too many open files: let some close before the next try.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Accept();
  });
}

HttpResponse HttpServer::Impl::Dispatch(const HttpRequest& request) const {
  const auto by_path = handlers.find(request.path);
  if (by_path == handlers.end()) {
    return HttpError(404, "NOT_FOUND", absl::StrCat("no such path: ", request.path.substr(0, 200)));
  }
  const auto by_method = by_path->second.find(request.method == "HEAD" ? "GET" : request.method);
  if (by_method != by_path->second.end()) return by_method->second(request);
  HttpResponse response = HttpError(405, "UNIMPLEMENTED", absl::StrCat(request.method, " is not possible here"));
  std::string allowed;
  for (const auto& [method, handler] : by_path->second) absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", method);
  response.headers["Allow"] = allowed;
  return response;
}

void HttpServer::Impl::Stop() {
  if (stopped) return;
  stopped = true;
  context.stop();
  if (thread.joinable()) thread.join();
}

HttpServer::HttpServer(const HttpServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() { Stop(); }

void HttpServer::Handle(const std::string& method, const std::string& path, Handler handler) {
  impl_->handlers[path][method] = std::move(handler);
}

absl::Status HttpServer::Start() {
  if (absl::Status s = impl_->Listen(); !s.ok()) return s;
  impl_->Accept();
  impl_->thread = std::thread([impl = impl_.get()] { impl->context.run(); });
  return absl::OkStatus();
}

const std::string& HttpServer::address() const { return impl_->address; }
int HttpServer::port() const { return impl_->port; }
void HttpServer::Stop() { impl_->Stop(); }

void AddStandardHandlers(HttpServer* server, std::function<std::string()> metrics_text,
                         std::function<Readiness()> readiness) {
  server->Handle("GET", "/metrics", [metrics_text = std::move(metrics_text)](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_text();
    return response;
  });
  server->Handle("GET", "/health/live", [](const HttpRequest&) {
    HttpResponse response;
    response.body = "{\"status\":\"live\"}\n";
    return response;
  });
  const auto ready = [readiness = std::move(readiness)](const HttpRequest&) {
    const Readiness now = readiness();
    nlohmann::ordered_json body = {{"status", now.status}};
    if (now.status == "loading") body["progress"] = now.progress;
    HttpResponse response;
    response.status = now.ready ? 200 : 503;
    response.body = body.dump() + "\n";
    return response;
  };
  server->Handle("GET", "/health/ready", ready);
  server->Handle("GET", "/health", ready);
}

}  // namespace baton::rpc
