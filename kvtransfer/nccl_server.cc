#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "kvtransfer/nccl_link.h"
#include "kvtransfer/nccl_transport.h"
#include "proto/kv_nccl.grpc.pb.h"

namespace baton::kvtransfer {
namespace {

// How long a stream that has been refused may take to hear why.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr size_t kMaxTransfers = 1024;  // of one link

class NcclKvServiceImpl final : public NcclKvService, private v1::KvNccl::CallbackService {
 public:
  NcclKvServiceImpl(Exporter* exporter, NcclOptions options, std::unique_ptr<kernels::DeviceLane> lane)
      : exporter_(exporter),
        options_(std::move(options)),
        lane_(std::move(lane)),
        slot_bytes_(NcclSlotBytes(exporter->options().layout.block_bytes())),
        aborter_([](absl::Time) { return absl::InfiniteFuture(); }),
        loop_([this](absl::Time now) { return OnTick(now); }) {}
  ~NcclKvServiceImpl() override { Shutdown(); }

  grpc::Service* service() override { return this; }
  NcclServerCounters counters() const override {
    MutexLock lock(&counters_mu_);
    return counters_;
  }
  void Shutdown() override;

 private:
  using LinkId = uint64_t;
  using FetchKey = uint64_t;  // the receiver's number

  // Posts what gRPC says to the loop. Lives until gRPC is done with it and the loop has let go.
  class Stream final : public grpc::ServerBidiReactor<v1::NcclAsk, v1::NcclTell> {
   public:
    Stream(NcclKvServiceImpl* service, grpc::CallbackServerContext* context, LinkId id)
        : service_(service), context_(context), id_(id) {}
    void Keep(std::shared_ptr<Stream> self) { self_ = std::move(self); }
    void Read() { StartRead(&in_); }
    void Write(v1::NcclTell tell) {
      out_ = std::move(tell);
      StartWrite(&out_);
    }
    void Cancel() { context_->TryCancel(); }

   private:
    void OnReadDone(bool ok) override {
      service_->loop_.Post([s = service_, id = id_, ok, in = std::move(in_)] { s->OnRead(id, ok, in); });
    }
    void OnWriteDone(bool ok) override {
      service_->loop_.Post([s = service_, id = id_, ok] { s->OnWritten(id, ok); });
    }
    void OnCancel() override {
      service_->loop_.Post([s = service_, id = id_] { s->CloseById(id, absl::UnavailableError("the receiver is gone")); });
    }
    void OnDone() override {
      service_->loop_.Post([s = service_, id = id_] { s->OnCallDone(id); });
      self_.reset();
    }
    NcclKvServiceImpl* const service_;
    grpc::CallbackServerContext* const context_;
    const LinkId id_;
    v1::NcclAsk in_;
    v1::NcclTell out_;
    std::shared_ptr<Stream> self_;
  };

  struct Transfer {
    Claim claim;
    size_t in_flight = 0;  // groups
  };
  struct LinkState {
    std::shared_ptr<Stream> stream;
    std::deque<v1::NcclTell> out;
    bool writing = false;
    bool authenticated = false;
    bool refused = false;   // closes once `out` has left
    bool closing = false;   // nothing but the ends of stream and communicator is awaited
    bool finished = false;  // the stream's status is given
    bool stream_over = false;
    bool aborting = false;
    absl::Status why;
    absl::Time open_by;  // until it is authenticated; then, when refused, until it is cut
    absl::Time beat_at = absl::InfiniteFuture();
    NcclPipe<FetchKey> pipe;
    std::map<FetchKey, Transfer> transfers;
    FetchKey last_fetch = 0;   // opened
    FetchKey last_served = 0;
  };
  using Links = std::map<LinkId, LinkState>;

  grpc::ServerBidiReactor<v1::NcclAsk, v1::NcclTell>* Link(grpc::CallbackServerContext* context) override;

  // All on the loop.
  absl::Time OnTick(absl::Time now);
  void OnNewStream(LinkId id, std::shared_ptr<Stream> stream);
  void OnRead(LinkId id, bool ok, const v1::NcclAsk& ask);
  void OnWritten(LinkId id, bool ok);
  void OnCallDone(LinkId id);
  void OnAborted(LinkId id);
  void EraseIfOver(Links::iterator it);
  void Open(LinkId id, LinkState* link, FetchKey fetch, const v1::FetchOpen& open);
  absl::Status MakeComm(LinkState* link);
  absl::Status Progress(LinkState* link, absl::Time now);
  absl::Status SendGroups(LinkState* link, absl::Time now);
  absl::Status SendGroup(LinkState* link, FetchKey fetch, Transfer* transfer, absl::Time now);
  // Copies what is next of a claim to the slot at `offset`, and says in `group` what it is.
  absl::Status FillSlot(LinkState* link, Claim* claim, size_t offset, v1::NcclGroup* group);
  void EndTransfers(LinkState* link);
  void Say(LinkState* link, v1::NcclTell tell);
  void SayEnd(LinkState* link, FetchKey fetch, v1::TransferEnd end);
  void WriteNext(LinkState* link);
  void Refuse(LinkState* link, FetchKey fetch, const absl::Status& why);
  void CloseById(LinkId id, const absl::Status& why);
  void Close(LinkId id, LinkState* link, const absl::Status& why);
  void Count(uint64_t NcclServerCounters::*field, int64_t by = 1) {
    MutexLock lock(&counters_mu_);
    counters_.*field += static_cast<uint64_t>(by);
  }

  Exporter* const exporter_;
  const NcclOptions options_;
  const std::unique_ptr<kernels::DeviceLane> lane_;  // null: all by the host's memory
  const size_t slot_bytes_;
  Links links_;
  std::atomic<LinkId> last_link_{0};
  bool stopping_ = false;
  Mutex idle_mu_;
  CondVar idle_cv_;
  bool idle_ ABSL_GUARDED_BY(idle_mu_) = false;  // stopping, and no link is left
  mutable Mutex counters_mu_;
  NcclServerCounters counters_ ABSL_GUARDED_BY(counters_mu_);
  EventLoop aborter_;
  EventLoop loop_;  // last: its thread uses all of the above
};

void NcclKvServiceImpl::Shutdown() {
  const bool posted = loop_.Post([this] {
    stopping_ = true;
    for (auto& [id, link] : links_) Close(id, &link, absl::UnavailableError("the worker is shutting down"));
  });
  if (!posted) return;
  {
    MutexLock lock(&idle_mu_);
    while (!idle_) idle_cv_.Wait(&idle_mu_);
  }
  loop_.Stop();
  aborter_.Stop();
}

grpc::ServerBidiReactor<v1::NcclAsk, v1::NcclTell>* NcclKvServiceImpl::Link(grpc::CallbackServerContext* context) {
  const LinkId id = ++last_link_;
  auto stream = std::make_shared<Stream>(this, context, id);
  stream->Keep(stream);
  if (!loop_.Post([this, id, stream] { OnNewStream(id, stream); })) {
    stream->Finish({grpc::StatusCode::UNAVAILABLE, "the worker is shutting down"});
  }
  return stream.get();
}

void NcclKvServiceImpl::OnNewStream(LinkId id, std::shared_ptr<Stream> stream) {
  LinkState& link = links_[id];
  link.stream = std::move(stream);
  link.open_by = absl::Now() + options_.open_timeout;
  link.pipe.slot_bytes = slot_bytes_;
  Count(&NcclServerCounters::links);
  Count(&NcclServerCounters::links_open);
  if (stopping_) return Close(id, &link, absl::UnavailableError("the worker is shutting down"));
  if (links_.size() > options_.max_links) return Close(id, &link, absl::ResourceExhaustedError("too many links"));
  link.stream->Read();
}

void NcclKvServiceImpl::OnRead(LinkId id, bool ok, const v1::NcclAsk& ask) {
  auto it = links_.find(id);
  if (it == links_.end() || it->second.closing || it->second.refused) return;
  LinkState& link = it->second;
  if (!ok) return Close(id, &link, absl::UnavailableError("the receiver has closed the stream"));
  if (ask.has_open()) {
    Open(id, &link, ask.fetch(), ask.open());
  } else if (!link.authenticated || ask.beat() == ask.stop()) {
    Count(&NcclServerCounters::malformed);
    Refuse(&link, ask.fetch(), absl::InvalidArgumentError("not a fetch with a ticket"));
  } else if (ask.stop()) {
    // What is under way of it still travels; it is not read from the blocks any more.
    auto transfer = link.transfers.find(ask.fetch());
    if (transfer != link.transfers.end()) {
      transfer->second.claim.Finish(ClaimEnd::kStopped);
      link.transfers.erase(transfer);
    }
  } else {
    for (auto& [fetch, transfer] : link.transfers) transfer.claim.Renew();
  }
  if (!link.closing && !link.refused) link.stream->Read();
}

void NcclKvServiceImpl::Open(LinkId id, LinkState* link, FetchKey fetch, const v1::FetchOpen& open) {
  if (fetch <= link->last_fetch || link->transfers.size() >= kMaxTransfers) {
    Count(&NcclServerCounters::malformed);
    return Refuse(link, fetch, absl::InvalidArgumentError("a fetch whose number does not ascend, or one too many"));
  }
  link->last_fetch = fetch;
  absl::StatusOr<Claim> claim = exporter_->ClaimTicket(open, /*from_device=*/lane_ != nullptr);
  if (absl::IsPermissionDenied(claim.status()) || absl::IsInvalidArgument(claim.status())) {
    Count(absl::IsPermissionDenied(claim.status()) ? &NcclServerCounters::forged : &NcclServerCounters::malformed);
    return Refuse(link, fetch, claim.status());
  }
  link->authenticated = true;
  if (!claim.ok()) {
    Count(&NcclServerCounters::refused);
    v1::TransferEnd end;
    end.set_code(static_cast<uint32_t>(claim.status().code()));
    end.set_message(std::string(claim.status().message().substr(0, 512)));
    return SayEnd(link, fetch, std::move(end));
  }
  Transfer& transfer = link->transfers[fetch];
  transfer.claim = *std::move(claim);
  transfer.claim.SetWake([this] { loop_.Post([] {}); });  // OnTick looks at every link
  link->beat_at = std::min(link->beat_at, absl::Now() + HeartbeatInterval(transfer.claim.ticket()));
  if (absl::Status s = link->pipe.comm != nullptr ? absl::OkStatus() : MakeComm(link); !s.ok()) Close(id, link, s);
}

absl::Status NcclKvServiceImpl::MakeComm(LinkState* link) {
  absl::StatusOr<std::string> unique = NewNcclId();
  if (!unique.ok()) return unique.status();
  absl::StatusOr<std::unique_ptr<NcclComm>> comm = NcclComm::Begin(*unique, /*rank=*/0, kNcclSlots * slot_bytes_);
  if (!comm.ok()) return comm.status();
  Count(&NcclServerCounters::comms);
  link->pipe.comm = *std::move(comm);
  link->pipe.made_by = absl::Now() + options_.init_timeout;
  v1::NcclTell tell;
  tell.set_unique_id(*unique);
  Say(link, std::move(tell));
  return absl::OkStatus();
}

absl::Status NcclKvServiceImpl::Progress(LinkState* link, absl::Time now) {
  if (link->pipe.comm == nullptr) return absl::OkStatus();
  absl::StatusOr<bool> settled = link->pipe.Look(now, options_.group_timeout);
  if (!settled.ok()) return settled.status();
  if (*settled) {
    while (!link->pipe.flights.empty()) {
      const auto& flight = link->pipe.flights.front();
      absl::StatusOr<bool> completed = link->pipe.comm->Completed(flight.number);
      if (!completed.ok()) return completed.status();
      if (!*completed) break;
      auto it = link->transfers.find(flight.group);
      if (it != link->transfers.end()) {
        --it->second.in_flight;
        it->second.claim.Renew();
      }
      link->pipe.flights.pop_front();
      link->pipe.Progressed();
    }
    if (absl::Status s = SendGroups(link, now); !s.ok()) return s;
  }
  EndTransfers(link);
  return absl::OkStatus();
}

// Transfers in turn, each with what fits in a slot.
absl::Status NcclKvServiceImpl::SendGroups(LinkState* link, absl::Time now) {
  while (link->pipe.HasRoom()) {
    auto it = link->transfers.upper_bound(link->last_served);
    size_t looked = 0;
    for (; looked < link->transfers.size(); ++looked, ++it) {
      if (it == link->transfers.end()) it = link->transfers.begin();
      if (it->second.claim.HasBlock()) break;
    }
    if (looked == link->transfers.size()) return absl::OkStatus();
    link->last_served = it->first;
    if (absl::Status s = SendGroup(link, it->first, &it->second, now); !s.ok()) return s;
    absl::StatusOr<bool> settled = link->pipe.comm->Settled();
    if (!settled.ok() || !*settled) return settled.status();
  }
  return absl::OkStatus();
}

absl::Status NcclKvServiceImpl::FillSlot(LinkState* link, Claim* claim, size_t offset, v1::NcclGroup* group) {
  const size_t block_bytes = exporter_->options().layout.block_bytes();
  const size_t piece_bytes = PieceBytes(block_bytes);
  size_t used = 0;
  std::vector<const void*> ended;  // blocks whose last piece is here, on the device
  std::vector<v1::BlockSeal*> seals;
  while (group->parts_size() < kMaxNcclParts && used + piece_bytes <= slot_bytes_ && claim->HasBlock()) {
    const std::byte* const block = claim->bytes(claim->next_block()).data();
    BlockPiece piece = claim->NextPiece();
    absl::Status s = claim->from_device()
                         ? lane_->Copy(link->pipe.comm->staging() + offset + used, piece.bytes.data(), piece.bytes.size())
                         : link->pipe.comm->CopyIn(offset + used, piece.bytes);
    if (!s.ok()) return s;
    v1::NcclPart* part = group->add_parts();
    *part->mutable_seal() = std::move(piece.seal);
    part->set_offset(piece.offset);
    part->set_size(piece.bytes.size());
    used += piece.bytes.size();
    if (!claim->from_device() || piece.offset + piece.bytes.size() < block_bytes) continue;
    ended.push_back(block);
    seals.push_back(part->mutable_seal());
  }
  if (!claim->from_device()) return absl::OkStatus();
  const absl::Time begin = absl::Now();
  std::vector<uint64_t> sums(ended.size());
  absl::Status s = lane_->Checksums(ended, block_bytes, sums);
  for (size_t i = 0; i < seals.size() && s.ok(); ++i) seals[i]->set_checksum(sums[i]);
  claim->AddPosting(absl::Now() - begin);
  Count(&NcclServerCounters::device_bytes, static_cast<int64_t>(used));
  return s;
}

absl::Status NcclKvServiceImpl::SendGroup(LinkState* link, FetchKey fetch, Transfer* transfer, absl::Time now) {
  const size_t offset = link->pipe.NextOffset();
  v1::NcclTell tell;
  tell.set_fetch(fetch);
  if (options_.before_group_for_test) options_.before_group_for_test(transfer->claim.id(), link->pipe.next_slot + 1);
  absl::Status filled = FillSlot(link, &transfer->claim, offset, tell.mutable_group());
  if (!filled.ok()) {
    if (lane_ != nullptr) (void)lane_->Wait();  // nothing reads the blocks or writes the slot any more
    return absl::UnavailableError(filled.message());
  }
  std::vector<size_t> sizes;
  for (const v1::NcclPart& part : tell.group().parts()) sizes.push_back(part.size());
  if (sizes.empty()) return absl::OkStatus();  // told to stop just now
  absl::StatusOr<uint64_t> number = link->pipe.comm->SendGroup(offset, sizes);
  if (!number.ok()) return number.status();
  link->pipe.Posted(*number, fetch, now);
  ++transfer->in_flight;
  Say(link, std::move(tell));
  return absl::OkStatus();
}

void NcclKvServiceImpl::EndTransfers(LinkState* link) {
  for (auto it = link->transfers.begin(); it != link->transfers.end();) {
    Transfer& t = it->second;
    // The ticket's use counts as had only when the last byte has left.
    if (!t.claim.stop_requested() && !(t.claim.Done() && t.in_flight == 0)) {
      ++it;
      continue;
    }
    v1::TransferEnd end = t.claim.MakeEnd();
    const bool delivered = end.code() == 0;
    t.claim.Finish(delivered ? ClaimEnd::kDelivered : ClaimEnd::kStopped);
    if (delivered) Count(&NcclServerCounters::completed);
    SayEnd(link, it->first, std::move(end));
    it = link->transfers.erase(it);
  }
}

void NcclKvServiceImpl::Say(LinkState* link, v1::NcclTell tell) {
  link->out.push_back(std::move(tell));
  WriteNext(link);
}

void NcclKvServiceImpl::SayEnd(LinkState* link, FetchKey fetch, v1::TransferEnd end) {
  v1::NcclTell tell;
  tell.set_fetch(fetch);
  *tell.mutable_end() = std::move(end);
  Say(link, std::move(tell));
}

// Closing, the stream's status goes out once no write is under way.
void NcclKvServiceImpl::WriteNext(LinkState* link) {
  if (link->writing || link->finished) return;
  if (link->closing || (link->refused && link->out.empty())) {
    link->finished = true;
    return link->stream->Finish(ToGrpcStatus(link->why));
  }
  if (link->out.empty()) return;
  link->writing = true;
  v1::NcclTell tell = std::move(link->out.front());
  link->out.pop_front();
  link->stream->Write(std::move(tell));
}

void NcclKvServiceImpl::OnWritten(LinkId id, bool ok) {
  auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second.writing = false;
  if (!ok) Close(id, &it->second, absl::UnavailableError("the receiver is gone"));
  WriteNext(&it->second);
}

// Says why, to the fetch that was asked for; then the link ends, with all that is on it.
void NcclKvServiceImpl::Refuse(LinkState* link, FetchKey fetch, const absl::Status& why) {
  link->why = why;
  link->open_by = absl::Now() + kLinger;
  v1::TransferEnd end;
  end.set_code(static_cast<uint32_t>(why.code()));
  end.set_message(std::string(why.message().substr(0, 512)));
  SayEnd(link, fetch, std::move(end));
  link->refused = true;
}

void NcclKvServiceImpl::CloseById(LinkId id, const absl::Status& why) {
  if (auto it = links_.find(id); it != links_.end()) Close(id, &it->second, why);
}

void NcclKvServiceImpl::Close(LinkId id, LinkState* link, const absl::Status& why) {
  if (link->closing) return;
  link->closing = true;
  if (!link->refused) link->why = why;
  if (!link->transfers.empty()) Count(&NcclServerCounters::broken);
  for (auto& [fetch, transfer] : link->transfers) transfer.claim.Finish(ClaimEnd::kBroken);
  link->transfers.clear();
  link->out.clear();
  if (link->pipe.comm != nullptr) {
    link->aborting = true;
    aborter_.Post([this, id, comm = std::move(link->pipe.comm)]() mutable {
      comm.reset();
      loop_.Post([this, id] { OnAborted(id); });
    });
  }
  if (link->writing) link->stream->Cancel();
  WriteNext(link);
}

void NcclKvServiceImpl::OnAborted(LinkId id) {
  auto it = links_.find(id);
  it->second.aborting = false;
  EraseIfOver(it);
}

void NcclKvServiceImpl::OnCallDone(LinkId id) {
  auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second.stream_over = true;
  it->second.finished = true;
  Close(id, &it->second, absl::UnavailableError("the receiver is gone"));
  EraseIfOver(it);
}

void NcclKvServiceImpl::EraseIfOver(Links::iterator it) {
  if (!it->second.stream_over || it->second.aborting) return;
  links_.erase(it);
  Count(&NcclServerCounters::links_open, -1);
}

absl::Time NcclKvServiceImpl::OnTick(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [id, link] : links_) {
    if (link.closing) continue;
    if ((!link.authenticated || link.refused) && now >= link.open_by) {
      if (!link.refused) Count(&NcclServerCounters::malformed);
      Close(id, &link, absl::DeadlineExceededError("no valid ticket came in time"));
      continue;
    }
    if (!link.authenticated || link.refused) next = std::min(next, link.open_by);
    if (absl::Status s = Progress(&link, now); !s.ok()) {
      Close(id, &link, s);
      continue;
    }
    if (link.pipe.waiting()) next = std::min(next, link.pipe.NextLook(now));
    if (now >= link.beat_at) {
      absl::Duration interval = absl::InfiniteDuration();
      for (const auto& [fetch, t] : link.transfers) interval = std::min(interval, HeartbeatInterval(t.claim.ticket()));
      link.beat_at = now + interval;
      v1::NcclTell beat;
      beat.set_beat(true);
      if (link.out.empty() && !link.transfers.empty()) Say(&link, std::move(beat));
    }
    next = std::min(next, link.beat_at);
  }
  if (stopping_ && links_.empty()) {
    MutexLock lock(&idle_mu_);
    idle_ = true;
    idle_cv_.SignalAll();
  }
  return next;
}

class NcclKvServer final : public TransportServer {
 public:
  NcclKvServer(std::shared_ptr<NcclKvService> service, v1::Endpoint endpoint)
      : service_(std::move(service)), endpoint_(std::move(endpoint)) {}
  ~NcclKvServer() override { Shutdown(); }
  v1::Endpoint endpoint() const override { return endpoint_; }
  void Shutdown() override { service_->Shutdown(); }

 private:
  const std::shared_ptr<NcclKvService> service_;
  const v1::Endpoint endpoint_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<NcclKvService>> NcclKvService::Create(Exporter* exporter, NcclOptions options) {
  absl::StatusOr<std::string> nccl = StartNccl(options.network_trusted);
  if (!nccl.ok()) return nccl.status();
  absl::StatusOr<std::unique_ptr<kernels::DeviceLane>> lane =
      LaneFor(options.device, exporter->options().layout.block_bytes());
  if (!lane.ok()) return lane.status();
  return std::make_shared<NcclKvServiceImpl>(exporter, std::move(options), *std::move(lane));
}

std::unique_ptr<TransportServer> MakeNcclKvServer(Exporter* exporter, std::shared_ptr<NcclKvService> service,
                                                  const v1::Endpoint& kv_port) {
  v1::Endpoint endpoint = kv_port;
  endpoint.set_transport("nccl");
  exporter->AddEndpoint(endpoint);
  return std::make_unique<NcclKvServer>(std::move(service), std::move(endpoint));
}

}  // namespace baton::kvtransfer
