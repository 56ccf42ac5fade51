#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/locality.h"
#include "kvtransfer/ucx_runtime.h"
#include "kvtransfer/ucx_transport.h"
#include "kvtransfer/ucx_wire.h"

namespace baton::kvtransfer {
namespace {

// Pieces of one transfer that may be under way at once: enough to keep the receiver busy, few enough that a stop takes
// effect soon.
constexpr int kWindow = 8;
constexpr absl::Duration kTick = absl::Milliseconds(20);
// Between the refusal of a forged ticket and the cut, so that the reason arrives first.
constexpr absl::Duration kRefusalLinger = absl::Milliseconds(100);

// Of a transfer that has no claim.
v1::TransferEnd EndWith(const absl::Status& status) {
  v1::TransferEnd end;
  end.set_code(static_cast<uint32_t>(status.code()));
  end.set_message(std::string(status.message().substr(0, 512)));
  return end;
}

class UcxServerImpl final : public UcxServer, private UcxLoop {
 public:
  UcxServerImpl(Exporter* exporter, UcxOptions options, UcxAddress bind)
      : exporter_(exporter), options_(std::move(options)), bind_(bind) {}
  ~UcxServerImpl() override { Shutdown(); }

  absl::Status Start() { return StartLoop(options_.network_trusted, options_.only_transports); }
  v1::Endpoint endpoint() const override { return endpoint_; }
  void Shutdown() override { StopLoop(); }
  UcxServerCounters counters() const override {
    MutexLock lock(&counters_mu_);
    return counters_;
  }

 private:
  using ConnId = uint64_t;
  struct Conn {
    UcxServerImpl* server;
    ConnId id;
    ucp_ep_h ep = nullptr;
    bool authenticated = false;
    bool refused = false;  // hears no more; cut at cut_at
    bool closing = false;
    // By TCP alone nobody reads the other's memory, and asking first only costs a round trip a piece; the stream's own
    // flow control bounds what is under way.
    bool eager = false;
    absl::Time cut_at;  // of the handshake, or after a refusal
  };
  struct Transfer {
    Claim claim;
    int in_flight = 0;
    absl::Time beat_at;
    bool stopping = false;
    bool broken = false;  // by the transport, not by anyone's wish
    absl::Time cut_at;    // when stopping
  };
  // A receiver's later attempt comes by another connection, so the same transfer can run on two for a moment.
  using TransferKey = std::pair<ConnId, TransferId>;
  using Transfers = std::map<TransferKey, Transfer>;

  absl::Status OnStart() override;
  absl::Time OnTick(absl::Time now) override;
  bool Busy() override {
    return std::any_of(transfers_.begin(), transfers_.end(), [](const auto& t) { return t.second.in_flight > 0; });
  }
  void OnStop() override;
  bool Quiesced() override { return conns_.empty(); }
  void OnStopped() override { transfers_.clear(); }  // ends every claim
  void OnRecycle(const absl::Status& why) override;

  static void OnConnRequest(ucp_conn_request_h request, void* arg);
  static void OnConnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t OnFetchMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                     const ucp_am_recv_param_t* param);
  static ucs_status_t OnUnknownMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                       const ucp_am_recv_param_t* param);
  static ucs_status_t OnStopMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                    const ucp_am_recv_param_t* param);
  static ucs_status_t OnBeatMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                    const ucp_am_recv_param_t* param);

  void Accept(ucp_conn_request_h request);
  void RejectMessage(Conn* conn);
  Conn* FindConn(ConnId id);
  Conn* ConnOf(const ucp_am_recv_param_t* param);
  void HandleFetch(ConnId conn_id, bool well_formed, const std::string& payload);
  void RefuseConn(Conn* conn, TransferId id, const absl::Status& why);
  void CloseConn(Conn* conn);
  // Does `what` (deferred) to the transfer that a known client speaks of, if it runs; rejects everybody else.
  void OfTransfer(const ucp_am_recv_param_t* param, std::optional<TransferId> id,
                  absl::AnyInvocable<void(Transfer*)> what);
  void Stop(Transfer* transfer, absl::Time now);
  void Pump(TransferKey key);
  void BlockSent(TransferKey key, ucs_status_t status);
  void Finish(Transfers::iterator it);
  void SendEnd(Conn* conn, TransferId id, const v1::TransferEnd& end);
  void Count(uint64_t UcxServerCounters::*field, int64_t by = 1) {
    MutexLock lock(&counters_mu_);
    counters_.*field += static_cast<uint64_t>(by);
  }

  Exporter* const exporter_;
  const UcxOptions options_;
  UcxAddress bind_;  // with the port, once there is one: tickets name it
  v1::Endpoint endpoint_;
  ucp_listener_h listener_ = nullptr;
  ConnId last_conn_ = 0;
  std::map<ConnId, std::unique_ptr<Conn>> conns_;
  std::map<ucp_ep_h, ConnId> by_ep_;
  Transfers transfers_;
  mutable Mutex counters_mu_;
  UcxServerCounters counters_ ABSL_GUARDED_BY(counters_mu_);
};

absl::Status UcxServerImpl::OnStart() {
  if (absl::Status s = SetHandlerOfAll(&OnUnknownMessage, this); !s.ok()) return s;
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kFetch), &OnFetchMessage, this); !s.ok()) return s;
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kStop), &OnStopMessage, this); !s.ok()) return s;
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kBeat), &OnBeatMessage, this); !s.ok()) return s;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(bind_.host);
  address.sin_port = htons(bind_.port);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address);
  params.sockaddr.addrlen = sizeof(address);
  params.conn_handler.cb = &OnConnRequest;
  params.conn_handler.arg = this;
  ucs_status_t s = ucp_listener_create(worker(), &params, &listener_);
  if (s != UCS_OK) return UcxError(absl::StrCat("UCX listener on ", bind_.ToString()), s);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  s = ucp_listener_query(listener_, &attr);
  if (s != UCS_OK || attr.sockaddr.ss_family != AF_INET) return UcxError("UCX listener's port", s);
  const bool again = bind_.port != 0;
  bind_.port = ntohs(reinterpret_cast<const sockaddr_in*>(&attr.sockaddr)->sin_port);
  if (again) return absl::OkStatus();
  endpoint_.set_worker_name(exporter_->options().worker_name);
  endpoint_.set_incarnation(exporter_->options().incarnation);
  endpoint_.set_transport("ucx");
  endpoint_.set_address(bind_.ToString());
  if (bind_.loopback()) endpoint_.set_locality(NetworkLocality());
  return absl::OkStatus();
}

void UcxServerImpl::OnStop() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  listener_ = nullptr;
  for (auto& [id, conn] : conns_) CloseConn(conn.get());
}

// Ends every claim as broken, so that its use comes back.
void UcxServerImpl::OnRecycle(const absl::Status& why) {
  Count(&UcxServerCounters::restarts);
  OnStop();
}

absl::Time UcxServerImpl::OnTick(absl::Time now) {
  for (auto& [key, transfer] : transfers_) {
    if (!transfer.stopping && transfer.claim.stop_requested()) Stop(&transfer, now);
    Conn* conn = FindConn(key.first);
    if (transfer.stopping || now < transfer.beat_at || conn == nullptr || conn->closing) continue;
    transfer.beat_at = now + HeartbeatInterval(transfer.claim.ticket());
    Send(conn->ep, static_cast<unsigned>(UcxMessage::kBeat), EncodeBeat(key.second), "", nullptr, 0,
         UCP_AM_SEND_FLAG_EAGER, [](ucs_status_t) {});
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const auto next = std::next(it);
    if (it->second.stopping && it->second.in_flight == 0) {
      Finish(it);
    } else if (it->second.stopping && now >= it->second.cut_at) {
      Conn* conn = FindConn(it->first.first);
      if (conn != nullptr && !conn->closing) {
        Count(&UcxServerCounters::cut);
        CloseConn(conn);
      }
    }
    it = next;
  }
  bool timers = !transfers_.empty();
  for (auto& [id, conn] : conns_) {
    if (conn->closing || (conn->authenticated && !conn->refused)) continue;
    timers = true;
    if (now < conn->cut_at) continue;
    if (!conn->refused) Count(&UcxServerCounters::handshake_timeouts);
    CloseConn(conn.get());
  }
  return timers ? now + kTick : absl::InfiniteFuture();
}

void UcxServerImpl::OnConnRequest(ucp_conn_request_h request, void* arg) {
  auto* self = static_cast<UcxServerImpl*>(arg);
  self->Defer([self, request] { self->Accept(request); });
}

void UcxServerImpl::Accept(ucp_conn_request_h request) {
  if (listener_ == nullptr) return;  // destroyed with it
  if (conns_.size() >= options_.max_connections) {
    Count(&UcxServerCounters::connections_refused);
    ucp_listener_reject(listener_, request);
    return;
  }
  auto conn = std::make_unique<Conn>();
  conn->server = this;
  conn->id = ++last_conn_;
  conn->cut_at = absl::Now() + options_.handshake_timeout;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnConnError;
  params.err_handler.arg = conn.get();
  if (ucp_ep_create(worker(), &params, &conn->ep) != UCS_OK) {
    Count(&UcxServerCounters::connections_lost);
    return;
  }
  by_ep_[conn->ep] = conn->id;
  conns_[conn->id] = std::move(conn);
  Count(&UcxServerCounters::connections);
  Count(&UcxServerCounters::connections_open);
}

void UcxServerImpl::OnConnError(void* arg, ucp_ep_h ep, ucs_status_t status) {
  auto* conn = static_cast<Conn*>(arg);
  UcxServerImpl* self = conn->server;
  self->Defer([self, id = conn->id] {
    Conn* c = self->FindConn(id);
    if (c == nullptr || c->closing) return;
    self->Count(&UcxServerCounters::connections_lost);
    self->CloseConn(c);
  });
}

UcxServerImpl::Conn* UcxServerImpl::FindConn(ConnId id) {
  auto it = conns_.find(id);
  return it == conns_.end() ? nullptr : it->second.get();
}

UcxServerImpl::Conn* UcxServerImpl::ConnOf(const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  auto it = by_ep_.find(param->reply_ep);
  return it == by_ep_.end() ? nullptr : FindConn(it->second);
}

// Returning UCS_OK for data that was not taken makes UCX drop it.
ucs_status_t UcxServerImpl::OnFetchMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                           const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxServerImpl*>(arg);
  Conn* conn = self->ConnOf(param);
  if (conn == nullptr) {
    self->Count(&UcxServerCounters::malformed);
    return UCS_OK;
  }
  if (conn->refused || conn->closing) return UCS_OK;
  const bool well_formed = DecodeFetch(header, header_size) && size > 0 && size <= kMaxOpenBytes &&
                           (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  std::string payload;
  if (well_formed) payload.assign(static_cast<const char*>(data), size);
  self->Defer([self, id = conn->id, well_formed, payload = std::move(payload)] {
    self->HandleFetch(id, well_formed, payload);
  });
  return UCS_OK;
}

ucs_status_t UcxServerImpl::OnStopMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                          const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxServerImpl*>(arg);
  self->OfTransfer(param, DecodeStop(header, header_size), [self](Transfer* t) { self->Stop(t, absl::Now()); });
  return UCS_OK;
}

ucs_status_t UcxServerImpl::OnBeatMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                          const ucp_am_recv_param_t* param) {
  static_cast<UcxServerImpl*>(arg)->OfTransfer(param, DecodeBeat(header, header_size),
                                               [](Transfer* t) { t->claim.Renew(); });
  return UCS_OK;
}

void UcxServerImpl::OfTransfer(const ucp_am_recv_param_t* param, std::optional<TransferId> id,
                               absl::AnyInvocable<void(Transfer*)> what) {
  Conn* conn = ConnOf(param);
  if (conn == nullptr || conn->closing || conn->refused) return;
  if (!id.has_value() || !conn->authenticated) return RejectMessage(conn);
  Defer([this, key = TransferKey(conn->id, *id), what = std::move(what)]() mutable {
    auto it = transfers_.find(key);
    if (it != transfers_.end() && !it->second.stopping) what(&it->second);
  });
}

ucs_status_t UcxServerImpl::OnUnknownMessage(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                             const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxServerImpl*>(arg);
  Conn* conn = self->ConnOf(param);
  if (conn == nullptr || !(conn->closing || conn->refused)) self->RejectMessage(conn);
  return UCS_OK;
}

// Counts a message that no client of ours sends, and ends the connection it came by, where that is known.
void UcxServerImpl::RejectMessage(Conn* conn) {
  Count(&UcxServerCounters::malformed);
  if (conn == nullptr) return;
  conn->refused = true;
  Defer([this, conn_id = conn->id] {
    if (Conn* c = FindConn(conn_id)) CloseConn(c);
  });
}

void UcxServerImpl::HandleFetch(ConnId conn_id, bool well_formed, const std::string& payload) {
  Conn* conn = FindConn(conn_id);
  if (conn == nullptr || conn->closing || conn->refused) return;
  v1::FetchOpen open;
  if (!well_formed || !open.ParseFromString(payload)) {
    Count(&UcxServerCounters::malformed);
    RefuseConn(conn, {}, absl::InvalidArgumentError("not a fetch with a ticket"));
    return;
  }
  const TransferId id = TransferId::Of(open.ticket());
  const TransferKey key(conn_id, id);
  if (transfers_.count(key) > 0) {
    Count(&UcxServerCounters::malformed);
    RefuseConn(conn, id, absl::InvalidArgumentError("the transfer runs on this connection already"));
    return;
  }
  absl::StatusOr<Claim> claim = exporter_->ClaimTicket(open);
  if (absl::IsPermissionDenied(claim.status()) || absl::IsInvalidArgument(claim.status())) {
    Count(absl::IsPermissionDenied(claim.status()) ? &UcxServerCounters::forged : &UcxServerCounters::malformed);
    RefuseConn(conn, id, claim.status());
    return;
  }
  if (!conn->authenticated) conn->eager = DescribeEndpoint(conn->ep) == "tcp";
  conn->authenticated = true;
  if (!claim.ok()) {
    Count(&UcxServerCounters::refused);
    SendEnd(conn, id, EndWith(claim.status()));
    return;
  }
  Transfer& t = transfers_[key];
  t.claim = *std::move(claim);
  t.beat_at = absl::Now() + HeartbeatInterval(t.claim.ticket());
  t.claim.SetWake([this, key] { Post([this, key] { Pump(key); }); });
  Pump(key);
}

void UcxServerImpl::RefuseConn(Conn* conn, TransferId id, const absl::Status& why) {
  conn->refused = true;
  conn->cut_at = absl::Now() + kRefusalLinger;
  SendEnd(conn, id, EndWith(why));
}

void UcxServerImpl::CloseConn(Conn* conn) {
  if (conn->closing) return;
  conn->closing = true;
  by_ep_.erase(conn->ep);
  for (auto& [key, transfer] : transfers_) {
    if (key.first != conn->id || transfer.stopping) continue;
    transfer.broken = true;
    Stop(&transfer, absl::Now());
  }
  CloseEndpoint(conn->ep, [this, id = conn->id] {
    // Sends that UCX ended are counted down by their own callbacks, which were deferred before this one.
    for (auto it = transfers_.begin(); it != transfers_.end();) {
      const auto next = std::next(it);
      if (it->first.first == id) Finish(it);
      it = next;
    }
    conns_.erase(id);
    Count(&UcxServerCounters::connections_open, -1);
  });
}

void UcxServerImpl::Stop(Transfer* transfer, absl::Time now) {
  if (transfer->stopping) return;
  transfer->stopping = true;
  transfer->cut_at = now + options_.quiet_timeout;
}

// Sends sealed blocks while the window has room. Deferred completions and the claim's wake call it again.
void UcxServerImpl::Pump(TransferKey key) {
  auto it = transfers_.find(key);
  if (it == transfers_.end()) return;
  Transfer& t = it->second;
  Conn* conn = FindConn(key.first);
  while (conn != nullptr && !t.stopping && t.in_flight < kWindow && t.claim.HasBlock()) {
    const size_t i = t.claim.next_block();
    const BlockPiece piece = t.claim.NextPiece();
    if (options_.before_block_for_test && t.claim.next_block() != i) options_.before_block_for_test(key.second, i);
    ++t.in_flight;
    Send(conn->ep, static_cast<unsigned>(UcxMessage::kBlock), EncodeBlock({key.second, piece.offset, piece.seal}), "",
         piece.bytes.data(), piece.bytes.size(), conn->eager ? UCP_AM_SEND_FLAG_EAGER : 0,
          [this, key](ucs_status_t status) { BlockSent(key, status); });
  }
  if (!t.stopping && t.claim.stop_requested()) Stop(&t, absl::Now());
  if (t.in_flight == 0 && (t.stopping || t.claim.Done())) Finish(it);
}

void UcxServerImpl::BlockSent(TransferKey key, ucs_status_t status) {
  auto it = transfers_.find(key);
  if (it == transfers_.end()) return;
  Transfer& t = it->second;
  --t.in_flight;
  if (status == UCS_OK) {
    t.claim.Renew();
    t.beat_at = absl::Now() + HeartbeatInterval(t.claim.ticket());
  } else if (!t.stopping) {
    t.broken = true;
    Stop(&t, absl::Now());
  }
  Pump(key);
}

void UcxServerImpl::Finish(Transfers::iterator it) {
  const TransferKey key = it->first;
  Transfer t = std::move(it->second);
  transfers_.erase(it);
  const v1::TransferEnd end = t.claim.MakeEnd();
  const bool delivered = !t.stopping && end.code() == 0;
  t.claim.Finish(delivered ? ClaimEnd::kDelivered : t.broken ? ClaimEnd::kBroken : ClaimEnd::kStopped);
  if (delivered) Count(&UcxServerCounters::completed);
  Conn* conn = FindConn(key.first);
  if (conn == nullptr || conn->closing) return;
  SendEnd(conn, key.second, delivered || end.code() != 0 ? end : EndWith(absl::AbortedError("the transfer was stopped")));
}

void UcxServerImpl::SendEnd(Conn* conn, TransferId id, const v1::TransferEnd& end) {
  Send(conn->ep, static_cast<unsigned>(UcxMessage::kEnd), EncodeEnd(id), end.SerializeAsString(), nullptr, 0,
       UCP_AM_SEND_FLAG_EAGER, [](ucs_status_t) {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxServer>> UcxServer::Start(Exporter* exporter, UcxOptions options) {
  absl::StatusOr<UcxAddress> bind = UcxAddress::Parse(absl::StrCat(options.bind_address, ":0"));
  if (!bind.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("UCX bind address \"", options.bind_address,
                                                   "\" is not an IPv4 address"));
  }
  if (!bind->loopback() && !options.network_trusted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "UCX has no authentication of its own, so it binds loopback only, not ", options.bind_address,
        "; set kv_network_trusted if only trusted machines reach that network"));
  }
  if (bind->host == 0) {
    return absl::InvalidArgumentError("UCX needs the address of one interface, 0.0.0.0 cannot be put on a ticket");
  }
  auto server = std::make_unique<UcxServerImpl>(exporter, std::move(options), *bind);
  if (absl::Status s = server->Start(); !s.ok()) return s;
  exporter->AddEndpoint(server->endpoint());
  return std::unique_ptr<UcxServer>(std::move(server));
}

}  // namespace baton::kvtransfer
