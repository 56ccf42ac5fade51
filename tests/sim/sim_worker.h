// One life of one worker in the simulation: the real service, engine core and exporter around a simulated transport.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_SIM_WORKER_H_
#define BATON_TESTS_SIM_SIM_WORKER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "decode_worker/service.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "prefill_worker/service.h"
#include "proto/cluster.pb.h"
#include "router/cluster_view.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_engine.h"
#include "tests/sim/sim_transport.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int kVocabulary = 101;
inline constexpr int kMaxContext = 400;
inline constexpr absl::Duration kLease = absl::Milliseconds(300);

class SimWorker {
 public:
  // Its membership: how it speaks to the router, whichever one answers now.
  struct Router {
    ProcessPtr process;
    router::ClusterView* view = nullptr;
    std::function<void()> on_change;
  };

  SimWorker(Network* network, ProcessPtr process, router::Role role, int64_t num_blocks, int max_batch_tokens,
            bool block_tags, SimTransport::Find find, std::function<Router()> find_router);
  ~SimWorker();

  // Registers, then heartbeats.
  void Join();
  // As SIGTERM: takes no more, ends what it has, says good-bye; `left` runs then.
  void Drain(std::function<void()> left);
  // Lets go of everything: the process died, or the schedule is over. Nothing of this is seen outside. The object stays
  // until the schedule's end, for what is on its way to it.
  void TearDown();
  // What it holds that it should not once nothing runs; empty: nothing.
  std::string Held();

  const ProcessPtr& process() const { return process_; }
  router::Role role() const { return role_; }
  SimTransport* transport() { return transport_.get(); }
  kvtransfer::Exporter* exporter() { return exporter_.get(); }
  prefill_worker::PrefillService* prefill() { return prefill_.get(); }
  decode_worker::DecodeService* decode() { return decode_.get(); }
  // Calls that the router has here.
  std::vector<std::function<void()>> drop_calls;

 private:
  v1::WorkerInfo Info() const;
  void Register();
  void Beat();
  void OnAnswer(const absl::Status& status, uint64_t prefix_version);
  bool Idle() const;

  Network* const network_;
  const ProcessPtr process_;
  const router::Role role_;
  const int64_t num_blocks_;
  const std::function<Router()> find_router_;
  Metrics metrics_;
  engine::EngineMetrics engine_metrics_{&metrics_};
  SimEngine* engine_ = nullptr;  // the model's
  std::unique_ptr<engine::LoadedModel> model_;
  std::unique_ptr<kvtransfer::Exporter> exporter_;
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<prefill_worker::PrefillService> prefill_;
  std::unique_ptr<decode_worker::DecodeService> decode_;
  bool draining_ = false;
  std::function<void()> left_;
  uint64_t prefix_version_ = 0;
};

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_SIM_WORKER_H_
