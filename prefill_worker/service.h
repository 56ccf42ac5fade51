// baton.v1.PrefillWorker: engine plus exporter. A prompt comes in; a ticket for its KV goes out as soon as the first chunk
// is scheduled, then token 0 of every choice.
#ifndef BATON_PREFILL_WORKER_SERVICE_H_
#define BATON_PREFILL_WORKER_SERVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/rpc/event_stream.h"
#include "common/tracing/tracer.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"
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
    // What fetches history, by Endpoint.transport; empty: none is imported.
    std::map<std::string, kvtransfer::TransportClient*> transports;
    kvtransfer::ClusterKey key;
    Clock* clock = Clock::Real();
    const tracing::Tracer* tracer = nullptr;  // null: nothing is traced here
  };
  explicit PrefillService(const Options& options);
  ~PrefillService() override;

  // Events as in worker.proto. The call owns its export: when it is cancelled, or its deadline passes, the engine drops
  // the request within one step and the export is given back (when its readers have stopped).
  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override;

  grpc::ServerUnaryReactor* ImportHistory(grpc::CallbackServerContext* context, const v1::ImportHistoryRequest* request,
                                          v1::ImportHistoryResponse* response) override;

  // The same whatever carries the calls: gRPC above, virtual messages in tests/sim. `make_stream` is called once, at
  // once; `trace`: the caller's; `done` once, at once or later.
  void Serve(const v1::PrefillRequest& request, absl::Time deadline,
             const rpc::MakeEventStream<v1::PrefillEvent>& make_stream,
             const std::optional<tracing::SpanContext>& trace = std::nullopt);
  using ImportDone = std::function<void(const absl::Status&, const v1::ImportHistoryResponse&)>;
  void Import(const v1::ImportHistoryRequest& request, ImportDone done);

  // For WorkerHost's hooks.
  v1::WorkerLoad load() const;
  v1::PrefixReport prefixes(uint64_t version) const;
  void Drain();
  bool idle() const;

 private:
  class Call;
  class HistoryImport;

  // The first of the ticket's transports that this worker has; null: none.
  kvtransfer::TransportClient* TransportFor(const v1::Ticket& ticket) const;
  absl::Status CheckHistory(const v1::ImportHistoryRequest& request) const;

  const Options options_;
  prometheus::Counter* bytes_exported_;
  std::shared_ptr<void> collect_;
  std::atomic<uint64_t> next_call_{0};
  std::atomic<int> open_calls_{0};
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SERVICE_H_
