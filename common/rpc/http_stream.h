// A connection's bytes, as they are or through TLS: what Asio and Beast read from and write to. Used by http_session.cc
// alone.
#ifndef BATON_COMMON_RPC_HTTP_STREAM_H_
#define BATON_COMMON_RPC_HTTP_STREAM_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>
#include <utility>

namespace baton::rpc {

// Handlers are called as those of a socket are, on its executor. One read and one write may be outstanding at a time.
//
// Thread contract: that of a socket.
class HttpStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;

  explicit HttpStream(Socket socket) : socket_(std::move(socket)) {}
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }

  // From now on through TLS, of which this is the server.
  template <class Handler>
  void Secure(std::shared_ptr<boost::asio::ssl::context> context, Handler&& handler) {
    context_ = std::move(context);
    tls_.emplace(socket_, *context_);
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) return tls_->async_read_some(buffers, std::forward<Handler>(handler));
    socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) return tls_->async_write_some(buffers, std::forward<Handler>(handler));
    socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

  // Nothing more is written. `keep` stays alive for as long as saying so takes.
  template <class Keep>
  void EndWriting(Keep keep) {
    if (tls_.has_value()) {
      return tls_->async_shutdown([keep = std::move(keep)](boost::system::error_code) {});
    }
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }

 private:
  Socket socket_;
  std::shared_ptr<boost::asio::ssl::context> context_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_STREAM_H_
