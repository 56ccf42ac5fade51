// The one server-streaming reactor: any thread pushes messages, gRPC's threads write them, nobody ever waits.
//
// The owner gives gRPC the raw pointer (return it from the service's method) and keeps a shared_ptr. The object lives
// until both gRPC is done with the call and the last shared_ptr is gone.
//
//   auto stream = StreamWriter<Event>::Create({}, [=] { engine->Cancel(id); });
//   ...start work that calls stream->Push(event) and, exactly once at its end, stream->Finish(status)...
//   return stream.get();
//
// What is pushed may be smaller than a message: a Gather says how many of the items that wait go into the next one.
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
  // Items pushed and not yet taken by the transport. One more ends the call with RESOURCE_EXHAUSTED: a reader that
  // slow must not hold memory here. (Flow control of HTTP/2 buffers 64 KiB besides.)
  size_t max_buffered = 4096;
};

// Each item is a message.
template <class Message>
struct OneByOne {
  using Item = Message;
  // `waiting` is not empty; takes at least its first. Called by one thread at a time.
  void Take(std::deque<Item>* waiting, Message* next) {
    *next = std::move(waiting->front());
    waiting->pop_front();
  }
};

// Thread contract: Push, Hold, Flush and Finish are thread-safe and return at once. on_cancel runs once at most, on a gRPC thread or
// inside Push (overflow); it must not block.
template <class Message, class Gather = OneByOne<Message>>
class StreamWriter final : public grpc::ServerWriteReactor<Message>,
                           public EventStream<typename Gather::Item>,
                           public std::enable_shared_from_this<StreamWriter<Message, Gather>> {
 public:
  using Item = typename Gather::Item;

  // `on_cancel` is called when the client went away, the deadline passed, the server is shutting down or the buffer
  // overflowed: before Finish, or after it when the end of the stream could not be sent any more. It is dropped (with
  // what it captured) when the call is done.
  static std::shared_ptr<StreamWriter> Create(const StreamWriterOptions& options, std::function<void()> on_cancel,
                                              Gather gather = {}) {
    std::shared_ptr<StreamWriter> writer(new StreamWriter(options, std::move(on_cancel), std::move(gather)));
    writer->self_ = writer;
    return writer;
  }

  // False when the item will not be sent: the call is over, or this item overflowed the buffer.
  bool Push(Item item) override {
    if (!Hold(std::move(item))) return false;
    Advance();
    return true;
  }

  // As Push, but no write is begun for it before Flush: what comes at once can go into one message.
  bool Hold(Item item) {
    std::function<void()> cancel;
    {
      MutexLock lock(&mu_);
      if (state_ != State::kOpen) return false;
      if (buffer_.size() < options_.max_buffered) {
        buffer_.push_back(std::move(item));
        return true;
      }
      state_ = State::kEnding;
      final_ = absl::ResourceExhaustedError(absl::StrCat("the reader is too slow: ", buffer_.size(),
                                                         " messages wait; read the stream or ask for less"));
      buffer_.clear();
      cancelled_ = true;
      cancel = std::exchange(on_cancel_, nullptr);
    }
    Advance();
    if (cancel) cancel();
    return false;
  }

  void Flush() { Advance(); }

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

  StreamWriter(const StreamWriterOptions& options, std::function<void()> on_cancel, Gather gather)
      : options_(options), on_cancel_(std::move(on_cancel)), gather_(std::move(gather)) {}

  // Starts the next write, or the end, when none is outstanding. Calls gRPC without the lock: it may react inside.
  void Advance() {
    bool finish = false;
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (writing_ || state_ == State::kFinished) return;
      if (!buffer_.empty()) {
        gather_.Take(&buffer_, &current_);
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
  Gather gather_ ABSL_GUARDED_BY(mu_);
  std::deque<Item> buffer_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpen;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status final_ ABSL_GUARDED_BY(mu_);
  Message current_;  // owned by the outstanding write
  std::shared_ptr<StreamWriter> self_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_STREAM_WRITER_H_
