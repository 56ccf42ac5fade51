// The receiving worker's half of meeting its peers: tries and measures the way to each worker that it may get KV from,
// before requests do. A test is a real fetch with a real ticket (OpenLink), twice: the first makes the connection, the
// second is measured. A peer is (name, incarnation), so a restarted worker is met anew.
#ifndef BATON_KVTRANSFER_LINK_TESTER_H_
#define BATON_KVTRANSFER_LINK_TESTER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/rpc/security.h"
#include "kvtransfer/transport.h"
#include "proto/cluster.pb.h"
#include "proto/kv_transport.grpc.pb.h"

namespace baton::kvtransfer {

struct LinkOptions {
  rpc::Security security;
  rpc::PeerRole peer = rpc::PeerRole::kPrefill;
  kernels::KvLayout layout;
  double floor_bytes_per_second = 0;
  bool refuse_below_floor = false;
  uint64_t test_bytes = 16 << 20;
  absl::Duration test_timeout = absl::Seconds(10);
  // Between attempts at a peer that could not be tested; doubles to the second. Attempts never end while it is a peer.
  absl::Duration min_backoff = absl::Milliseconds(200);
  absl::Duration max_backoff = absl::Seconds(30);
  absl::Duration refusal_time = absl::Minutes(1);  // until a refused link is measured again
  // Told of each result: "ok", "slow", "refused", "failed".
  std::function<void(const v1::KvLink& link)> on_result;
};

// Thread-safe.
class LinkTester {
 public:
  // `client` (which outlives it) carries the tests.
  LinkTester(LinkOptions options, TransportClient* client);
  ~LinkTester() { Stop(); }
  // Ends the tests; after it `client` is not used any more. Allowed still answers. Idempotent.
  void Stop();

  // The peers there are now. New ones are tested at once, in turn; the others are forgotten.
  void SetPeers(const std::vector<v1::KvPeer>& peers);
  std::vector<v1::KvLink> links() const;
  // UNAVAILABLE when `transport` to that worker was measured below the floor, and refuse_below_floor says so.
  absl::Status Allowed(const v1::Endpoint& endpoint) const;

 private:
  using PeerId = std::pair<std::string, std::string>;  // name, incarnation
  struct Peer {
    v1::KvPeer info;
    v1::KvLink link;
    absl::Time due;
    absl::Duration backoff;
    std::map<std::string, absl::Time> refused;  // transport, until when; then it is measured again
  };

  void Run();
  // What one test of `peer` gave; its transport's refusals are noted and the next transport is tried.
  void Test(const PeerId& id, const v1::KvPeer& peer);
  absl::StatusOr<FetchStats> FetchOnce(v1::KvTransport::Stub* stub, const v1::KvPeer& peer);
  absl::StatusOr<std::string> LinkAddress(const v1::KvPeer& peer) const;

  const LinkOptions options_;
  TransportClient* const client_;
  mutable Mutex mu_;
  CondVar cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
  FetchId fetch_ ABSL_GUARDED_BY(mu_) = 0;  // the running one; 0: none
  std::map<PeerId, Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LINK_TESTER_H_
