// Which transports a worker runs, from its settings: what both kinds of worker need to serve KV and to fetch it.
//
//   kv_transport  serves                                          fetches by
//   auto          ucx (on loopback; with kv_network_trusted on    ucx where it reaches the worker, else grpc; grpc also
//                 the interface of `listen`), and grpc            when the ucx link dies in the middle of a request
//   ucx           ucx                                             ucx
//   grpc          grpc                                            grpc
//   nccl          nccl (as ucx, on loopback or a trusted network), nccl where it reaches the worker, else grpc; grpc also
//                 and grpc                                        when the nccl link dies in the middle of a request
#ifndef BATON_KVTRANSFER_KV_TRANSPORTS_H_
#define BATON_KVTRANSFER_KV_TRANSPORTS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/security.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/failover_client.h"
#include "kvtransfer/transport.h"
#include "proto/config.pb.h"

namespace baton::kvtransfer {

// In the order in which tickets name them. The gRPC server always runs, for OpenLink; with kv_transport=ucx tickets do
// not name it. `link_service` may be null; not owned.
// INVALID_ARGUMENT, FAILED_PRECONDITION: settings (loopback between processes, a wildcard address, plain text beyond
// loopback; nccl in a program without it). UNAVAILABLE: UCX or a port.
absl::StatusOr<std::vector<std::unique_ptr<TransportServer>>> StartKvServers(const v1::Config& config,
                                                                            const rpc::Security& security,
                                                                            Exporter* exporter,
                                                                            grpc::Service* link_service,
                                                                            kernels::DeviceSpace* device = nullptr);

// `device`: NcclOptions::device, where the model's KV goes without the host's memory.
// `exporters`: the role of the workers that it fetches from.
absl::StatusOr<std::unique_ptr<FailoverClient>> StartKvClient(const v1::Config& config, const rpc::Security& security,
                                                              ReceiverOptions receiver, rpc::PeerRole exporters,
                                                              FailoverOptions options,
                                                              kernels::DeviceSpace* device = nullptr);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_KV_TRANSPORTS_H_
