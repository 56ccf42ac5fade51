// One connection of an HttpServer: reads a request, has it answered, and so on. Used by http_server.cc alone.
#ifndef BATON_COMMON_RPC_HTTP_SESSION_H_
#define BATON_COMMON_RPC_HTTP_SESSION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "common/rpc/http_stream.h"

namespace baton::rpc {

class HttpOutbox;
class HttpSession;

// What all sessions of a server share. Thread-safe.
struct HttpSessions {
  explicit HttpSessions(const HttpServerOptions& server_options) : options(server_options) {}

  const HttpServerOptions options;
  std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)> dispatch;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> body_bytes{0};  // of requests still arriving

  Mutex mu;
  CondVar none_left;
  std::set<HttpSession*> open ABSL_GUARDED_BY(mu);
  std::map<std::string, int> per_address ABSL_GUARDED_BY(mu);
};

// Thread contract: everything runs on the socket's strand, unless said otherwise. Kept alive by its outstanding
// operations and by the exchange of the request being answered.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = HttpStream::Socket;
  using TlsContext = boost::asio::ssl::context;

  // `tls` null: plain HTTP.
  HttpSession(std::shared_ptr<HttpSessions> sessions, Socket socket, std::string address,
              std::shared_ptr<TlsContext> tls);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void Start();
  // For a connection over the limit: answers 503 and closes. Where that would take a TLS handshake, only closes.
  void Refuse(absl::string_view why);
  // Any thread: closes if idle, else after the answer. One that has not asked anything yet is left alone unless
  // `unused_too`: its first request may be under way.
  void Drain(bool unused_too);

 private:
  using ErrorCode = boost::beast::error_code;
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();
  enum class State { kIdle, kReading, kAnswering, kLingering, kClosed };

  void WaitForHello();
  void ReadNext();
  void Fill();
  void ReadHeader();
  void OnHeader(ErrorCode ec);
  bool HeaderIsClear();
  void Continue();
  void ReadBody();
  void OnBody(ErrorCode ec);
  void ReadFailed(ErrorCode ec);
  void Answer();
  void Reject(int code, absl::string_view status, absl::string_view message);
  void Flush();
  void WriteSome();
  void AnswerDone();
  void Linger();
  void Discard();
  void Close();
  void ReleaseBody();
  void SetDeadline(absl::Duration after);
  void WaitForDeadline();

  const std::shared_ptr<HttpSessions> sessions_;
  const HttpServerOptions& options_;
  const std::string address_;
  std::shared_ptr<TlsContext> tls_;  // until the handshake
  HttpStream stream_;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = kNever;
  Clock::time_point armed_until_ = kNever;  // when timer_ fires
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_;
  bool filling_ = false;  // a read into buffer_ is outstanding
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  int64_t charged_ = 0;  // of sessions_->body_bytes
  bool keep_alive_ = true;
  bool used_ = false;  // it has had an answer
  std::shared_ptr<HttpOutbox> exchange_;
  std::string writing_;
  size_t written_ = 0;
  bool write_outstanding_ = false;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_SESSION_H_
