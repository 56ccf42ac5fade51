// The receiving half over UCX. ucx_client.cc has the life of a fetch, ucx_client_conn.cc connections and messages.
#ifndef BATON_KVTRANSFER_UCX_CLIENT_IMPL_H_
#define BATON_KVTRANSFER_UCX_CLIENT_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/ucx_runtime.h"
#include "kvtransfer/ucx_transport.h"
#include "kvtransfer/ucx_wire.h"

namespace baton::kvtransfer {

class UcxClientImpl final : public UcxClient, private UcxLoop {
 public:
  UcxClientImpl(ReceiverOptions receiver, UcxOptions options)
      : receiver_(std::move(receiver)), options_(std::move(options)) {}
  ~UcxClientImpl() override { Shutdown(); }

  absl::Status Start() { return StartLoop(options_.network_trusted, options_.only_transports); }
  absl::string_view name() const override { return kTransportName; }
  FetchId Fetch(FetchRequest request, FetchCallback done) override;
  void Cancel(FetchId id) override;
  void Shutdown() override { StopLoop(); }
  UcxClientCounters counters() const override {
    MutexLock lock(&counters_mu_);
    return counters_;
  }

 private:
  static constexpr char kTransportName[] = "ucx";
  using ConnId = uint64_t;
  // A peer is (name, incarnation); a restarted one is another peer even at the same address.
  using Peer = std::pair<std::string, std::string>;
  struct Conn {
    UcxClientImpl* client;
    ConnId id;
    Peer peer;
    ucp_ep_h ep = nullptr;
    bool ready = false;        // connected: messages may be sent
    bool established = false;  // the peer has answered something
    bool closing = false;
    std::string detail;
  };
  struct Job {
    FetchId id = 0;
    Reception reception;
    FetchCallback done;
    ConnId conn = 0;    // 0: waiting to connect (again)
    bool sent = false;  // on that connection
    int attempts = 0;
    absl::Time retry_at = absl::InfiniteFuture();
    absl::Time silent_at = absl::InfiniteFuture();  // once sent: when the peer counts as gone
    absl::Time beat_at = absl::InfiniteFuture();
    int arriving = 0;          // receives that UCX may still write for
    bool server_done = false;  // its end is here
    absl::Status lost = absl::OkStatus();  // not OK: the connection is being closed under it, and then it fails with this
    // Set once the callback ran while bytes could still arrive.
    bool over = false;
    std::shared_ptr<kvcache::BlockPool> pool;
    uint64_t quarantine = 0;
    absl::Time cut_at;
  };
  using Jobs = std::map<FetchId, Job>;
  struct ReceiveOp {
    UcxClientImpl* client;
    FetchId job;
    size_t block_idx;
    uint64_t offset;
  };

  absl::Status OnStart() override;
  absl::Time OnTick(absl::Time now) override;
  bool Busy() override { return std::exchange(piece_came_, false) || !receives_.empty(); }
  void OnStop() override;
  bool Quiesced() override { return conns_.empty() && jobs_.empty(); }
  void OnStopped() override;
  void OnRecycle(const absl::Status& why) override;
  void OnRecycled() override { ForgetReceives(); }
  void ForgetReceives();

  static void OnConnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t OnBlockMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                     const ucp_am_recv_param_t* param);
  static ucs_status_t OnEndMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                   const ucp_am_recv_param_t* param);
  static ucs_status_t OnBeatMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                    const ucp_am_recv_param_t* param);
  static ucs_status_t OnUnknownMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                       const ucp_am_recv_param_t* param);
  static void OnReceived(void* request, ucs_status_t status, size_t size, void* user_data);

  void Begin(Job job);
  absl::StatusOr<UcxAddress> Reachable(const v1::Endpoint& endpoint) const;
  void Connect(Job* job);
  void SendFetch(Conn* conn, Job* job);
  absl::StatusOr<Conn*> OpenConn(const v1::Endpoint& endpoint);
  void FenceOlderIncarnations(const Peer& peer);
  Conn* FindConn(ConnId id);
  // The job that the peer speaks of, which is thereby heard of; null, and counted as ignored: none.
  Job* FindJob(std::optional<TransferId> id, const ucp_am_recv_param_t* param);
  ucs_status_t TakeBlock(Job* job, const BlockHeader& block, void* data, size_t size, bool rendezvous);
  void PieceArrived(FetchId id, size_t block_idx, uint64_t offset, ucs_status_t status);
  void EndArrived(FetchId id, const std::string& bytes);
  void MaybeSucceed(FetchId id);
  void Fail(FetchId id, const absl::Status& why);
  void EndQuarantine(Jobs::iterator it);
  void LoseConn(Conn* conn, const absl::Status& why);
  void CloseConn(Conn* conn);
  void Count(uint64_t UcxClientCounters::*field, int64_t by = 1) {
    MutexLock lock(&counters_mu_);
    counters_.*field += static_cast<uint64_t>(by);
  }

  const ReceiverOptions receiver_;
  const UcxOptions options_;
  std::atomic<FetchId> last_id_{0};
  ConnId last_conn_ = 0;
  std::map<ConnId, std::unique_ptr<Conn>> conns_;
  std::map<Peer, ConnId> by_peer_;      // open ones
  std::map<ucp_ep_h, ConnId> by_ep_;    // open ones
  Jobs jobs_;
  std::map<TransferId, FetchId> by_transfer_;  // jobs that are not over
  std::set<ReceiveOp*> receives_;
  bool piece_came_ = false;  // since Busy() was asked
  mutable Mutex counters_mu_;
  UcxClientCounters counters_ ABSL_GUARDED_BY(counters_mu_);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_CLIENT_IMPL_H_
