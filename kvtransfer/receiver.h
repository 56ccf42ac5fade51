// What a receiving side checks, whatever carried the bytes: the ticket before, each block after.
#ifndef BATON_KVTRANSFER_RECEIVER_H_
#define BATON_KVTRANSFER_RECEIVER_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

// What the sender says of one block beside its bytes.
struct ArrivedBlock {
  size_t block_idx = 0;
  uint64_t generation = 0;
  uint64_t checksum = 0;
};

// CheckTicketForFetch, and that the ticket is for `transport`, and that `destination` has room for each of its blocks.
absl::Status CheckFetch(const ReceiverOptions& receiver, absl::string_view transport, const v1::Ticket& ticket,
                        const kvcache::BlockLease& destination);

// Before any byte is taken: the block exists, has the expected length and the generation that the ticket names.
// DATA_LOSS or ABORTED.
absl::Status CheckBlockHeader(const v1::Ticket& ticket, const ArrivedBlock& block, size_t length, size_t block_bytes);

// After the last byte: DATA_LOSS unless the bytes have the checksum that the ticket (not the sender) names.
absl::Status CheckBlockBytes(const v1::Ticket& ticket, size_t block_idx, std::span<const std::byte> bytes);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_RECEIVER_H_
