// baton.v1.PrefillWorker: engine plus exporter. A prompt comes in, token 0 of every choice and a ticket for the KV go
// out.
#ifndef BATON_PREFILL_WORKER_SERVICE_H_
#define BATON_PREFILL_WORKER_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/inbox.h"
#include "common/metrics.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "proto/cluster.pb.h"
#include "proto/worker.grpc.pb.h"

namespace baton::prefill_worker {

// Thread contract: gRPC calls it from its threads. Model, exporter and metrics are not owned and outlive it; calls must
// have ended (server shut down) before it is destroyed.
class PrefillService : public v1::PrefillWorker::CallbackService {
 public:
  struct Options {
    engine::LoadedModel* model = nullptr;
    kvtransfer::Exporter* exporter = nullptr;
    engine::EngineMetrics* engine_metrics = nullptr;
    Metrics* metrics = nullptr;
    absl::Duration lease = absl::Seconds(30);
  };
  explicit PrefillService(const Options& options);
  ~PrefillService() override;

  // Events as in worker.proto. When the call is cancelled, or its deadline passes, the engine drops the request within
  // one step; an export that was made meanwhile is released.
  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* ReleaseTicket(grpc::CallbackServerContext* context, const v1::ReleaseTicketRequest* request,
                                          v1::ReleaseTicketResponse* response) override;

  // For WorkerHost's hooks.
  v1::WorkerLoad load() const;
  v1::PrefixReport prefixes(uint64_t version) const;
  void Drain();
  bool idle() const;

 private:
  class Call;

  void RunExports();

  const Options options_;
  prometheus::Histogram* export_seconds_;
  prometheus::Counter* bytes_exported_;
  std::shared_ptr<void> collect_;
  std::atomic<uint64_t> next_call_{0};
  std::atomic<int> open_calls_{0};
  // Checksumming a prompt's blocks takes milliseconds, which the engine's thread must not spend.
  Inbox<std::shared_ptr<Call>> exports_;
  std::thread export_thread_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SERVICE_H_
