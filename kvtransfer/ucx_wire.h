// The messages of the UCX transport. Each active message has a header of fixed size (little-endian, below) and a payload.
//
//   kFetch   client to server   prefix                                            payload: serialized Ticket
//   kStop    client to server   prefix, transfer id                               nothing
//   kBlock   server to client   prefix, transfer id, index, generation, checksum  payload: the block's bytes
//   kStatus  server to client   prefix, transfer id, code, blocks sent            payload: message, at most 512 bytes
//
// kStatus ends a transfer. No message carries a memory address: where a block lands is the client's own knowledge.
#ifndef BATON_KVTRANSFER_UCX_WIRE_H_
#define BATON_KVTRANSFER_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kvtransfer/ticket.h"

namespace baton::kvtransfer {

enum class UcxMessage : uint16_t { kFetch = 1, kStop = 2, kBlock = 3, kStatus = 4 };

inline constexpr size_t kMaxStatusText = 512;

struct BlockHeader {
  TransferId id;
  uint32_t block_idx = 0;
  uint64_t generation = 0;
  uint64_t checksum = 0;
};

struct StatusHeader {
  TransferId id;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint32_t num_blocks = 0;
};

std::string EncodeFetch();
std::string EncodeStop(TransferId id);
std::string EncodeBlock(const BlockHeader& block);
std::string EncodeStatus(const StatusHeader& status);

// nullopt (false) for a wrong size, magic, version, kind or value.
bool DecodeFetch(const void* header, size_t size);
std::optional<TransferId> DecodeStop(const void* header, size_t size);
std::optional<BlockHeader> DecodeBlock(const void* header, size_t size);
std::optional<StatusHeader> DecodeStatus(const void* header, size_t size);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_WIRE_H_
