#include <grpcpp/generic/async_generic_service.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/server.h"
#include "common/status.h"
#include "kvtransfer/event_loop.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/grpc_wire.h"
#include "kvtransfer/locality.h"

namespace baton::kvtransfer {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);

// Counts the slices of pool memory that gRPC holds. Slices end on any thread, some of them after the call they were for.
class SliceBook : public std::enable_shared_from_this<SliceBook> {
 public:
  using CallCount = std::shared_ptr<std::atomic<int>>;

  // `freed` runs, on some thread, when the last slice of `count` has ended; it must only post.
  grpc::Slice Lend(std::span<const std::byte> bytes, CallCount count, std::function<void()> freed) {
    {
      MutexLock lock(&mu_);
      ++lent_;
    }
    ++*count;
    auto* token = new Token{shared_from_this(), std::move(count), std::move(freed)};
    return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), &SliceBook::OnFreed, token);
  }
  // Returns when gRPC holds none any more.
  void WaitUntilNoneIsLent() {
    MutexLock lock(&mu_);
    while (lent_ > 0) none_.Wait(&mu_);
  }

 private:
  struct Token {
    std::shared_ptr<SliceBook> book;
    CallCount count;
    std::function<void()> freed;
  };
  static void OnFreed(void* user_data) {
    const std::unique_ptr<Token> token(static_cast<Token*>(user_data));
    if (--*token->count == 0) token->freed();
    MutexLock lock(&token->book->mu_);
    if (--token->book->lent_ == 0) token->book->none_.SignalAll();
  }
  Mutex mu_;
  CondVar none_;
  int64_t lent_ ABSL_GUARDED_BY(mu_) = 0;
};

class GrpcKvServerImpl final : public GrpcKvServer, private grpc::CallbackGenericService {
 public:
  GrpcKvServerImpl(Exporter* exporter, GrpcKvOptions options)
      : exporter_(exporter), options_(std::move(options)), loop_([this](absl::Time now) { return OnTick(now); }) {}
  ~GrpcKvServerImpl() override { Shutdown(); }

  absl::Status Start();
  v1::Endpoint endpoint() const override { return endpoint_; }
  void Shutdown() override;
  GrpcKvServerCounters counters() const override {
    MutexLock lock(&counters_mu_);
    return counters_;
  }

 private:
  using CallId = uint64_t;

  // The reactor: posts what gRPC says to the loop. Lives until gRPC is done with it and the loop has let go.
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    Call(GrpcKvServerImpl* server, CallId id) : server_(server), id_(id) {}
    void Keep(std::shared_ptr<Call> self) { self_ = std::move(self); }
    void Read() { StartRead(&in_); }
    void Write(grpc::ByteBuffer frame) {
      out_ = std::move(frame);
      StartWrite(&out_);
    }
    void WriteLast(grpc::ByteBuffer frame) {
      out_ = std::move(frame);
      StartWriteAndFinish(&out_, grpc::WriteOptions(), grpc::Status::OK);
    }

   private:
    void OnReadDone(bool ok) override {
      server_->loop_.Post([s = server_, id = id_, ok, in = std::move(in_)] { s->OnRead(id, ok, in); });
    }
    void OnWriteDone(bool ok) override {
      out_.Clear();  // else it holds the pool's memory until the next frame
      server_->loop_.Post([s = server_, id = id_, ok] { s->OnWritten(id, ok); });
    }
    void OnCancel() override {
      server_->loop_.Post([s = server_, id = id_] { s->OnCancelled(id); });
    }
    void OnDone() override {
      server_->loop_.Post([s = server_, id = id_] { s->OnCallDone(id); });
      self_.reset();
    }
    GrpcKvServerImpl* const server_;
    const CallId id_;
    grpc::ByteBuffer in_, out_;
    std::shared_ptr<Call> self_;
  };

  struct Transfer {
    std::shared_ptr<Call> call;
    Claim claim;
    absl::Time open_by;  // until a claim is there
    absl::Time beat_at = absl::InfiniteFuture();
    SliceBook::CallCount slices = std::make_shared<std::atomic<int>>(0);
    bool opened = false;
    bool writing = false;
    bool stopping = false;  // nothing more is sent but the end
    bool broken = false;    // nor that
    bool ended = false;     // the last message, or the status, is on its way
    bool over = false;      // gRPC is done with the call; it may still hold some of its memory
    // The block that is being sent.
    v1::BlockSeal seal;
    std::span<const std::byte> bytes;
    size_t offset = 0;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  // All on the loop.
  absl::Time OnTick(absl::Time now);
  void OnNewCall(CallId id, std::shared_ptr<Call> call, bool known_method);
  void OnRead(CallId id, bool ok, const grpc::ByteBuffer& in);
  void OnWritten(CallId id, bool ok);
  void OnCancelled(CallId id);
  void OnCallDone(CallId id);
  void Open(CallId id, Transfer* t, const v1::FetchOpen& open);
  void Pump(CallId id);
  void SendFrame(CallId id, Transfer* t);
  void EndIfQuiet(Transfer* t);
  void FreeIfQuiet(std::map<CallId, Transfer>::iterator it);
  void Refuse(Transfer* t, const absl::Status& why);
  void Count(uint64_t GrpcKvServerCounters::*field, int64_t by = 1) {
    MutexLock lock(&counters_mu_);
    counters_.*field += static_cast<uint64_t>(by);
  }

  Exporter* const exporter_;
  const GrpcKvOptions options_;
  v1::Endpoint endpoint_;
  const std::shared_ptr<SliceBook> slices_ = std::make_shared<SliceBook>();
  std::map<CallId, Transfer> transfers_;
  std::atomic<CallId> last_call_{0};
  std::atomic<size_t> open_calls_{0};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<rpc::Server> server_;
  Mutex shutdown_mu_;
  mutable Mutex counters_mu_;
  GrpcKvServerCounters counters_ ABSL_GUARDED_BY(counters_mu_);
  EventLoop loop_;  // last: its thread uses all of the above
};

absl::Status GrpcKvServerImpl::Start() {
  absl::StatusOr<rpc::HostPort> target = rpc::ParseHostPort(options_.listen);
  if (!target.ok()) return target.status();
  if (target->host == "0.0.0.0" || target->host == "::" || target->host == "0") {
    return absl::InvalidArgumentError(absl::StrCat(
        "the KV port cannot listen on ", target->host, ", for its address goes to other workers on tickets; give `listen` "
        "the address of the interface that they reach"));
  }
  rpc::ServerOptions options;
  options.listen = options_.listen;
  options.security = options_.security;
  options.quota_bytes = options_.quota_bytes;
  options.max_message_bytes = static_cast<int>(kMaxOpenBytes) + 4096;
  options.max_concurrent_streams = static_cast<int>(options_.max_fetches);
  options.reflection = false;
  options.generic_service = this;
  std::vector<rpc::NamedService> services;
  const rpc::PeerRoles workers = {rpc::PeerRole::kPrefill, rpc::PeerRole::kDecode};
  services.push_back({"baton.v1.KvTransport", options_.link_service, workers});
  for (const auto& [name, service] : options_.services) services.push_back({name, service.get(), workers});
  absl::StatusOr<std::unique_ptr<rpc::Server>> server = rpc::Server::Start(options, services);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  server_->SetServing(true);
  endpoint_.set_worker_name(exporter_->options().worker_name);
  endpoint_.set_incarnation(exporter_->options().incarnation);
  endpoint_.set_transport("grpc");
  endpoint_.set_address(server_->address());
  if (rpc::IsLoopback(target->host)) endpoint_.set_locality(NetworkLocality());
  return absl::OkStatus();
}

void GrpcKvServerImpl::Shutdown() {
  MutexLock lock(&shutdown_mu_);
  if (stopping_.exchange(true)) return;
  loop_.Post([this] {
    for (auto& [id, t] : transfers_) {
      t.stopping = true;
      t.broken = true;
      EndIfQuiet(&t);
    }
  });
  if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
  slices_->WaitUntilNoneIsLent();
  loop_.Stop();
  transfers_.clear();  // claims that a call's end did not end
}

grpc::ServerGenericBidiReactor* GrpcKvServerImpl::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const CallId id = ++last_call_;
  auto call = std::make_shared<Call>(this, id);
  call->Keep(call);
  ++open_calls_;
  loop_.Post([this, id, call, known = context->method() == kGrpcFetchMethod] { OnNewCall(id, call, known); });
  return call.get();
}

void GrpcKvServerImpl::OnNewCall(CallId id, std::shared_ptr<Call> call, bool known_method) {
  Transfer& t = transfers_[id];
  t.call = std::move(call);
  t.open_by = absl::Now() + options_.open_timeout;
  Count(&GrpcKvServerCounters::fetches);
  Count(&GrpcKvServerCounters::fetches_open);
  absl::Status refusal;
  if (!known_method) refusal = absl::UnimplementedError("no such method here");
  if (stopping_) refusal = absl::UnavailableError("the worker is shutting down");
  if (open_calls_ > options_.max_fetches) refusal = absl::ResourceExhaustedError("too many fetches run; try again");
  if (refusal.ok()) return t.call->Read();
  t.ended = true;
  t.call->Finish(ToGrpcStatus(refusal));
}

void GrpcKvServerImpl::OnRead(CallId id, bool ok, const grpc::ByteBuffer& in) {
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second.ended) return;
  Transfer& t = it->second;
  if (!ok) {
    // The client has said its last word, or is gone; OnCancelled tells which.
    if (!t.opened) {
      Count(&GrpcKvServerCounters::malformed);
      Refuse(&t, absl::InvalidArgumentError("the stream ended before its FetchOpen"));
    }
    return;
  }
  const std::optional<v1::KvFetchMessage> message = DecodeFetchMessage(in);
  if (!message.has_value() || message->has_open() == t.opened) {
    Count(&GrpcKvServerCounters::malformed);
    t.stopping = t.broken = t.opened;
    return t.opened ? EndIfQuiet(&t) : Refuse(&t, absl::InvalidArgumentError("not a fetch with a ticket"));
  }
  if (message->has_open()) {
    Open(id, &t, message->open());
    if (t.ended) return;
  } else {
    t.claim.Renew();
    t.stopping = t.stopping || message->stop();
  }
  t.call->Read();
  Pump(id);
}

void GrpcKvServerImpl::Open(CallId id, Transfer* t, const v1::FetchOpen& open) {
  t->opened = true;
  absl::StatusOr<Claim> claim = exporter_->ClaimTicket(open);
  if (!claim.ok()) {
    Count(absl::IsPermissionDenied(claim.status())    ? &GrpcKvServerCounters::forged
          : absl::IsInvalidArgument(claim.status()) ? &GrpcKvServerCounters::malformed
                                                      : &GrpcKvServerCounters::refused);
    return Refuse(t, claim.status());
  }
  t->claim = *std::move(claim);
  t->beat_at = absl::Now() + HeartbeatInterval(t->claim.ticket());
  t->claim.SetWake([this, id] { loop_.Post([this, id] { Pump(id); }); });
}

// The reason goes as a transfer's end: the client treats it as any sender's last word.
void GrpcKvServerImpl::Refuse(Transfer* t, const absl::Status& why) {
  v1::KvFrameHeader header;
  header.mutable_end()->set_code(static_cast<uint32_t>(why.code()));
  header.mutable_end()->set_message(std::string(why.message().substr(0, 512)));
  t->ended = true;
  t->call->WriteLast(EncodeFrame(header, nullptr));
}

void GrpcKvServerImpl::OnWritten(CallId id, bool ok) {
  auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  Transfer& t = it->second;
  t.writing = false;
  if (t.ended) return;
  if (!ok) {
    t.stopping = t.broken = true;
  } else if (t.claim) {
    t.claim.Renew();
    t.beat_at = absl::Now() + HeartbeatInterval(t.claim.ticket());
  }
  Pump(id);
}

void GrpcKvServerImpl::OnCancelled(CallId id) {
  auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  it->second.stopping = it->second.broken = true;
  EndIfQuiet(&it->second);
}

void GrpcKvServerImpl::OnCallDone(CallId id) {
  auto it = transfers_.find(id);
  --open_calls_;
  if (it == transfers_.end()) return;
  it->second.over = true;
  FreeIfQuiet(it);
}

// The claim, and with it the blocks, goes once gRPC has let go of their bytes.
void GrpcKvServerImpl::FreeIfQuiet(std::map<CallId, Transfer>::iterator it) {
  Transfer& t = it->second;
  if (!t.over || *t.slices > 0) return;
  if (t.claim) t.claim.Finish(ClaimEnd::kBroken);
  Count(&GrpcKvServerCounters::fetches_open, -1);
  transfers_.erase(it);
}

// Sends what may be sent. Completed writes, freed slices and the claim's wake call it again.
void GrpcKvServerImpl::Pump(CallId id) {
  auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  if (it->second.over) return FreeIfQuiet(it);
  if (it->second.ended || it->second.writing) return;
  Transfer& t = it->second;
  if (!t.claim) return t.stopping ? EndIfQuiet(&t) : void();
  if (t.claim.stop_requested()) t.stopping = true;
  if (!t.stopping && t.offset == t.bytes.size() && t.claim.HasBlock()) {
    const size_t i = t.claim.next_block();
    if (options_.before_block_for_test) options_.before_block_for_test(t.claim.id(), i);
    t.bytes = t.claim.bytes(i);
    t.seal = t.claim.MakeSeal();
    t.offset = 0;
  }
  if (!t.stopping && t.offset < t.bytes.size()) return SendFrame(id, &t);
  if (t.stopping || t.claim.Done()) EndIfQuiet(&t);
}

void GrpcKvServerImpl::SendFrame(CallId id, Transfer* t) {
  const std::span<const std::byte> part = t->bytes.subspan(t->offset, std::min(kMaxFrameBytes, t->bytes.size() - t->offset));
  v1::KvFrameHeader header;
  header.set_block_idx(t->seal.block_idx());
  header.set_offset(t->offset);
  if (t->offset == 0) *header.mutable_seal() = t->seal;
  t->offset += part.size();
  t->writing = true;
  const grpc::Slice slice =
      slices_->Lend(part, t->slices, [this, id] { loop_.Post([this, id] { Pump(id); }); });
  t->call->Write(EncodeFrame(header, &slice));
}

// Ends the transfer once gRPC holds none of its memory: the last word is said after the last byte was read. A stream that
// broke is ended at once: what gRPC has queued for it goes only with the call, and FreeIfQuiet waits for that.
void GrpcKvServerImpl::EndIfQuiet(Transfer* t) {
  if (t->ended || t->writing) return;
  if (t->broken || !t->claim) {
    t->ended = true;
    return t->call->Finish({grpc::StatusCode::UNAVAILABLE, "the stream broke"});
  }
  if (*t->slices > 0) return;
  t->ended = true;
  v1::KvFrameHeader header;
  *header.mutable_end() = t->claim.MakeEnd();
  const bool delivered = header.end().code() == 0;
  t->claim.Finish(delivered ? ClaimEnd::kDelivered : ClaimEnd::kStopped);
  if (delivered) Count(&GrpcKvServerCounters::completed);
  t->call->WriteLast(EncodeFrame(header, nullptr));
}

absl::Time GrpcKvServerImpl::OnTick(absl::Time now) {
  for (auto& [id, t] : transfers_) {
    if (t.ended) continue;
    if (t.stopping) EndIfQuiet(&t);
    if (t.ended) continue;
    if (!t.opened && now >= t.open_by) {
      Count(&GrpcKvServerCounters::malformed);
      t.ended = true;
      t.call->Finish({grpc::StatusCode::DEADLINE_EXCEEDED, "no FetchOpen came in time"});
    } else if (t.claim && !t.writing && now >= t.beat_at) {
      t.beat_at = now + HeartbeatInterval(t.claim.ticket());
      t.writing = true;
      t.call->Write(EncodeFrame(v1::KvFrameHeader(), nullptr));
    }
  }
  return transfers_.empty() ? absl::InfiniteFuture() : now + kTick;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcKvServer>> GrpcKvServer::Start(Exporter* exporter, GrpcKvOptions options,
                                                                  bool advertise) {
  auto server = std::make_unique<GrpcKvServerImpl>(exporter, std::move(options));
  if (absl::Status s = server->Start(); !s.ok()) return s;
  if (advertise) exporter->AddEndpoint(server->endpoint());
  return std::unique_ptr<GrpcKvServer>(std::move(server));
}

}  // namespace baton::kvtransfer
