// What a worker process adds to serve the decode phase: fetch plus engine.
#ifndef BATON_DECODE_WORKER_ROLE_H_
#define BATON_DECODE_WORKER_ROLE_H_

#include "absl/status/statusor.h"
#include "common/rpc/worker_host.h"
#include "worker/parts.h"

namespace baton::decode_worker {

// A worker::ServeRole. When it returns, nothing of the role is left: its calls, tickets and leases have ended.
absl::StatusOr<rpc::WorkerHost::ServeEnd> ServeRole(const worker::Parts& parts);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_ROLE_H_
