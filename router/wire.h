// Messages to and from bytes, for services that read their requests themselves. gRPC answers a request that does not
// parse with UNIMPLEMENTED and no word of why; a string that is not UTF-8 is such a request, and its sender should hear
// of it.
#ifndef BATON_ROUTER_WIRE_H_
#define BATON_ROUTER_WIRE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::router {

// INVALID_ARGUMENT when `bytes` are not a Message, or a string in it is not UTF-8.
template <class Message>
absl::Status FromWire(const grpc::ByteBuffer& bytes, Message* message) {
  grpc::ByteBuffer consumed(bytes);  // shares the bytes
  if (grpc::SerializationTraits<Message>::Deserialize(&consumed, message).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the bytes are not a ", Message::descriptor()->full_name(),
                                                 ", or a string in it is not valid UTF-8; send UTF-8 text (or "
                                                 "token_ids)"));
}

template <class Message>
grpc::ByteBuffer ToWire(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

}  // namespace baton::router

#endif  // BATON_ROUTER_WIRE_H_
