// A transport over the simulated network: the real Claim on the sending side, the real Reception on the receiving one,
// and between them blocks that are read late, overtake one another, arrive twice, arrive damaged, or are still landing
// when nobody wants them any more.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_SIM_TRANSPORT_H_
#define BATON_TESTS_SIM_SIM_TRANSPORT_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/exporter.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/transport.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace baton::sim {

// One process's two halves: it serves `exporter` and fetches for itself.
class SimTransport final : public kvtransfer::TransportClient {
 public:
  static constexpr char kName[] = "sim";
  // Finds what answers at an endpoint's address; null: nothing.
  using Find = std::function<SimTransport*(const v1::Endpoint& endpoint)>;

  SimTransport(Network* network, ProcessPtr process, kvtransfer::Exporter* exporter,
               kvtransfer::ReceiverOptions receiver, Find find);
  ~SimTransport() override { Shutdown(); }

  absl::string_view name() const override { return kName; }
  kvtransfer::FetchId Fetch(kvtransfer::FetchRequest request, kvtransfer::FetchCallback done) override;
  void Cancel(kvtransfer::FetchId id) override;
  // Lets go of everything without a word: the schedule is over, or the process died.
  void Shutdown() override;

  size_t fetching() const { return jobs_.size(); }
  // The next so many blocks that arrive here come damaged.
  void Damage(int blocks) { to_damage_ += blocks; }
  uint64_t damaged() const { return damaged_; }
  // Tickets that it was given to fetch, the latest few.
  const std::deque<v1::Ticket>& seen() const { return seen_; }

  // Where simulations of a broken transport put their fault in (cluster_sim.h, Sabotage).
  bool frees_while_landing = false;

 private:
  struct Transfer;
  using TransferPtr = std::shared_ptr<Transfer>;
  struct Job {
    kvtransfer::Reception reception;
    kvtransfer::FetchCallback done;
    TransferPtr transfer;
    uint32_t retries = 0;
    bool heard = false;
    absl::Time silent_at;
    absl::Time begun;
    std::shared_ptr<int> landing = std::make_shared<int>(0);
    // Set when the fetch ended while blocks landed.
    std::shared_ptr<std::function<void()>> when_landed = std::make_shared<std::function<void()>>();
  };
  using JobPtr = std::shared_ptr<Job>;

  // The receiver's half.
  JobPtr Live(kvtransfer::FetchId id, const Transfer* transfer);
  void Begin(kvtransfer::FetchId id);
  void TakeBlock(kvtransfer::FetchId id, const TransferPtr& transfer, const v1::BlockSeal& seal,
                 const std::string& bytes);
  void TakeEnd(kvtransfer::FetchId id, const TransferPtr& transfer, const v1::TransferEnd& end);
  void Lost(kvtransfer::FetchId id, const TransferPtr& transfer);
  void Beat(kvtransfer::FetchId id, const TransferPtr& transfer);
  void EndIfComplete(kvtransfer::FetchId id);
  void End(kvtransfer::FetchId id, absl::StatusOr<kvtransfer::FetchResult> result);
  // The sender's.
  void Open(const TransferPtr& transfer, const v1::FetchOpen& open);
  void Pump(const TransferPtr& transfer);
  void SendBlock(const TransferPtr& transfer, const v1::BlockSeal& seal, const std::string& bytes);
  void ServerBeat(const TransferPtr& transfer);

  Network* const network_;
  const ProcessPtr process_;
  kvtransfer::Exporter* const exporter_;
  const kvtransfer::ReceiverOptions receiver_;
  const Find find_;
  kvtransfer::FetchId last_id_ = 0;
  std::map<kvtransfer::FetchId, JobPtr> jobs_;
  std::vector<std::weak_ptr<Transfer>> serving_;
  std::deque<v1::Ticket> seen_;
  int to_damage_ = 0;
  uint64_t damaged_ = 0;
};

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_SIM_TRANSPORT_H_
