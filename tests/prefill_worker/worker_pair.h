// A prefill worker, a decode worker and the one-process oracle, all in this process, over real gRPC on loopback.
#ifndef BATON_TESTS_PREFILL_WORKER_WORKER_PAIR_H_
#define BATON_TESTS_PREFILL_WORKER_WORKER_PAIR_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/mutex.h"
#include "common/rpc/server.h"
#include "decode_worker/service.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"
#include "prefill_worker/service.h"
#include "proto/worker.grpc.pb.h"

namespace baton::testing {

// Holds an engine's thread inside a forward pass: the way to be sure that a request is running.
class Gate {
 public:
  void Close();
  void Open();
  // Waits until somebody stands at the closed gate.
  void AwaitArrival();
  void Pass();

 private:
  Mutex mu_;
  CondVar cv_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

struct PairOptions {
  std::string transport = "loopback";  // or "ucx"
  int kv_mib = 4;
  absl::Duration lease = absl::Seconds(30);
};

class WorkerPair {
 public:
  explicit WorkerPair(const PairOptions& options = {});
  // Checks that every block came back.
  ~WorkerPair();

  v1::PrefillWorker::Stub* prefill() { return prefill_stub_.get(); }
  v1::DecodeWorker::Stub* decode() { return decode_stub_.get(); }
  prefill_worker::PrefillService* prefill_service() { return prefill_service_.get(); }
  decode_worker::DecodeService* decode_service() { return decode_service_.get(); }
  engine::LoadedModel* prefill_model() { return prefill_model_.get(); }
  engine::LoadedModel* decode_model() { return decode_model_.get(); }
  const kvtransfer::ClusterKey& key() const { return key_; }
  Gate* prefill_gate() { return &prefill_gate_; }
  Gate* decode_gate() { return &decode_gate_; }
  std::string PrefillMetrics() { return prefill_metrics_.Expose(); }
  std::string DecodeMetrics() { return decode_metrics_.Expose(); }

  struct PrefillResult {
    grpc::Status status;
    std::vector<v1::SampledToken> first_tokens;
    v1::Prefilled prefilled;
    bool has_prefilled = false;
  };
  PrefillResult Prefill(const v1::PrefillRequest& request);
  struct DecodeResult {
    grpc::Status status;
    std::vector<v1::SampledToken> tokens;
    v1::Fetched fetched;
    v1::DecodeDone done;
    bool has_fetched = false;
    bool has_done = false;
  };
  // `on_event` may cancel through the context.
  DecodeResult Decode(const v1::DecodeRequest& request, absl::Duration timeout = absl::Seconds(60),
                      const std::function<void(grpc::ClientContext*)>& on_event = nullptr);
  // The decode request that follows a prefill.
  static v1::DecodeRequest Next(const v1::PrefillRequest& request, const PrefillResult& prefilled);
  // Token ids by choice, from the whole way through both workers. Fails the test on any error.
  std::vector<std::vector<int32_t>> Generate(const v1::PrefillRequest& request);
  // The same from one engine alone.
  std::vector<std::vector<int32_t>> Oracle(const v1::PrefillRequest& request);

  // Waits until both engines hold nothing but cached blocks and the ledgers balance; false after 20 s.
  bool AwaitQuiet();

 private:
  const kvtransfer::ClusterKey key_ = kvtransfer::ClusterKey::Random();
  Metrics prefill_metrics_, decode_metrics_;
  engine::EngineMetrics prefill_engine_metrics_{&prefill_metrics_}, decode_engine_metrics_{&decode_metrics_};
  Gate prefill_gate_, decode_gate_;
  std::unique_ptr<engine::LoadedModel> prefill_model_, decode_model_, oracle_;
  std::shared_ptr<void> prefill_collect_, decode_collect_;
  std::unique_ptr<kvtransfer::Exporter> exporter_;
  std::unique_ptr<kvtransfer::TransportServer> transport_server_;
  std::unique_ptr<kvtransfer::TransportClient> transport_client_;
  std::unique_ptr<prefill_worker::PrefillService> prefill_service_;
  std::unique_ptr<decode_worker::DecodeService> decode_service_;
  std::unique_ptr<rpc::Server> prefill_server_, decode_server_;
  std::unique_ptr<v1::PrefillWorker::Stub> prefill_stub_;
  std::unique_ptr<v1::DecodeWorker::Stub> decode_stub_;
};

// A valid request on the tiny model: `num_tokens` prompt ids out of `seed`, greedy, max_tokens 8.
v1::PrefillRequest MakePrefill(const std::string& id, int num_tokens, uint64_t seed = 1);

}  // namespace baton::testing

#endif  // BATON_TESTS_PREFILL_WORKER_WORKER_PAIR_H_
