// The messages of the UCX transport. Each active message has a header of fixed size (little-endian, below) and a payload.
//
//   kFetch  client to server  prefix                                                 payload: serialized FetchOpen
//   kStop   client to server  prefix, transfer id                                    nothing
//   kBlock  server to client  prefix, transfer id, index, offset, generation, checksum, tag
//                                                                                    payload: a piece of the block
//   kEnd    server to client  prefix, transfer id                                    payload: serialized TransferEnd
//   kBeat   both ways         prefix, transfer id                                    nothing
//
// kEnd ends a transfer. No message carries a memory address: where a block lands is the client's own knowledge.
#ifndef BATON_KVTRANSFER_UCX_WIRE_H_
#define BATON_KVTRANSFER_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kvtransfer/ticket.h"

namespace baton::kvtransfer {

enum class UcxMessage : uint16_t { kFetch = 1, kStop = 2, kBlock = 3, kEnd = 4, kBeat = 5 };

struct BlockHeader {
  TransferId id;
  uint64_t offset = 0;  // of the piece in the block
  v1::BlockSeal seal;   // as BlockPiece's; without a tag it travels as zeros
};

std::string EncodeFetch();
std::string EncodeStop(TransferId id);
std::string EncodeBlock(const BlockHeader& block);
std::string EncodeEnd(TransferId id);
std::string EncodeBeat(TransferId id);

// nullopt (false) for a wrong size, magic, version, kind or value.
bool DecodeFetch(const void* header, size_t size);
std::optional<TransferId> DecodeStop(const void* header, size_t size);
std::optional<BlockHeader> DecodeBlock(const void* header, size_t size);
std::optional<TransferId> DecodeEnd(const void* header, size_t size);
std::optional<TransferId> DecodeBeat(const void* header, size_t size);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_WIRE_H_
