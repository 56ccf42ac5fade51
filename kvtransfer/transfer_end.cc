#include "kvtransfer/transfer_end.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kvtransfer/block_tag.h"

namespace baton::kvtransfer {
namespace {

std::string Canonical(const v1::Ticket& ticket, const v1::TransferEnd& end) {
  return absl::StrCat("baton transfer end 1 ", TransferId::Of(ticket).ToString(), " ", end.code(), " ",
                      end.num_blocks(), " ", end.finished() ? 1 : 0, " ", end.message().size(), " ", end.message(),
                      end.payload());
}

uint64_t Sum(const std::string& text) { return BlockChecksum(std::as_bytes(std::span(text))); }

}  // namespace

void SealEnd(const ClusterKey& key, const v1::Ticket& ticket, v1::TransferEnd* end) {
  const std::string canonical = Canonical(ticket, *end);
  end->set_checksum(Sum(canonical));
  if (ticket.block_tags()) end->set_tag(BlockTagger(key, ticket).TagEnd(canonical));
}

absl::Status CheckEnd(const ClusterKey& key, const v1::Ticket& ticket, const v1::TransferEnd& end) {
  const std::string canonical = Canonical(ticket, end);
  if (end.checksum() != Sum(canonical)) {
    return absl::DataLossError("the transfer's last message arrived with a wrong checksum; prefill again");
  }
  if (ticket.block_tags() && !TagsEqual(BlockTagger(key, ticket).TagEnd(canonical), end.tag())) {
    return absl::PermissionDeniedError(
        "the transfer's last message arrived with a wrong tag: it was altered on the way; prefill again");
  }
  return absl::OkStatus();
}

}  // namespace baton::kvtransfer
