// The frames of the gRPC transport, sender to receiver: 4 bytes length of the header (little-endian), the header
// (v1::KvFrameHeader), then bytes of a block up to the frame's end. Blocks' bytes are neither copied when a frame is made
// nor more than once when it is taken.
//
// Thread contract: plain functions.
#ifndef BATON_KVTRANSFER_GRPC_WIRE_H_
#define BATON_KVTRANSFER_GRPC_WIRE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "proto/kv_transport.pb.h"

namespace baton::kvtransfer {

inline constexpr char kGrpcFetchMethod[] = "/baton.v1.KvTransport/Fetch";
inline constexpr size_t kMaxFrameBytes = 1 << 20;          // of a block, in one frame
inline constexpr size_t kMaxFrameHeaderBytes = 128 << 10;  // an end with its payload is the longest

// `data` may be null.
grpc::ByteBuffer EncodeFrame(const v1::KvFrameHeader& header, const grpc::Slice* data);

// A frame taken apart; `data` refers to `slices`.
struct Frame {
  v1::KvFrameHeader header;
  std::vector<grpc::Slice> slices;
  std::vector<std::span<const std::byte>> data;
  size_t data_bytes = 0;
};
// nullopt: not a frame, or beyond its bounds.
std::optional<Frame> DecodeFrame(const grpc::ByteBuffer& buffer);

grpc::ByteBuffer EncodeFetchMessage(const v1::KvFetchMessage& message);
std::optional<v1::KvFetchMessage> DecodeFetchMessage(const grpc::ByteBuffer& buffer);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_GRPC_WIRE_H_
