// Transport inside one process: servers are found by incarnation in a registry, bytes are copied. All checks are those
// of the other transports.
#ifndef BATON_KVTRANSFER_LOOPBACK_H_
#define BATON_KVTRANSFER_LOOPBACK_H_

#include <atomic>
#include <memory>

#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

// Registers the exporter under its incarnation and sets its endpoint.
std::unique_ptr<TransportServer> MakeLoopbackServer(Exporter* exporter);
// Starts the thread that copies. `bytes_per_second` (not owned, read before each block) slows it down as a link would, all
// fetches together; null or 0: as fast as it goes.
std::unique_ptr<TransportClient> MakeLoopbackClient(ReceiverOptions options,
                                                    const std::atomic<double>* bytes_per_second = nullptr);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LOOPBACK_H_
