// Where one request's answer goes: a gRPC stream or an HTTP answer.
#ifndef BATON_ROUTER_CLIENT_STREAM_H_
#define BATON_ROUTER_CLIENT_STREAM_H_

#include "absl/status/status.h"
#include "proto/inference.pb.h"

namespace baton::router {

// Called by the request's driver, one call after another; must not block. A client that goes away tells the driver
// (RequestDriver::ClientGone) and may be called after that; it keeps the driver alive until then.
class ClientStream {
 public:
  virtual ~ClientStream() = default;
  virtual void Push(v1::GenerateResponse response) = 0;
  // There is nothing more to push right now: whoever gathered messages since the last one sends them.
  virtual void Flush() {}
  // Once, last.
  virtual void Finish(absl::Status status) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CLIENT_STREAM_H_
