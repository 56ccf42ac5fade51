// The integrity of a transfer's last message: a checksum always, a keyed tag where the ticket wants tags.
#ifndef BATON_KVTRANSFER_TRANSFER_END_H_
#define BATON_KVTRANSFER_TRANSFER_END_H_

#include "absl/status/status.h"
#include "kvtransfer/ticket.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// Sets checksum and tag over what the message says and whose transfer it ends.
void SealEnd(const ClusterKey& key, const v1::Ticket& ticket, v1::TransferEnd* end);
// DATA_LOSS for a wrong checksum, PERMISSION_DENIED for a wrong tag.
absl::Status CheckEnd(const ClusterKey& key, const v1::Ticket& ticket, const v1::TransferEnd& end);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_END_H_
