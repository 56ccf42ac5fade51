// The router of the simulation: the real table, placement, admission, membership and request drivers over a simulated
// network and timers.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_SIM_ROUTER_H_
#define BATON_TESTS_SIM_SIM_ROUTER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "router/placement.h"
#include "router/request_driver.h"
#include "router/request_table.h"
#include "router/router_metrics.h"
#include "router/timers.h"
#include "router/worker_link.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/world.h"

namespace baton::sim {

// The attempt that a worker's event belongs to, while the router handles it.
struct Source {
  std::string request_id;
  uint32_t epoch = 0;
  router::WorkerId worker;
};

class SimRouter final : public router::WorkerLink, public router::Timers {
 public:
  // Null: no such process ever was. Dead ones are found too: their ports answer no more.
  using FindWorker = std::function<SimWorker*(const router::WorkerId&)>;

  SimRouter(Network* network, ProcessPtr process, FindWorker find);
  ~SimRouter() override;

  void Start() { Tick(); }
  // As the intake does, for a request that is valid.
  std::shared_ptr<router::RequestDriver> Submit(router::AdmittedRequest request, absl::Time deadline,
                                                std::unique_ptr<router::ClientStream> client);
  SimWorker::Router membership();
  // Whether that worker is a member that takes requests.
  bool Has(const router::WorkerId& id) const;
  // What it still has of requests that are over; empty: nothing.
  std::string Held();
  // Lets go of everything, whoever still wants it.
  void TearDown();

  // The event that is being handled; null: none is.
  const Source* source() const { return source_; }
  // Whether the router may still take a token of that attempt.
  bool IsCurrent(const Source& source) const;
  const ProcessPtr& process() const { return process_; }
  uint32_t attempts(const std::string& request_id) const;

  // router::WorkerLink
  std::shared_ptr<router::WorkerCall> Prefill(router::StartPrefill command, absl::Time deadline,
                                              std::function<void(v1::PrefillEvent&)> on_event, OnEnd on_end) override;
  std::shared_ptr<router::WorkerCall> Decode(router::StartDecode command, absl::Time deadline,
                                             OnDecodeEvents on_events, OnEnd on_end) override;
  void Update(const router::UpdateDecode& command, absl::Time deadline, OnEnd failed) override;
  void Offer(const router::OfferHistory& command) override;
  // router::Timers
  std::unique_ptr<router::Timer> After(absl::Duration delay, std::function<void()> then) override;

 private:
  void Tick();
  void OnGone(const router::WorkerId& id, const std::string& why);
  template <class Event, class Request>
  std::shared_ptr<router::WorkerCall> Open(const router::WorkerRef& worker, const Request& request,
                                           absl::Time deadline, std::function<void(Event&)> on_event, OnEnd on_end,
                                           std::function<void(SimWorker*, const rpc::MakeEventStream<Event>&)> serve);

  Network* const network_;
  const ProcessPtr process_;
  const FindWorker find_;
  router::RequestTable table_{1000};
  router::ClusterView view_;
  router::Placement placement_;
  Metrics metrics_;
  router::RouterMetrics router_metrics_;
  std::unique_ptr<router::TextMaker> text_;
  router::DriverContext context_;
  const Source* source_ = nullptr;
  std::map<std::string, uint32_t> newest_epoch_;
  std::set<router::WorkerId> gone_;
  std::vector<std::weak_ptr<router::RequestDriver>> drivers_;
  std::vector<std::function<void()>> drop_calls_;
};

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_SIM_ROUTER_H_
