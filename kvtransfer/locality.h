// An address on loopback means something only where it was taken: which processes share a loopback.
#ifndef BATON_KVTRANSFER_LOCALITY_H_
#define BATON_KVTRANSFER_LOCALITY_H_

#include <string>

#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// Whether a process here can reach `endpoint` at all: one on loopback only from the same network namespace.
bool IsReachable(const v1::Endpoint& endpoint);
// Names this process's network namespace, on this boot of this host. What endpoints on loopback carry.
const std::string& NetworkLocality();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LOCALITY_H_
