// baton.v1.DecodeWorker: fetch plus engine. Room is reserved, a ticket comes in, its KV is fetched and verified while it is
// still being computed, then tokens go out. Or, with local_prefill, the engine computes the prompt too.
#ifndef BATON_DECODE_WORKER_SERVICE_H_
#define BATON_DECODE_WORKER_SERVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/rpc/event_stream.h"
#include "common/tracing/tracer.h"
#include "decode_worker/decode_trace.h"
#include "decode_worker/feeds.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/transport.h"
#include "proto/cluster.pb.h"
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
    // What offers the KV of a finished turn back; null: nothing is offered.
    kvtransfer::Exporter* exporter = nullptr;
    absl::Duration history_lease = absl::Seconds(5);
    Clock* clock = Clock::Real();
    const tracing::Tracer* tracer = nullptr;  // null: nothing is traced here
  };
  explicit DecodeService(const Options& options);
  ~DecodeService() override;

  // Events as in worker.proto. The call owns all it holds here: when it is cancelled, or its deadline passes, waiting,
  // transfer and decode stop within one step and all blocks come back.
  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext* context,
                                                    const v1::DecodeRequest* request) override;
  // A ticket is checked (shape, MAC, layout, model, request) before anything is done with it.
  grpc::ServerUnaryReactor* UpdateDecode(grpc::CallbackServerContext* context, const v1::UpdateDecodeRequest* request,
                                         v1::UpdateDecodeResponse* response) override;
  grpc::ServerWriteReactor<v1::FeedBatch>* Feed(grpc::CallbackServerContext* context,
                                                const v1::FeedRequest* request) override;

  // The same whatever carries the calls: gRPC above, virtual messages in tests/sim. `make_stream` is called at once.
  // `trace`: the caller's; `ticket`: as if an update brought it at once (not with local_prefill).
  void Serve(const v1::DecodeRequest& request, absl::Time deadline,
             const rpc::MakeEventStream<v1::DecodeEvent>& make_stream,
             const std::optional<tracing::SpanContext>& trace = std::nullopt, const v1::Ticket* ticket = nullptr);
  absl::Status Update(const v1::UpdateDecodeRequest& request);

  // For WorkerHost's hooks.
  v1::WorkerLoad load() const;
  v1::PrefixReport prefixes(uint64_t version) const;
  void Drain();
  bool idle() const;

 private:
  class Call;
  using CallKey = std::pair<std::string, uint32_t>;  // request id, epoch

  // INVALID_ARGUMENT, PERMISSION_DENIED or FAILED_PRECONDITION with what is wrong.
  absl::Status CheckTicket(const v1::Ticket& ticket, const Call& call) const;
  absl::Status TakeTicket(const v1::Ticket& ticket, const std::shared_ptr<Call>& call) const;
  // The first of the ticket's transports that this worker has; null: none.
  kvtransfer::TransportClient* TransportFor(const v1::Ticket& ticket) const;
  absl::Status Begin(const v1::DecodeRequest& request, absl::Time deadline, const std::shared_ptr<Call>& call);
  std::shared_ptr<Call> Find(const CallKey& key);
  void Forget(const CallKey& key, const Call* call);
  void RecordFetch(const std::string& peer, absl::string_view transport,
                   const absl::StatusOr<kvtransfer::FetchResult>& result);

  const Options options_;
  const v1::KvLayout layout_;
  const std::shared_ptr<Feeds> feeds_ = std::make_shared<Feeds>();
  std::atomic<uint64_t> next_call_{0};
  std::atomic<int> open_calls_{0};
  std::atomic<int> fetching_{0};
  std::atomic<uint64_t> impossible_{0};
  Mutex mu_;
  std::map<CallKey, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<void> collect_;  // reads the above, so it goes first
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SERVICE_H_
