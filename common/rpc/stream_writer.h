// The one server-streaming reactor: any thread pushes messages, gRPC's threads write them, nobody ever waits.
//
// The owner gives gRPC the raw pointer (return it from the service's method) and keeps a shared_ptr. The object lives
// until both gRPC is done with the call and the last shared_ptr is gone.
//
//   auto stream = StreamWriter<Event>::Create({}, [=] { engine->Cancel(id); });
//   ...start work that calls stream->Push(event) and, exactly once at its end, stream->Finish(status)...
//   return stream.get();
#ifndef BATON_COMMON_RPC_STREAM_WRITER_H_
#define BATON_COMMON_RPC_STREAM_WRITER_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/rpc/event_stream.h"
#include "common/status.h"

namespace baton::rpc {

struct StreamWriterOptions {
  // Messages pushed and not yet taken by the transport. One more ends the call with RESOURCE_EXHAUSTED: a reader that
  // slow must not hold memory here. (Flow control of HTTP/2 buffers 64 KiB besides.)
  size_t max_buffered = 4096;
};

// Thread contract: Push and Finish are thread-safe and return at once. on_cancel runs once at most, on a gRPC thread or
// inside Push (overflow); it must not block.
template <class Message>
class StreamWriter final : public grpc::ServerWriteReactor<Message>,
                           public EventStream<Message>,
                           public std::enable_shared_from_this<StreamWriter<Message>> {
 public:
  // `on_cancel` is called when the client went away, the deadline passed, the server is shutting down or the buffer
  // overflowed: before Finish, or after it when the end of the stream could not be sent any more. It is dropped (with
  // what it captured) when the call is done.
  static std::shared_ptr<StreamWriter> Create(const StreamWriterOptions& options, std::function<void()> on_cancel) {
    std::shared_ptr<StreamWriter> writer(new StreamWriter(options, std::move(on_cancel)));
    writer->self_ = writer;
    return writer;
  }

  // False when the message will not be sent: the call is over, or this message overflowed the buffer.
  bool Push(Message message) override {
    std::function<void()> cancel;
    bool accepted = true;
    {
      MutexLock lock(&mu_);
      if (state_ != State::kOpen) return false;
      if (buffer_.size() < options_.max_buffered) {
        buffer_.push_back(std::move(message));
      } else {
        accepted = false;
        state_ = State::kEnding;
        final_ = absl::ResourceExhaustedError(absl::StrCat("the reader is too slow: ", buffer_.size(),
                                                           " messages wait; read the stream or ask for less"));
        buffer_.clear();
        cancelled_ = true;
        cancel = std::exchange(on_cancel_, nullptr);
      }
    }
    Advance();
    if (cancel) cancel();
    return accepted;
  }

  // Ends the call with `status` once everything pushed before is written. Later calls of Push and Finish do nothing.
  void Finish(absl::Status status) override {
    {
      MutexLock lock(&mu_);
      if (state_ != State::kOpen) return;
      state_ = State::kEnding;
      final_ = std::move(status);
    }
    Advance();
  }

  // True after the client went away, the deadline passed or an overflow.
  bool cancelled() const override {
    MutexLock lock(&mu_);
    return cancelled_;
  }
  size_t buffered() const {
    MutexLock lock(&mu_);
    return buffer_.size();
  }

 private:
  enum class State { kOpen, kEnding, kFinished };

  StreamWriter(const StreamWriterOptions& options, std::function<void()> on_cancel)
      : options_(options), on_cancel_(std::move(on_cancel)) {}

  // Starts the next write, or the end, when none is outstanding. Calls gRPC without the lock: it may react inside.
  void Advance() {
    bool finish = false;
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (writing_ || state_ == State::kFinished) return;
      if (!buffer_.empty()) {
        current_ = std::move(buffer_.front());
        buffer_.pop_front();
        writing_ = true;
      } else if (state_ == State::kEnding) {
        state_ = State::kFinished;
        finish = true;
        status = final_;
      } else {
        return;
      }
    }
    if (finish) {
      grpc::ServerWriteReactor<Message>::Finish(ToGrpcStatus(status));
    } else {
      this->StartWrite(&current_);
    }
  }

  // The call broke; what is buffered cannot be delivered.
  void Abandon() {
    std::function<void()> cancel;
    {
      MutexLock lock(&mu_);
      buffer_.clear();
      if (state_ == State::kOpen) {
        state_ = State::kEnding;
        final_ = absl::CancelledError("the client went away or the deadline passed");
      }
      cancelled_ = true;
      cancel = std::exchange(on_cancel_, nullptr);
    }
    Advance();
    if (cancel) cancel();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
    }
    if (ok) {
      Advance();
    } else {
      Abandon();
    }
  }
  void OnCancel() override { Abandon(); }
  void OnDone() override {
    std::function<void()> drop;
    {
      MutexLock lock(&mu_);
      drop = std::exchange(on_cancel_, nullptr);
    }
    drop = nullptr;
    const std::shared_ptr<StreamWriter> last = std::move(self_);  // may delete this on return
  }

  const StreamWriterOptions options_;
  mutable Mutex mu_;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mu_);
  std::deque<Message> buffer_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpen;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status final_ ABSL_GUARDED_BY(mu_);
  Message current_;  // owned by the outstanding write
  std::shared_ptr<StreamWriter> self_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_STREAM_WRITER_H_
