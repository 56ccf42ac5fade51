#include <arpa/inet.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/ucx_client_impl.h"

namespace baton::kvtransfer {

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
  absl::StatusOr<Conn*> conn = OpenConn(job->reception.endpoint());
  if (!conn.ok()) {
    Fail(job->id, conn.status());
    return;
  }
  job->conn = (*conn)->id;
  job->sent = false;
  if ((*conn)->ready) SendFetch(*conn, job);
}

void UcxClientImpl::SendFetch(Conn* conn, Job* job) {
  job->sent = true;
  const absl::Time now = absl::Now();
  job->silent_at = now + SilenceLimit(job->reception.ticket());
  job->beat_at = now + HeartbeatInterval(job->reception.ticket());
  Send(conn->ep, static_cast<unsigned>(UcxMessage::kFetch), EncodeFetch(),
       job->reception.Open(static_cast<uint32_t>(job->attempts)).SerializeAsString(), nullptr, 0,
       UCP_AM_SEND_FLAG_EAGER, [this, id = conn->id](ucs_status_t status) {
         Conn* c = FindConn(id);
         if (status != UCS_OK && c != nullptr && !c->closing) LoseConn(c, UcxError("sending the fetch", status));
       });
}

absl::StatusOr<UcxClientImpl::Conn*> UcxClientImpl::OpenConn(const v1::Endpoint& endpoint) {
  const Peer peer(endpoint.worker_name(), endpoint.incarnation());
  if (auto it = by_peer_.find(peer); it != by_peer_.end()) return FindConn(it->second);
  if (worker() == nullptr) return absl::UnavailableError("UCX has ended");
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
  // UCX 1.13.1 chooses how to send a message before it knows the lanes of a connection that is still being made; one that
  // is queued meanwhile can turn out too long for its lane and fail although its neighbours get through. So nothing is
  // queued in UCX: fetches wait here until a flush says that the connection is made.
  Flush(result->ep, [this, id = result->id](ucs_status_t flushed) {
    Conn* c = FindConn(id);
    if (c == nullptr || c->closing) return;
    if (flushed != UCS_OK) return LoseConn(c, UcxError(absl::StrCat("connecting to ", c->peer.first), flushed));
    c->ready = true;
    for (auto& [job_id, job] : jobs_) {
      if (job.conn == id && !job.sent && !job.over) SendFetch(c, &job);
    }
  });
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
    if (job.arriving > 0) {
      // The connection's end ends these receives too; then the destination is the caller's again, who may fetch the same
      // blocks by another transport.
      job.lost = why;
      continue;
    }
    if (established || job.attempts >= options_.connect_attempts) {
      Fail(id, why);
      continue;
    }
    job.conn = 0;
    job.silent_at = job.beat_at = absl::InfiniteFuture();
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
    std::vector<FetchId> lost;
    for (auto& [job_id, job] : jobs_) {
      if (job.conn == id && !job.lost.ok()) lost.push_back(job_id);
    }
    for (FetchId job_id : lost) {
      Job& job = jobs_.at(job_id);
      job.arriving = 0;
      Fail(job_id, job.lost);
    }
    conns_.erase(id);
  });
}

UcxClientImpl::Job* UcxClientImpl::FindJob(std::optional<TransferId> id, const ucp_am_recv_param_t* param) {
  const auto named = id.has_value() ? by_transfer_.find(*id) : by_transfer_.end();
  const bool has_ep = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto ep = has_ep ? by_ep_.find(param->reply_ep) : by_ep_.end();
  // A connection other than the job's: another peer speaks of our transfer.
  if (named == by_transfer_.end() || ep == by_ep_.end() || jobs_.at(named->second).conn != ep->second) {
    Count(&UcxClientCounters::ignored_messages);
    return nullptr;
  }
  Job& job = jobs_.at(named->second);
  FindConn(ep->second)->established = true;
  job.silent_at = absl::Now() + SilenceLimit(job.reception.ticket());
  return &job;
}

// Returning UCS_OK for data that was not taken makes UCX drop it.
ucs_status_t UcxClientImpl::OnBlockMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                           const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxClientImpl*>(arg);
  const std::optional<BlockHeader> block = DecodeBlock(header, header_size);
  Job* job = self->FindJob(block.has_value() ? std::optional(block->id) : std::nullopt, param);
  if (job == nullptr) return UCS_OK;
  return self->TakeBlock(job, *block, data, size, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t UcxClientImpl::TakeBlock(Job* job, const BlockHeader& block, void* data, size_t size, bool rendezvous) {
  const absl::StatusOr<std::span<std::byte>> place = job->reception.PlacePiece(block.seal, block.offset, size);
  if (!place.ok()) {
    Defer([this, id = job->id, s = place.status()] { Fail(id, s); });
    return UCS_OK;
  }
  const std::span<std::byte> to = *place;
  if (to.empty()) {
    Count(&UcxClientCounters::ignored_messages);  // sent twice; the first copy counts
    return UCS_OK;
  }
  ++job->arriving;
  piece_came_ = true;
  auto* op = new ReceiveOp{this, job->id, block.seal.block_idx(), block.offset};
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
  self->Defer([self, done = *op, status] { self->PieceArrived(done.job, done.block_idx, done.offset, status); });
  delete op;
  if (request != nullptr) ucp_request_free(request);
}

ucs_status_t UcxClientImpl::OnUnknownMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                             const ucp_am_recv_param_t* param) {
  static_cast<UcxClientImpl*>(arg)->Count(&UcxClientCounters::ignored_messages);
  return UCS_OK;
}

ucs_status_t UcxClientImpl::OnEndMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                         const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxClientImpl*>(arg);
  if (size > kMaxEndBytes || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self->Count(&UcxClientCounters::ignored_messages);
    return UCS_OK;
  }
  if (Job* job = self->FindJob(DecodeEnd(header, header_size), param); job != nullptr) {
    self->Defer([self, id = job->id, bytes = std::string(static_cast<const char*>(data), size)] {
      self->EndArrived(id, bytes);
    });
  }
  return UCS_OK;
}

ucs_status_t UcxClientImpl::OnBeatMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                          const ucp_am_recv_param_t* param) {
  static_cast<UcxClientImpl*>(arg)->FindJob(DecodeBeat(header, header_size), param);  // that it is heard of is all
  return UCS_OK;
}

}  // namespace baton::kvtransfer
