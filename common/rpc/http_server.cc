#include "common/rpc/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/rpc/acceptor.h"
#include "common/rpc/http_session.h"
#include "common/rpc/http_tls.h"
#include "common/rpc/server.h"

namespace baton::rpc {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Tcp = boost::asio::ip::tcp;

class HttpServer::Impl {
 public:
  explicit Impl(const HttpServerOptions& server_options)
      : options(server_options),
        sessions(std::make_shared<HttpSessions>(server_options)),
        context(std::max(server_options.threads, 1)),
        acceptor(asio::make_strand(context)),
        pause(acceptor.get_executor()) {
    sessions->dispatch = [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
      Dispatch(std::move(request), std::move(exchange));
    };
  }

  absl::Status Listen();
  void Accept();
  void OnConnection(Tcp::socket socket);
  void Drain(bool unused_too);
  void Stop(absl::Duration grace);
  void Dispatch(HttpRequest request, std::shared_ptr<HttpExchange> exchange) const;

  using Methods = std::map<std::string, AsyncHandler>;
  const Methods* Find(const std::string& path) const;

  const HttpServerOptions options;
  std::map<std::string, Methods> handlers;  // by path, or by "/prefix/*"
  // Outlives `context`, whose end closes the last sessions.
  const std::shared_ptr<HttpSessions> sessions;
  asio::io_context context;
  Tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::unique_ptr<HttpTls> tls;  // null: plain HTTP; once it accepts, on the acceptor's strand
  std::vector<std::thread> threads;
  std::string address;
  int port = 0;
  bool stopped = false;  // owner's thread only
};

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
  acceptor.async_accept(asio::make_strand(context), [this](beast::error_code ec, Tcp::socket socket) {
    if (ec == asio::error::operation_aborted) return;
    if (!ec) {
      if (!IsOfTheLastDescriptors(socket.native_handle())) OnConnection(std::move(socket));
      return Accept();
    }
    // Such as too many open files: let some close before the next try.
    pause.expires_after(std::chrono::milliseconds(10));
    pause.async_wait([this](beast::error_code stopped_waiting) {
      if (!stopped_waiting) Accept();
    });
  });
}

void HttpServer::Impl::OnConnection(Tcp::socket socket) {
  beast::error_code ec;
  const asio::ip::address peer = socket.remote_endpoint(ec).address();
  const asio::any_io_executor executor = socket.get_executor();
  auto session = std::make_shared<HttpSession>(sessions, std::move(socket), peer.to_string(),
                                               tls == nullptr ? nullptr : tls->Current());
  bool too_many, too_many_of_one;
  {
    MutexLock lock(&sessions->mu);
    too_many = sessions->open.size() > static_cast<size_t>(options.max_connections);
    too_many_of_one =
        !peer.is_loopback() && sessions->per_address[peer.to_string()] > options.max_connections_per_address;
  }
  asio::post(executor, [session, too_many, too_many_of_one] {
    if (too_many) return session->Refuse("too many connections; try again");
    if (too_many_of_one) return session->Refuse("too many connections from this address; use fewer");
    session->Start();
  });
}

const HttpServer::Impl::Methods* HttpServer::Impl::Find(const std::string& path) const {
  if (const auto exact = handlers.find(path); exact != handlers.end()) return &exact->second;
  for (const auto& [pattern, methods] : handlers) {
    if (!absl::EndsWith(pattern, "/*")) continue;
    const absl::string_view prefix = absl::string_view(pattern).substr(0, pattern.size() - 1);
    if (absl::StartsWith(path, prefix) && path.size() > prefix.size()) return &methods;
  }
  return nullptr;
}

void HttpServer::Impl::Dispatch(HttpRequest request, std::shared_ptr<HttpExchange> exchange) const {
  const Methods* methods = Find(request.path);
  if (methods == nullptr) {
    return exchange->Respond(HttpError(404, "NOT_FOUND", absl::StrCat("no such path: ", request.path.substr(0, 200))));
  }
  const auto by_method = methods->find(request.method == "HEAD" ? "GET" : request.method);
  if (by_method != methods->end()) return by_method->second(std::move(request), std::move(exchange));
  HttpResponse response = HttpError(405, "UNIMPLEMENTED", absl::StrCat(request.method, " is not possible here"));
  std::string allowed;
  for (const auto& [method, handler] : *methods) absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", method);
  response.headers["Allow"] = allowed;
  exchange->Respond(std::move(response));
}

void HttpServer::Impl::Drain(bool unused_too) {
  sessions->draining = true;
  std::vector<std::shared_ptr<HttpSession>> open;  // let go without the lock, which a session's end takes
  {
    MutexLock lock(&sessions->mu);
    for (HttpSession* session : sessions->open) {
      if (std::shared_ptr<HttpSession> alive = session->weak_from_this().lock()) open.push_back(std::move(alive));
    }
  }
  for (const std::shared_ptr<HttpSession>& session : open) session->Drain(unused_too);
}

void HttpServer::Impl::Stop(absl::Duration grace) {
  if (stopped) return;
  stopped = true;
  asio::post(acceptor.get_executor(), [this] {
    beast::error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
  });
  Drain(/*unused_too=*/true);
  const absl::Time until = absl::Now() + grace;
  {
    MutexLock lock(&sessions->mu);
    while (!sessions->open.empty() && absl::Now() < until) {
      sessions->none_left.WaitWithTimeout(&sessions->mu, until - absl::Now());
    }
  }
  context.stop();
  for (std::thread& thread : threads) thread.join();
}

HttpServer::HttpServer(const HttpServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() { Stop(); }

void HttpServer::Handle(const std::string& method, const std::string& path, Handler handler) {
  HandleAsync(method, path,
              [handler = std::move(handler)](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
                exchange->Respond(handler(request));
              });
}

void HttpServer::HandleAsync(const std::string& method, const std::string& path, AsyncHandler handler) {
  impl_->handlers[path][method] = std::move(handler);
}

absl::Status HttpServer::Start() {
  if (impl_->options.tls.has_value()) {
    absl::StatusOr<std::unique_ptr<HttpTls>> tls = HttpTls::Load(*impl_->options.tls);
    if (!tls.ok()) return tls.status();
    impl_->tls = *std::move(tls);
  }
  if (absl::Status s = impl_->Listen(); !s.ok()) return s;
  impl_->Accept();
  for (int i = 0; i < std::max(impl_->options.threads, 1); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->context.run(); });
  }
  return absl::OkStatus();
}

const std::string& HttpServer::address() const { return impl_->address; }
int HttpServer::port() const { return impl_->port; }
int HttpServer::connections() const {
  MutexLock lock(&impl_->sessions->mu);
  return static_cast<int>(impl_->sessions->open.size());
}
void HttpServer::Drain() { impl_->Drain(/*unused_too=*/false); }
void HttpServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

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
