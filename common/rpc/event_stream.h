// Where the events of one call go: what a service's calls write to, whoever carries it.
#ifndef BATON_COMMON_RPC_EVENT_STREAM_H_
#define BATON_COMMON_RPC_EVENT_STREAM_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace baton::rpc {

// Thread contract: thread-safe; nothing waits.
template <class Message>
class EventStream {
 public:
  virtual ~EventStream() = default;
  // False when the message will not be sent: the call is over.
  virtual bool Push(Message message) = 0;
  // Ends the call with `status` behind everything pushed before. Later calls of Push and Finish do nothing.
  virtual void Finish(absl::Status status) = 0;
  // True after the caller went away, or its deadline passed.
  virtual bool cancelled() const = 0;
};

// Makes a call's stream. `on_cancel` runs once at most, when the caller went away or its deadline passed; it must not
// block, and is dropped, with what it captured, when the call is done.
template <class Message>
using MakeEventStream = std::function<std::shared_ptr<EventStream<Message>>(std::function<void()> on_cancel)>;

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_EVENT_STREAM_H_
