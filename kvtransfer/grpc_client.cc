#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "kvtransfer/event_loop.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/grpc_wire.h"
#include "kvtransfer/receiver.h"

namespace baton::kvtransfer {
namespace {

constexpr char kName[] = "grpc";
// How long a call that the client gave up may take to end by itself before it is cancelled.
constexpr absl::Duration kQuietTimeout = absl::Seconds(1);

class GrpcKvClient final : public TransportClient {
 public:
  GrpcKvClient(ReceiverOptions receiver, GrpcKvOptions options)
      : receiver_(std::move(receiver)),
        options_(std::move(options)),
        loop_([this](absl::Time now) { return OnTick(now); }) {}
  ~GrpcKvClient() override { Shutdown(); }

  absl::string_view name() const override { return kName; }
  FetchId Fetch(FetchRequest request, FetchCallback done) override;
  void Cancel(FetchId id) override {
    loop_.Post([this, id] { Fail(id, absl::CancelledError("the fetch was cancelled")); });
  }
  void Shutdown() override;

 private:
  // The reactor of one stream. The loop starts its operations, which gRPC allows while the hold is there.
  class Call final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    Call(GrpcKvClient* client, FetchId id) : client_(client), id_(id) {}
    // On the loop.
    void Begin(grpc::GenericStub* stub, std::shared_ptr<Call> self) {
      self_ = std::move(self);
      stub->PrepareBidiStreamingCall(&context_, kGrpcFetchMethod, {}, this);
      AddHold();
      StartRead(&in_);
      StartCall();
    }
    void Say(const v1::KvFetchMessage& message) {
      if (!open_) return;
      queue_.push_back(EncodeFetchMessage(message));
      WriteNext();
    }
    void ReadNext() { StartRead(&in_); }
    void Written(bool ok) {
      queue_.pop_front();
      writing_ = false;
      if (ok && open_) WriteNext();
    }
    // No operation is started after it.
    void LetGo() {
      if (!open_) return;
      open_ = false;
      RemoveHold();
    }
    void TryCancel() { context_.TryCancel(); }

    bool over = false;           // its fetch has ended; what still comes is dropped
    absl::Time cancel_at = absl::InfiniteFuture();

   private:
    void WriteNext() {
      if (writing_ || queue_.empty()) return;
      writing_ = true;
      StartWrite(&queue_.front());
    }
    void OnReadDone(bool ok) override {
      client_->loop_.Post([c = client_, self = self_, id = id_, ok, in = std::move(in_)] { c->OnRead(id, self, ok, in); });
    }
    void OnWriteDone(bool ok) override {
      client_->loop_.Post([self = self_, ok] { self->Written(ok); });
    }
    void OnDone(const grpc::Status& status) override {
      client_->loop_.Post([c = client_, self = self_, id = id_, status] { c->OnCallDone(id, self, status); });
      self_.reset();
    }
    GrpcKvClient* const client_;
    const FetchId id_;
    grpc::ClientContext context_;
    grpc::ByteBuffer in_;
    std::deque<grpc::ByteBuffer> queue_;
    bool writing_ = false;
    bool open_ = true;
    std::shared_ptr<Call> self_;
  };

  struct Job {
    FetchId id = 0;
    Reception reception;
    FetchCallback done;
    std::shared_ptr<Call> call = nullptr;
    int attempts = 0;
    bool heard = false;
    bool server_done = false;
    absl::Time retry_at = absl::InfiniteFuture();
    absl::Time silent_at = absl::InfiniteFuture();
    absl::Time beat_at = absl::InfiniteFuture();
    // The block that is arriving.
    uint32_t block_idx = 0;
    std::span<std::byte> to = {};
    size_t offset = 0;
  };
  struct Peer {
    std::string incarnation, address;
    std::shared_ptr<grpc::GenericStub> stub;
  };

  // All on the loop.
  absl::Time OnTick(absl::Time now);
  void Begin(Job job);
  void Connect(Job* job);
  std::shared_ptr<grpc::GenericStub> StubOf(const v1::Endpoint& endpoint);
  void OnRead(FetchId id, const std::shared_ptr<Call>& call, bool ok, const grpc::ByteBuffer& in);
  absl::Status Take(Job* job, const Frame& frame);
  void OnCallDone(FetchId id, const std::shared_ptr<Call>& call, const grpc::Status& status);
  void Fail(FetchId id, const absl::Status& why);
  void MaybeSucceed(FetchId id);
  void Release(Job* job);

  const ReceiverOptions receiver_;
  const GrpcKvOptions options_;
  std::atomic<FetchId> last_id_{0};
  std::map<FetchId, Job> jobs_;
  std::map<const Call*, std::shared_ptr<Call>> calls_;  // until gRPC is done with them
  std::map<std::string, Peer> peers_;                   // by worker name: one incarnation each, the latest
  bool stopping_ = false;
  Mutex idle_mu_;
  CondVar idle_cv_;
  bool idle_ ABSL_GUARDED_BY(idle_mu_) = false;  // stopping, and no call is left
  EventLoop loop_;  // last: its thread uses all of the above
};

FetchId GrpcKvClient::Fetch(FetchRequest request, FetchCallback done) {
  const FetchId id = ++last_id_;
  auto held = std::make_shared<Job>(
      Job{.id = id, .reception = Reception(&receiver_, kName, std::move(request)), .done = std::move(done)});
  if (!loop_.Post([this, held] { Begin(std::move(*held)); })) {
    held->done(absl::CancelledError("the transport is shut down"), std::move(held->reception.destination()));
  }
  return id;
}

void GrpcKvClient::Shutdown() {
  const bool posted = loop_.Post([this] {
    stopping_ = true;
    std::vector<FetchId> ids;
    for (const auto& [id, job] : jobs_) ids.push_back(id);
    for (FetchId id : ids) Fail(id, absl::CancelledError("the transport is shut down"));
    for (auto& [raw, call] : calls_) call->TryCancel();
  });
  if (!posted) return;
  {
    MutexLock lock(&idle_mu_);
    while (!idle_) idle_cv_.Wait(&idle_mu_);
  }
  loop_.Stop();
}

void GrpcKvClient::Begin(Job job) {
  absl::Status s = stopping_ ? absl::CancelledError("the transport is shut down") : job.reception.Check();
  if (s.ok() && absl::Now() >= job.reception.deadline()) {
    s = absl::DeadlineExceededError("the deadline passed before the KV fetch");
  }
  if (s.ok()) {
    const v1::Endpoint& endpoint = job.reception.endpoint();
    s = options_.security.CheckAddress(absl::StrCat("the KV port of worker ", endpoint.worker_name()), endpoint.address());
  }
  if (!s.ok()) return job.done(std::move(s), std::move(job.reception.destination()));
  const FetchId id = job.id;
  Connect(&jobs_.emplace(id, std::move(job)).first->second);
}

std::shared_ptr<grpc::GenericStub> GrpcKvClient::StubOf(const v1::Endpoint& endpoint) {
  Peer& peer = peers_[endpoint.worker_name()];
  if (peer.stub == nullptr || peer.incarnation != endpoint.incarnation() || peer.address != endpoint.address()) {
    rpc::ChannelOptions options;
    options.security = options_.security;
    options.peer = options_.peer;
    options.own_connection = true;  // a restarted worker meets no back-off of its former self
    options.retry_unavailable = false;
    options.bulk = true;
    options.max_message_bytes = static_cast<int>(kMaxFrameBytes + kMaxFrameHeaderBytes + 64);
    peer.incarnation = endpoint.incarnation();
    peer.address = endpoint.address();
    peer.stub = std::make_shared<grpc::GenericStub>(rpc::CreateChannel(endpoint.address(), options));
  }
  return peer.stub;
}

void GrpcKvClient::Connect(Job* job) {
  const absl::Time now = absl::Now();
  const uint32_t retry = static_cast<uint32_t>(job->attempts++);
  job->retry_at = absl::InfiniteFuture();
  job->silent_at = now + SilenceLimit(job->reception.ticket());
  job->beat_at = now + HeartbeatInterval(job->reception.ticket());
  job->call = std::make_shared<Call>(this, job->id);
  calls_[job->call.get()] = job->call;
  job->call->Begin(StubOf(job->reception.endpoint()).get(), job->call);
  v1::KvFetchMessage message;
  *message.mutable_open() = job->reception.Open(retry);
  job->call->Say(message);
}

void GrpcKvClient::OnRead(FetchId id, const std::shared_ptr<Call>& call, bool ok, const grpc::ByteBuffer& in) {
  if (!ok) return call->LetGo();  // the status follows
  auto it = call->over ? jobs_.end() : jobs_.find(id);
  if (it == jobs_.end()) return call->ReadNext();
  Job& job = it->second;
  job.heard = true;
  job.silent_at = absl::Now() + SilenceLimit(job.reception.ticket());
  const std::optional<Frame> frame = DecodeFrame(in);
  const absl::Status s = frame.has_value() ? Take(&job, *frame) : absl::DataLossError("a frame that is not one arrived");
  call->ReadNext();
  if (!s.ok()) return Fail(id, s);
  MaybeSucceed(id);
}

absl::Status GrpcKvClient::Take(Job* job, const Frame& frame) {
  const v1::KvFrameHeader& header = frame.header;
  if (header.has_end()) {
    job->server_done = true;
    return job->reception.TakeEnd(header.end());
  }
  if (frame.data_bytes == 0) return absl::OkStatus();  // a heartbeat
  const bool begins = header.offset() == 0;
  const bool in_order = begins ? header.has_seal() && header.seal().block_idx() == header.block_idx() && job->to.empty()
                               : header.block_idx() == job->block_idx && header.offset() == job->offset;
  if (!in_order) return absl::DataLossError("a block's frames arrived out of order; prefill again");
  if (begins) {
    absl::StatusOr<std::span<std::byte>> place = job->reception.Place(header.seal(), receiver_.layout.block_bytes());
    if (!place.ok()) return place.status();
    if (place->empty()) return absl::DataLossError(absl::StrCat("block ", header.block_idx(), " arrived twice"));
    job->block_idx = header.block_idx();
    job->to = *place;
    job->offset = 0;
  }
  if (frame.data_bytes > job->to.size() - job->offset) {
    return absl::DataLossError(absl::StrCat("block ", header.block_idx(), " arrived longer than the layout says"));
  }
  for (const std::span<const std::byte> part : frame.data) {
    std::memcpy(job->to.data() + job->offset, part.data(), part.size());
    job->offset += part.size();
  }
  if (job->offset < job->to.size()) return absl::OkStatus();
  job->to = {};
  return job->reception.Arrived(job->block_idx);
}

void GrpcKvClient::MaybeSucceed(FetchId id) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.reception.complete()) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  Release(&job);
  FetchResult result = job.reception.Result(options_.security.tls() ? "tls" : "plain text");
  job.done(std::move(result), std::move(job.reception.destination()));
}

// The stream ends by itself: after the sender's last word, or after ours.
void GrpcKvClient::Release(Job* job) {
  if (job->call == nullptr) return;
  job->call->over = true;
  job->call->cancel_at = absl::Now() + kQuietTimeout;
  if (!job->server_done) {
    v1::KvFetchMessage message;
    message.set_stop(true);
    job->call->Say(message);
  }
}

void GrpcKvClient::Fail(FetchId id, const absl::Status& why) {
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  Release(&job);
  job.done(absl::Status(why.code(), why.message()), std::move(job.reception.destination()));
}

void GrpcKvClient::OnCallDone(FetchId id, const std::shared_ptr<Call>& call, const grpc::Status& status) {
  calls_.erase(call.get());
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.call != call) return;
  Job& job = it->second;
  const bool unavailable = status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                           status.error_code() == grpc::StatusCode::CANCELLED ||
                           status.error_code() == grpc::StatusCode::INTERNAL ||
                           status.error_code() == grpc::StatusCode::UNKNOWN;
  if (unavailable && !job.heard && job.attempts < options_.connect_attempts) {
    job.call = nullptr;
    job.silent_at = job.beat_at = absl::InfiniteFuture();
    job.retry_at = absl::Now() + options_.connect_backoff * (1 << (job.attempts - 1));
    return;
  }
  job.call = nullptr;
  const std::string text = absl::StrCat("the stream from worker ", job.reception.endpoint().worker_name(), " broke: ",
                                        status.ok() ? "it ended early" : status.error_message());
  Fail(id, unavailable ? absl::UnavailableError(text) : absl::Status(FromGrpcStatus(status).code(), text));
}

absl::Time GrpcKvClient::OnTick(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  std::vector<std::pair<FetchId, absl::Status>> failed;
  std::vector<FetchId> retry;
  for (auto& [id, job] : jobs_) {
    if (now >= job.reception.deadline()) {
      failed.emplace_back(id, absl::DeadlineExceededError("the deadline passed during the KV fetch"));
    } else if (now >= job.silent_at) {
      failed.emplace_back(id, absl::UnavailableError("the exporting worker fell silent during the KV fetch"));
      // When the way works again the old connection still waits to send, for seconds; a new one is there at once.
      peers_.erase(job.reception.endpoint().worker_name());
    } else if (now >= job.retry_at) {
      retry.push_back(id);
    } else if (now >= job.beat_at && job.call != nullptr) {
      job.beat_at = now + HeartbeatInterval(job.reception.ticket());
      v1::KvFetchMessage message;
      message.set_beat(true);
      job.call->Say(message);
    }
    next = std::min({next, job.reception.deadline(), job.silent_at, job.retry_at, job.beat_at});
  }
  for (const auto& [id, why] : failed) Fail(id, why);
  for (FetchId id : retry) {
    if (auto it = jobs_.find(id); it != jobs_.end()) Connect(&it->second);
  }
  for (auto& [raw, call] : calls_) {
    if (now >= call->cancel_at) {
      call->cancel_at = absl::InfiniteFuture();
      call->TryCancel();
    }
    next = std::min(next, call->cancel_at);
  }
  if (stopping_ && calls_.empty()) {
    peers_.clear();
    MutexLock lock(&idle_mu_);
    idle_ = true;
    idle_cv_.SignalAll();
  }
  return next;
}

}  // namespace

std::unique_ptr<TransportClient> MakeGrpcKvClient(ReceiverOptions receiver, GrpcKvOptions options) {
  return std::make_unique<GrpcKvClient>(std::move(receiver), std::move(options));
}

}  // namespace baton::kvtransfer
