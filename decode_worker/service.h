// baton.v1.DecodeWorker: fetch plus engine. A ticket comes in; its KV is fetched and verified, then tokens go out.
#ifndef BATON_DECODE_WORKER_SERVICE_H_
#define BATON_DECODE_WORKER_SERVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "common/metrics.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/transport.h"
#include "proto/worker.grpc.pb.h"

namespace baton::decode_worker {

// Thread contract: gRPC calls it from its threads. Model, transports and metrics are not owned and outlive it; calls
// must have ended (server shut down) before it is destroyed.
class DecodeService : public v1::DecodeWorker::CallbackService {
 public:
  struct Options {
    engine::LoadedModel* model = nullptr;
    // What can fetch, by Endpoint.transport ("ucx", "loopback").
    std::map<std::string, kvtransfer::TransportClient*> transports;
    kvtransfer::ClusterKey key;
    engine::EngineMetrics* engine_metrics = nullptr;
    Metrics* metrics = nullptr;
  };
  explicit DecodeService(const Options& options);
  ~DecodeService() override;

  // Events as in worker.proto. The ticket is checked (shape, MAC, layout, model, request) before any memory is
  // promised. When the call is cancelled, or its deadline passes, waiting, transfer and decode stop within one step and
  // all blocks come back.
  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext* context,
                                                    const v1::DecodeRequest* request) override;

  // For WorkerHost's hooks.
  v1::WorkerLoad load() const;
  void Drain();
  bool idle() const;

 private:
  class Call;

  // INVALID_ARGUMENT, PERMISSION_DENIED or FAILED_PRECONDITION with what is wrong.
  absl::Status CheckTicket(const v1::DecodeRequest& request) const;
  absl::Status Begin(const v1::DecodeRequest& request, absl::Time deadline, Call* call);

  const Options options_;
  const v1::KvLayout layout_;
  std::atomic<uint64_t> next_call_{0};
  std::atomic<int> open_calls_{0};
  std::atomic<int> fetching_{0};
  std::shared_ptr<void> collect_;  // reads the above, so it goes first
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SERVICE_H_
