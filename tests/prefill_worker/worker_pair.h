// A prefill worker, a decode worker and the one-process oracle, all in this process, over real gRPC on loopback.
#ifndef BATON_TESTS_PREFILL_WORKER_WORKER_PAIR_H_
#define BATON_TESTS_PREFILL_WORKER_WORKER_PAIR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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
  int max_batch_tokens = 512;
  bool history = false;  // decode offers what it computed back
  bool tags = false;     // keyed tags on blocks
  std::string model;     // path; empty: a tiny one, with blocks of 8
  const std::atomic<double>* link_bytes_per_second = nullptr;  // loopback: slows the hand-over down
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
  kvtransfer::Exporter* exporter() { return exporter_.get(); }
  kvtransfer::TransportServer* transport_server() { return transport_server_.get(); }
  const kvtransfer::ClusterKey& key() const { return key_; }
  Gate* prefill_gate() { return &prefill_gate_; }
  Gate* decode_gate() { return &decode_gate_; }
  std::string PrefillMetrics() { return prefill_metrics_.Expose(); }
  std::string DecodeMetrics() { return decode_metrics_.Expose(); }

  // One Prefill, read by a thread of its own. Its end comes when the KV was fetched, given back or never handed over.
  class PrefillCall {
   public:
    PrefillCall(WorkerPair* pair, const v1::PrefillRequest& request, absl::Duration timeout = absl::Seconds(60));
    ~PrefillCall();  // cancels
    // Waits; false when the call ended without.
    bool AwaitTicket();
    bool AwaitPrefilled();
    grpc::Status Wait();
    void Cancel() { context_.TryCancel(); }
    // After AwaitTicket, AwaitPrefilled or Wait:
    v1::Ticket ticket;
    std::vector<v1::SampledToken> first_tokens;
    absl::Time first_token_at;
    v1::Prefilled prefilled;

   private:
    void Read(const v1::PrefillRequest& request);
    WorkerPair* const pair_;
    grpc::ClientContext context_;
    Mutex mu_;
    CondVar cv_;
    bool has_ticket_ ABSL_GUARDED_BY(mu_) = false;
    bool has_prefilled_ ABSL_GUARDED_BY(mu_) = false;
    bool ended_ ABSL_GUARDED_BY(mu_) = false;
    grpc::Status status_ ABSL_GUARDED_BY(mu_);
    std::thread thread_;
  };
  // One Decode, likewise.
  class DecodeCall {
   public:
    // `on_event` may cancel through the context.
    DecodeCall(WorkerPair* pair, const v1::DecodeRequest& request, absl::Duration timeout = absl::Seconds(60),
               std::function<void(grpc::ClientContext*)> on_event = nullptr);
    ~DecodeCall();  // cancels
    bool AwaitReserved();
    grpc::Status Wait();
    void Cancel() { context_.TryCancel(); }
    // After Wait (reserved: after AwaitReserved):
    v1::Reserved reserved;
    v1::Fetched fetched;
    bool has_fetched = false;
    std::vector<v1::SampledToken> tokens;
    absl::Time first_token_at;
    v1::DecodeDone done;
    bool has_done = false;

   private:
    void Read(const v1::DecodeRequest& request);
    WorkerPair* const pair_;
    const std::function<void(grpc::ClientContext*)> on_event_;
    grpc::ClientContext context_;
    Mutex mu_;
    CondVar cv_;
    bool has_reserved_ ABSL_GUARDED_BY(mu_) = false;
    bool ended_ ABSL_GUARDED_BY(mu_) = false;
    grpc::Status status_ ABSL_GUARDED_BY(mu_);
    std::thread thread_;
  };
  // The decode request that goes with a prefill.
  static v1::DecodeRequest Matching(const v1::PrefillRequest& request);
  grpc::Status Update(const v1::UpdateDecodeRequest& request);
  grpc::Status ImportHistory(const v1::PrefillRequest& request, const std::vector<int32_t>& ids,
                             const v1::Ticket& ticket, v1::ImportHistoryResponse* response);
  grpc::Status Present(const v1::PrefillRequest& request, const v1::Ticket& ticket);
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
  std::unique_ptr<kvtransfer::Exporter> exporter_, history_exporter_;
  std::unique_ptr<kvtransfer::TransportServer> transport_server_, history_server_;
  std::unique_ptr<kvtransfer::TransportClient> transport_client_, history_client_;
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
