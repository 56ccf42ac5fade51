#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/ucx_runtime.h"
#include "kvtransfer/ucx_transport.h"
#include "kvtransfer/ucx_wire.h"

namespace baton::kvtransfer {
namespace {

constexpr char kName[] = "ucx";

class UcxClientImpl final : public UcxClient, private UcxLoop {
 public:
  UcxClientImpl(ReceiverOptions receiver, UcxOptions options)
      : receiver_(std::move(receiver)), options_(std::move(options)) {}
  ~UcxClientImpl() override { Shutdown(); }

  absl::Status Start() { return StartLoop(options_.network_trusted); }
  absl::string_view name() const override { return kName; }
  FetchId Fetch(v1::Ticket ticket, kvcache::BlockLease destination, absl::Time deadline, FetchCallback done) override;
  void Cancel(FetchId id) override;
  void Shutdown() override { StopLoop(); }
  UcxClientCounters counters() const override {
    MutexLock lock(&counters_mu_);
    return counters_;
  }

 private:
  using ConnId = uint64_t;
  // A peer is (name, incarnation); a restarted one is another peer even at the same address.
  using Peer = std::pair<std::string, std::string>;
  struct Conn {
    UcxClientImpl* client;
    ConnId id;
    Peer peer;
    ucp_ep_h ep = nullptr;
    bool established = false;  // the peer has answered something
    bool closing = false;
    std::string detail;
  };
  enum class Block : uint8_t { kMissing, kArriving, kVerified };
  struct Job {
    FetchId id = 0;
    v1::Ticket ticket;
    kvcache::BlockLease destination;
    absl::Time deadline;
    absl::Time started;
    FetchCallback done;
    ConnId conn = 0;  // 0: waiting to connect (again)
    int attempts = 0;
    absl::Time retry_at = absl::InfiniteFuture();
    std::vector<Block> blocks;
    size_t num_verified = 0;
    int arriving = 0;         // receives that UCX may still write for
    bool server_done = false; // it confirmed the generations after the last block
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
  };

  absl::Status OnStart() override;
  absl::Time OnTick(absl::Time now) override;
  void OnStop() override;
  bool Quiesced() override { return conns_.empty() && jobs_.empty(); }
  void OnStopped() override;

  static void OnConnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t OnBlockMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                     const ucp_am_recv_param_t* param);
  static ucs_status_t OnStatusMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                      const ucp_am_recv_param_t* param);
  static void OnReceived(void* request, ucs_status_t status, size_t size, void* user_data);

  void Begin(Job job);
  absl::StatusOr<UcxAddress> Reachable(const v1::Endpoint& endpoint) const;
  void Connect(Job* job);
  absl::StatusOr<Conn*> OpenConn(const v1::Endpoint& endpoint);
  void FenceOlderIncarnations(const Peer& peer);
  Conn* FindConn(ConnId id);
  Job* FindJob(TransferId id, const ucp_am_recv_param_t* param, Conn** conn);
  ucs_status_t TakeBlock(Job* job, const BlockHeader& block, void* data, size_t size, bool rendezvous);
  void BlockArrived(FetchId id, size_t block_idx, ucs_status_t status);
  void StatusArrived(FetchId id, const StatusHeader& header, const std::string& text);
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
  mutable Mutex counters_mu_;
  UcxClientCounters counters_ ABSL_GUARDED_BY(counters_mu_);
};

absl::Status UcxClientImpl::OnStart() {
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kBlock), &OnBlockMessage, this); !s.ok()) return s;
  return SetHandler(static_cast<unsigned>(UcxMessage::kStatus), &OnStatusMessage, this);
}

FetchId UcxClientImpl::Fetch(v1::Ticket ticket, kvcache::BlockLease destination, absl::Time deadline,
                             FetchCallback done) {
  Job job;
  const FetchId id = job.id = ++last_id_;
  job.ticket = std::move(ticket);
  job.destination = std::move(destination);
  job.deadline = deadline;
  job.started = absl::Now();
  job.done = std::move(done);
  auto held = std::make_shared<Job>(std::move(job));
  if (!Post([this, held] { Begin(std::move(*held)); })) {
    held->done(absl::CancelledError("the transport is shut down"), std::move(held->destination));
  }
  return id;
}

void UcxClientImpl::Cancel(FetchId id) {
  Post([this, id] { Fail(id, absl::CancelledError("the fetch was cancelled")); });
}

void UcxClientImpl::Begin(Job job) {
  Count(&UcxClientCounters::fetches);
  absl::Status s = CheckFetch(receiver_, kName, job.ticket, job.destination);
  if (s.ok()) s = Reachable(job.ticket.endpoint()).status();
  if (s.ok() && by_transfer_.count(TransferId::Of(job.ticket)) > 0) {
    s = absl::AbortedError("the ticket is already being fetched; one ticket is good for one fetch");
  }
  if (s.ok() && absl::Now() >= job.deadline) s = absl::DeadlineExceededError("the deadline passed before the KV fetch");
  if (!s.ok()) {
    Count(&UcxClientCounters::failed);
    job.done(s, std::move(job.destination));
    return;
  }
  job.blocks.assign(static_cast<size_t>(job.ticket.blocks_size()), Block::kMissing);
  by_transfer_[TransferId::Of(job.ticket)] = job.id;
  const FetchId id = job.id;
  Connect(&jobs_.emplace(id, std::move(job)).first->second);
}

absl::StatusOr<UcxAddress> UcxClientImpl::Reachable(const v1::Endpoint& endpoint) const {
  absl::StatusOr<UcxAddress> address = UcxAddress::Parse(endpoint.address());
  if (address.ok() && !address->loopback() && !options_.network_trusted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "prefill worker ", endpoint.worker_name(), " is at ", address->ToString(),
        ", beyond loopback; set kv_network_trusted if only trusted machines reach that network"));
  }
  return address;
}

void UcxClientImpl::Connect(Job* job) {
  ++job->attempts;
  job->retry_at = absl::InfiniteFuture();
  absl::StatusOr<Conn*> conn = OpenConn(job->ticket.endpoint());
  if (!conn.ok()) {
    Fail(job->id, conn.status());
    return;
  }
  job->conn = (*conn)->id;
  // UCX may fail a message that was queued while it connected and yet keep the connection.
  Send((*conn)->ep, static_cast<unsigned>(UcxMessage::kFetch), EncodeFetch(), job->ticket.SerializeAsString(), nullptr,
       0, UCP_AM_SEND_FLAG_EAGER, [this, id = (*conn)->id](ucs_status_t status) {
         Conn* c = FindConn(id);
         if (status != UCS_OK && c != nullptr && !c->closing) LoseConn(c, UcxError("sending the fetch", status));
       });
}

absl::StatusOr<UcxClientImpl::Conn*> UcxClientImpl::OpenConn(const v1::Endpoint& endpoint) {
  const Peer peer(endpoint.worker_name(), endpoint.incarnation());
  if (auto it = by_peer_.find(peer); it != by_peer_.end()) return FindConn(it->second);
  FenceOlderIncarnations(peer);
  absl::StatusOr<UcxAddress> to = Reachable(endpoint);
  if (!to.ok()) return to.status();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(to->host);
  address.sin_port = htons(to->port);
  auto conn = std::make_unique<Conn>();
  conn->client = this;
  conn->id = ++last_conn_;
  conn->peer = peer;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address);
  params.sockaddr.addrlen = sizeof(address);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnConnError;
  params.err_handler.arg = conn.get();
  Count(&UcxClientCounters::connects);
  const ucs_status_t s = ucp_ep_create(worker(), &params, &conn->ep);
  if (s != UCS_OK) return UcxError(absl::StrCat("UCX connection to ", endpoint.worker_name()), s);
  Conn* result = conn.get();
  by_ep_[conn->ep] = conn->id;
  by_peer_[peer] = conn->id;
  conns_[conn->id] = std::move(conn);
  return result;
}

// A worker that restarted has a new incarnation; connections to the old one are of no use. One that still serves a
// fetch is left to UCX's error handling.
void UcxClientImpl::FenceOlderIncarnations(const Peer& peer) {
  for (auto& [id, conn] : conns_) {
    if (conn->closing || conn->peer.first != peer.first || conn->peer.second == peer.second) continue;
    bool busy = false;
    for (const auto& [job_id, job] : jobs_) busy = busy || job.conn == id;
    if (!busy) CloseConn(conn.get());
  }
}

UcxClientImpl::Conn* UcxClientImpl::FindConn(ConnId id) {
  auto it = conns_.find(id);
  return it == conns_.end() ? nullptr : it->second.get();
}

void UcxClientImpl::OnConnError(void* arg, ucp_ep_h ep, ucs_status_t status) {
  auto* conn = static_cast<Conn*>(arg);
  UcxClientImpl* self = conn->client;
  self->Defer([self, id = conn->id, status] {
    Conn* c = self->FindConn(id);
    if (c == nullptr || c->closing) return;
    self->Count(&UcxClientCounters::connections_lost);
    self->LoseConn(c, UcxError(absl::StrCat("the connection to prefill worker ", c->peer.first, " broke"), status));
  });
}

// Fetches that never heard from the peer try again; the ticket is single use, so a second request does no harm.
void UcxClientImpl::LoseConn(Conn* conn, const absl::Status& why) {
  const absl::Time now = absl::Now();
  std::vector<FetchId> affected;
  for (auto& [id, job] : jobs_) {
    if (job.conn == conn->id && !job.over) affected.push_back(id);
  }
  const bool established = conn->established;
  CloseConn(conn);
  for (FetchId id : affected) {
    Job& job = jobs_.at(id);
    if (established || job.attempts >= options_.connect_attempts) {
      Fail(id, why);
      continue;
    }
    job.conn = 0;
    job.retry_at = now + options_.connect_backoff * (1 << (job.attempts - 1));
  }
}

void UcxClientImpl::CloseConn(Conn* conn) {
  if (conn->closing) return;
  conn->closing = true;
  by_ep_.erase(conn->ep);
  if (auto it = by_peer_.find(conn->peer); it != by_peer_.end() && it->second == conn->id) by_peer_.erase(it);
  CloseEndpoint(conn->ep, [this, id = conn->id] {
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      const auto next = std::next(it);
      if (it->second.conn == id && it->second.over) EndQuarantine(it);
      it = next;
    }
    conns_.erase(id);
  });
}

UcxClientImpl::Job* UcxClientImpl::FindJob(TransferId id, const ucp_am_recv_param_t* param, Conn** conn) {
  auto named = by_transfer_.find(id);
  if (named == by_transfer_.end() || (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  auto ep = by_ep_.find(param->reply_ep);
  if (ep == by_ep_.end()) return nullptr;
  Job& job = jobs_.at(named->second);
  if (job.conn != ep->second) return nullptr;  // another peer speaks of our transfer
  *conn = FindConn(ep->second);
  return &job;
}

// Returning UCS_OK for data that was not taken makes UCX drop it.
ucs_status_t UcxClientImpl::OnBlockMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                           const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxClientImpl*>(arg);
  const std::optional<BlockHeader> block = DecodeBlock(header, header_size);
  Conn* conn = nullptr;
  Job* job = block.has_value() ? self->FindJob(block->id, param, &conn) : nullptr;
  if (job == nullptr) {
    self->Count(&UcxClientCounters::ignored_messages);
    return UCS_OK;
  }
  conn->established = true;
  return self->TakeBlock(job, *block, data, size, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t UcxClientImpl::TakeBlock(Job* job, const BlockHeader& block, void* data, size_t size, bool rendezvous) {
  const absl::Status s = CheckBlockHeader(job->ticket, {block.block_idx, block.generation, block.checksum}, size,
                                          receiver_.layout.block_bytes());
  if (!s.ok()) {
    Defer([this, id = job->id, s] { Fail(id, s); });
    return UCS_OK;
  }
  if (job->blocks[block.block_idx] != Block::kMissing) {
    Count(&UcxClientCounters::ignored_messages);  // sent twice; the first copy counts
    return UCS_OK;
  }
  job->blocks[block.block_idx] = Block::kArriving;
  ++job->arriving;
  const std::span<std::byte> to = job->destination.bytes(block.block_idx);
  auto* op = new ReceiveOp{this, job->id, block.block_idx};
  receives_.insert(op);
  if (!rendezvous) {
    std::memcpy(to.data(), data, size);
    OnReceived(nullptr, UCS_OK, size, op);
    return UCS_OK;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &OnReceived;
  param.user_data = op;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker(), data, to.data(), size, &param);
  if (request == nullptr) {
    OnReceived(nullptr, UCS_OK, size, op);
  } else if (UCS_PTR_IS_ERR(request)) {
    OnReceived(nullptr, UCS_PTR_STATUS(request), 0, op);
  }
  return UCS_INPROGRESS;  // UCX owns `data` now
}

void UcxClientImpl::OnReceived(void* request, ucs_status_t status, size_t size, void* user_data) {
  auto* op = static_cast<ReceiveOp*>(user_data);
  UcxClientImpl* self = op->client;
  self->receives_.erase(op);
  self->Defer([self, id = op->job, i = op->block_idx, status] { self->BlockArrived(id, i, status); });
  delete op;
  if (request != nullptr) ucp_request_free(request);
}

void UcxClientImpl::BlockArrived(FetchId id, size_t block_idx, ucs_status_t status) {
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Job& job = it->second;
  --job.arriving;
  if (job.over) {
    if (job.arriving == 0) EndQuarantine(it);
    return;
  }
  if (status != UCS_OK) {
    Fail(id, UcxError(absl::StrCat("block ", block_idx, " did not arrive from prefill worker ",
                                   job.ticket.endpoint().worker_name()), status));
    return;
  }
  if (absl::Status s = CheckBlockBytes(job.ticket, block_idx, job.destination.bytes(block_idx)); !s.ok()) {
    Fail(id, s);
    return;
  }
  job.blocks[block_idx] = Block::kVerified;
  ++job.num_verified;
  MaybeSucceed(id);
}

ucs_status_t UcxClientImpl::OnStatusMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                            const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxClientImpl*>(arg);
  const std::optional<StatusHeader> status = DecodeStatus(header, header_size);
  Conn* conn = nullptr;
  Job* job = status.has_value() ? self->FindJob(status->id, param, &conn) : nullptr;
  if (job == nullptr || size > kMaxStatusText || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self->Count(&UcxClientCounters::ignored_messages);
    return UCS_OK;
  }
  conn->established = true;
  self->Defer([self, id = job->id, status = *status, text = std::string(static_cast<const char*>(data), size)] {
    self->StatusArrived(id, status, text);
  });
  return UCS_OK;
}

void UcxClientImpl::StatusArrived(FetchId id, const StatusHeader& header, const std::string& text) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.over) return;
  if (header.code != absl::StatusCode::kOk) {
    Fail(id, absl::Status(header.code, absl::StrCat("prefill worker ", it->second.ticket.endpoint().worker_name(), ": ",
                                                    text)));
    return;
  }
  it->second.server_done = true;
  MaybeSucceed(id);
}

void UcxClientImpl::MaybeSucceed(FetchId id) {
  auto it = jobs_.find(id);
  if (!it->second.server_done || it->second.num_verified < it->second.blocks.size()) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  by_transfer_.erase(TransferId::Of(job.ticket));
  FetchStats stats;
  stats.blocks = static_cast<uint32_t>(job.num_verified);
  stats.bytes = job.num_verified * receiver_.layout.block_bytes();
  stats.duration = absl::Now() - job.started;
  stats.transport = kName;
  if (Conn* conn = FindConn(job.conn); conn != nullptr) {
    if (conn->detail.empty() && !conn->closing) conn->detail = DescribeEndpoint(conn->ep);
    stats.detail = conn->detail;
  }
  Count(&UcxClientCounters::completed);
  job.done(std::move(stats), std::move(job.destination));
}

void UcxClientImpl::Fail(FetchId id, const absl::Status& why) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.over) return;
  Job& job = it->second;
  by_transfer_.erase(TransferId::Of(job.ticket));
  Count(&UcxClientCounters::failed);
  if (Conn* conn = FindConn(job.conn); conn != nullptr && !conn->closing) {
    // Sent even if the server has ended already: it ignores what it does not know. An unanswered connection that the
    // server refused is closed by it.
    if (conn->established && !job.server_done) {
      Send(conn->ep, static_cast<unsigned>(UcxMessage::kStop), EncodeStop(TransferId::Of(job.ticket)), "", nullptr, 0,
           UCP_AM_SEND_FLAG_EAGER, [](ucs_status_t) {});
    }
  }
  FetchCallback done = std::move(job.done);
  if (job.arriving == 0) {
    kvcache::BlockLease destination = std::move(job.destination);
    jobs_.erase(it);
    done(why, std::move(destination));
    return;
  }
  job.over = true;
  job.cut_at = absl::Now() + options_.quiet_timeout;
  job.pool = job.destination.pool()->shared_from_this();
  job.quarantine = job.destination.Quarantine();
  Count(&UcxClientCounters::quarantines);
  Count(&UcxClientCounters::quarantines_open);
  done(why, kvcache::BlockLease());
}

void UcxClientImpl::EndQuarantine(Jobs::iterator it) {
  it->second.pool->EndQuarantine(it->second.quarantine).IgnoreError();  // the token is ours: it is known
  jobs_.erase(it);
  Count(&UcxClientCounters::quarantines_open, -1);
}

absl::Time UcxClientImpl::OnTick(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  std::vector<FetchId> late;
  std::vector<FetchId> retry;
  for (auto& [id, job] : jobs_) {
    if (job.over) {
      Conn* conn = FindConn(job.conn);
      if (now >= job.cut_at && conn != nullptr && !conn->closing) {
        LoseConn(conn, absl::UnavailableError("the connection was cut because a stopped transfer did not end"));
        return now;  // the maps have changed
      }
      next = std::min(next, std::max(job.cut_at, now + absl::Milliseconds(1)));
      continue;
    }
    if (now >= job.deadline) {
      late.push_back(id);
    } else if (now >= job.retry_at) {
      retry.push_back(id);
    }
    next = std::min({next, job.deadline, job.retry_at});
  }
  for (FetchId id : late) Fail(id, absl::DeadlineExceededError("the deadline passed during the KV fetch"));
  for (FetchId id : retry) {
    if (auto it = jobs_.find(id); it != jobs_.end()) Connect(&it->second);
  }
  return next;
}

void UcxClientImpl::OnStop() {
  std::vector<FetchId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (FetchId id : ids) Fail(id, absl::CancelledError("the transport is shut down"));
  for (auto& [id, conn] : conns_) CloseConn(conn.get());
}

// The worker is gone and nothing can arrive.
void UcxClientImpl::OnStopped() {
  for (ReceiveOp* op : receives_) delete op;
  receives_.clear();
  while (!jobs_.empty()) {
    auto it = jobs_.begin();
    if (it->second.over) {
      EndQuarantine(it);
    } else {
      it->second.arriving = 0;
      Fail(it->first, absl::CancelledError("the transport is shut down"));
    }
  }
  conns_.clear();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxClient>> UcxClient::Start(ReceiverOptions receiver, UcxOptions options) {
  auto client = std::make_unique<UcxClientImpl>(std::move(receiver), std::move(options));
  if (absl::Status s = client->Start(); !s.ok()) return s;
  return std::unique_ptr<UcxClient>(std::move(client));
}

}  // namespace baton::kvtransfer
