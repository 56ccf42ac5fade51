#include "kvtransfer/receiver.h"

#include "absl/strings/str_cat.h"

namespace baton::kvtransfer {

absl::Status CheckFetch(const ReceiverOptions& receiver, absl::string_view transport, const v1::Ticket& ticket,
                        const kvcache::BlockLease& destination) {
  absl::Status s = CheckTicketForFetch(receiver.key, ticket, receiver.layout, receiver.fingerprint);
  if (!s.ok()) return s;
  if (transport != ticket.endpoint().transport()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the prefill worker hands over by ", ticket.endpoint().transport(), ", this worker by ", transport,
                     "; start both with the same kv_transport"));
  }
  const size_t have = destination.blocks().size();
  const size_t need = static_cast<size_t>(ticket.blocks_size());
  if (have < need) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket names ", need, " blocks, only ", have, " were reserved for them"));
  }
  if (destination.bytes(0).size() != receiver.layout.block_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the reserved blocks have ", destination.bytes(0).size(),
                                                   " bytes, the layout says ", receiver.layout.block_bytes()));
  }
  return absl::OkStatus();
}

absl::Status CheckBlockHeader(const v1::Ticket& ticket, const ArrivedBlock& block, size_t length, size_t block_bytes) {
  if (block.block_idx >= static_cast<size_t>(ticket.blocks_size())) {
    return absl::DataLossError(absl::StrCat("block ", block.block_idx, " arrived, but the ticket names only ",
                                            ticket.blocks_size()));
  }
  if (length != block_bytes) {
    return absl::DataLossError(absl::StrCat("block ", block.block_idx, " arrived with ", length, " bytes instead of ",
                                            block_bytes));
  }
  const v1::BlockSlot& slot = ticket.blocks(static_cast<int>(block.block_idx));
  if (block.generation != slot.generation()) {
    return absl::AbortedError(absl::StrCat("block ", block.block_idx, " is of generation ", block.generation,
                                           ", the ticket names ", slot.generation(), "; prefill again"));
  }
  if (block.checksum != slot.checksum()) {
    return absl::DataLossError(absl::StrCat("block ", block.block_idx,
                                            " was announced with another checksum than the ticket's; prefill again"));
  }
  return absl::OkStatus();
}

absl::Status CheckBlockBytes(const v1::Ticket& ticket, size_t block_idx, std::span<const std::byte> bytes) {
  if (BlockChecksum(bytes) == ticket.blocks(static_cast<int>(block_idx)).checksum()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("block ", block_idx, " arrived with a wrong checksum; its bytes are discarded, prefill again"));
}

}  // namespace baton::kvtransfer
