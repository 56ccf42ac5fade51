// The session's side of an exchange: what waits to be written. Used by http_session.cc alone.
#ifndef BATON_COMMON_RPC_HTTP_EXCHANGE_H_
#define BATON_COMMON_RPC_HTTP_EXCHANGE_H_

#include <functional>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "common/rpc/http_message.h"

namespace baton::rpc {

// How the answer to one request must be framed.
struct HttpFraming {
  unsigned version = 11;
  bool head = false;  // HEAD: no body
  bool keep_alive = false;
};

// A complete answer.
std::string SerializeResponse(HttpResponse response, const HttpFraming& framing);

// Thread-safe. `wake` is called, outside the lock, when there is something new for the session to do.
class HttpOutbox {
 public:
  HttpOutbox(const HttpFraming& framing, size_t max_buffered, std::function<bool()> draining,
             std::function<void()> wake)
      : framing_(framing), max_buffered_(max_buffered), draining_(std::move(draining)), wake_(std::move(wake)) {}

  void Respond(HttpResponse response);
  void Begin(HttpResponse head);
  bool Write(absl::string_view piece);
  void End();
  // The handler let go: 500 if nothing was said, the end if a stream was begun.
  void Abandon();
  void OnGone(std::function<void()> gone);

  // For the session. What is to be written next; empty when nothing waits.
  std::string Take();
  bool complete() const;    // everything was said
  bool overflowed() const;  // the client is too slow
  bool keep_alive() const;  // as the answer's header says; known once it is complete
  // The client is gone: nothing is taken any more, and the handler hears of it unless it had said everything.
  void Gone();
  // All was written: what OnGone captured is dropped.
  void Delivered();

 private:
  bool Append(absl::string_view bytes, bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AppendPiece(absl::string_view piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  HttpFraming framing_ ABSL_GUARDED_BY(mu_);
  const size_t max_buffered_;
  const std::function<bool()> draining_;
  const std::function<void()> wake_;
  mutable Mutex mu_;
  std::string pending_ ABSL_GUARDED_BY(mu_);
  std::function<void()> gone_callback_ ABSL_GUARDED_BY(mu_);
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool chunked_ ABSL_GUARDED_BY(mu_) = false;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;  // and has not taken since
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_EXCHANGE_H_
