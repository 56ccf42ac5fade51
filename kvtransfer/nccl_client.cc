#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "kvtransfer/nccl_link.h"
#include "kvtransfer/nccl_transport.h"
#include "kvtransfer/receiver.h"
#include "proto/kv_nccl.grpc.pb.h"

namespace baton::kvtransfer {
namespace {

constexpr char kName[] = "nccl";
// Groups whose sends are complete, in buffers of NCCL's, before their receives are posted here. With so many the stream is
// read no further until some are.
constexpr size_t kMaxAnnounced = 64;

class NcclKvClient final : public TransportClient {
 public:
  NcclKvClient(ReceiverOptions receiver, NcclOptions options, std::string library, std::unique_ptr<kernels::DeviceLane> lane)
      : receiver_(std::move(receiver)),
        options_(std::move(options)),
        lane_(std::move(lane)),
        library_(std::move(library)),
        slot_bytes_(NcclSlotBytes(receiver_.layout.block_bytes())),
        aborter_([](absl::Time) { return absl::InfiniteFuture(); }),
        loop_([this](absl::Time now) { return OnTick(now); }) {}
  ~NcclKvClient() override { Shutdown(); }

  absl::string_view name() const override { return kName; }
  FetchId Fetch(FetchRequest request, FetchCallback done) override;
  void Cancel(FetchId id) override {
    loop_.Post([this, id] { Fail(id, absl::CancelledError("the fetch was cancelled")); });
  }
  void Shutdown() override;

 private:
  using LinkId = uint64_t;
  using FetchKey = uint64_t;  // a fetch's number on its link

  // The reactor of one link. The loop starts its operations, which gRPC allows while the hold is there.
  class Stream final : public grpc::ClientBidiReactor<v1::NcclAsk, v1::NcclTell> {
   public:
    Stream(NcclKvClient* client, LinkId id) : client_(client), id_(id) {}
    void Begin(v1::KvNccl::Stub* stub, std::shared_ptr<Stream> self) {
      self_ = std::move(self);
      stub->async()->Link(&context_, this);
      AddHold();
      StartRead(&in_);
      StartCall();
    }
    void Say(v1::NcclAsk ask) {
      if (!open_) return;
      out_.push_back(std::move(ask));
      WriteNext();
    }
    bool idle() const { return out_.empty(); }
    void ReadNext() {
      if (open_) StartRead(&in_);
    }
    void Written(bool ok) {
      out_.pop_front();
      writing_ = false;
      if (ok && open_) WriteNext();
    }
    // No operation is started after it.
    void LetGo() {
      if (!open_) return;
      open_ = false;
      RemoveHold();
    }
    void Cancel() {
      context_.TryCancel();
      LetGo();
    }

   private:
    void WriteNext() {
      if (writing_ || out_.empty()) return;
      writing_ = true;
      StartWrite(&out_.front());
    }
    void OnReadDone(bool ok) override {
      client_->loop_.Post([c = client_, id = id_, ok, in = std::move(in_)] { c->OnRead(id, ok, in); });
    }
    void OnWriteDone(bool ok) override {
      client_->loop_.Post([self = self_, ok] { self->Written(ok); });
    }
    void OnDone(const grpc::Status& status) override {
      client_->loop_.Post([c = client_, id = id_, status] { c->OnCallDone(id, status); });
      self_.reset();
    }
    NcclKvClient* const client_;
    const LinkId id_;
    grpc::ClientContext context_;
    v1::NcclTell in_;
    std::deque<v1::NcclAsk> out_;
    bool writing_ = false;
    bool open_ = true;
    std::shared_ptr<Stream> self_;
  };

  struct Job {
    FetchId id = 0;
    Reception reception;
    FetchCallback done;
    LinkId link = 0;
    FetchKey key = 0;
    bool server_done = false;
    absl::Time opened = absl::InfinitePast();
  };
  struct Link {
    LinkId id = 0;
    std::string worker, incarnation, address;
    std::shared_ptr<v1::KvNccl::Stub> stub;
    std::shared_ptr<Stream> stream;
    bool closing = false;  // nothing but the ends of stream and communicator is awaited
    bool stream_over = false;
    bool aborting = false;
    FetchKey last_key = 0;
    std::map<FetchKey, FetchId> jobs;
    absl::Time heard = absl::InfinitePast();
    absl::Time beat_at = absl::InfiniteFuture();
    NcclPipe<v1::NcclTell> pipe;
    std::deque<v1::NcclTell> announced;  // groups that the sender sends and that are not posted yet
    bool paused = false;                 // the stream is not read, for there are kMaxAnnounced
  };
  using Links = std::map<LinkId, Link>;

  // All on the loop.
  absl::Time OnTick(absl::Time now);
  void Begin(Job job);
  Link* LinkTo(const v1::Endpoint& endpoint);
  void OnRead(LinkId id, bool ok, const v1::NcclTell& tell);
  absl::Status Take(Link* link, const v1::NcclTell& tell);
  absl::Status TakeGroup(Link* link, const v1::NcclTell& tell);
  void OnCallDone(LinkId id, const grpc::Status& status);
  void OnAborted(LinkId id);
  void EraseIfOver(Links::iterator it);
  absl::Status Progress(Link* link, absl::Time now);
  absl::Status PostGroups(Link* link, absl::Time now);
  absl::Status Land(Link* link, const v1::NcclTell& tell, size_t offset);
  // Errors: of the fetch, or (broken) of the link.
  absl::Status LandByHost(Link* link, Reception* reception, const v1::NcclTell& tell, size_t offset, bool* broken);
  absl::Status LandOnDevice(Link* link, Reception* reception, const v1::NcclTell& tell, size_t offset, bool* broken);
  Job* JobOf(Link* link, FetchKey key);
  void MaybeSucceed(FetchId id);
  void Fail(FetchId id, const absl::Status& why);
  // The job is the link's no more.
  void Release(Job* job);
  void Close(Link* link, const absl::Status& why);

  const ReceiverOptions receiver_;
  const NcclOptions options_;
  const std::unique_ptr<kernels::DeviceLane> lane_;  // null: all by the host's memory
  const std::string library_;
  const size_t slot_bytes_;
  std::atomic<FetchId> last_id_{0};
  std::map<FetchId, Job> jobs_;
  Links links_;
  LinkId last_link_ = 0;
  bool stopping_ = false;
  Mutex idle_mu_;
  CondVar idle_cv_;
  bool idle_ ABSL_GUARDED_BY(idle_mu_) = false;  // stopping, and no link is left
  EventLoop aborter_;
  EventLoop loop_;  // last: its thread uses all of the above
};

FetchId NcclKvClient::Fetch(FetchRequest request, FetchCallback done) {
  const FetchId id = ++last_id_;
  auto held = std::make_shared<Job>(
      Job{.id = id, .reception = Reception(&receiver_, kName, std::move(request), lane_ != nullptr), .done = std::move(done)});
  if (!loop_.Post([this, held] { Begin(std::move(*held)); })) {
    held->done(absl::CancelledError("the transport is shut down"), std::move(held->reception.destination()));
  }
  return id;
}

void NcclKvClient::Shutdown() {
  const bool posted = loop_.Post([this] {
    stopping_ = true;
    std::vector<FetchId> ids;
    for (const auto& [id, job] : jobs_) ids.push_back(id);
    for (const FetchId id : ids) Fail(id, absl::CancelledError("the transport is shut down"));
    for (auto& [id, link] : links_) Close(&link, absl::CancelledError("the transport is shut down"));
  });
  if (!posted) return;
  {
    MutexLock lock(&idle_mu_);
    while (!idle_) idle_cv_.Wait(&idle_mu_);
  }
  loop_.Stop();
  aborter_.Stop();
}

void NcclKvClient::Begin(Job job) {
  absl::Status s = stopping_ ? absl::CancelledError("the transport is shut down") : job.reception.Check();
  if (s.ok() && absl::Now() >= job.reception.deadline()) {
    s = absl::DeadlineExceededError("the deadline passed before the KV fetch");
  }
  if (s.ok()) {
    const v1::Endpoint& endpoint = job.reception.endpoint();
    s = options_.security.CheckAddress(absl::StrCat("the KV port of worker ", endpoint.worker_name()), endpoint.address());
    if (s.ok() && !options_.network_trusted && endpoint.locality().empty()) {
      s = absl::FailedPreconditionError(absl::StrCat("worker ", endpoint.worker_name(),
                                                     " is beyond loopback; set kv_network_trusted if only trusted machines "
                                                     "reach that network"));
    }
  }
  if (!s.ok()) return job.done(std::move(s), std::move(job.reception.destination()));
  Link* const link = LinkTo(job.reception.endpoint());
  const absl::Time now = absl::Now();
  job.link = link->id;
  job.key = ++link->last_key;
  job.opened = now;
  link->jobs[job.key] = job.id;
  link->beat_at = std::min(link->beat_at, now + HeartbeatInterval(job.reception.ticket()));
  v1::NcclAsk ask;
  ask.set_fetch(job.key);
  *ask.mutable_open() = job.reception.Open();
  link->stream->Say(std::move(ask));
  const FetchId id = job.id;
  jobs_.emplace(id, std::move(job));
}

// One link to each life of a worker; one to an earlier life that nobody uses is closed.
NcclKvClient::Link* NcclKvClient::LinkTo(const v1::Endpoint& endpoint) {
  for (auto& [id, link] : links_) {
    if (link.closing || link.worker != endpoint.worker_name()) continue;
    if (link.incarnation == endpoint.incarnation() && link.address == endpoint.address()) return &link;
    if (link.jobs.empty()) Close(&link, absl::UnavailableError("the worker has restarted"));
  }
  rpc::ChannelOptions options;
  options.security = options_.security;
  options.peer = options_.peer;
  options.own_connection = true;  // a restarted worker meets no back-off of its former self
  options.retry_unavailable = false;
  const LinkId id = ++last_link_;
  Link& link = links_[id];
  link.id = id;
  link.worker = endpoint.worker_name();
  link.incarnation = endpoint.incarnation();
  link.address = endpoint.address();
  link.pipe.slot_bytes = slot_bytes_;
  link.stub = v1::KvNccl::NewStub(rpc::CreateChannel(endpoint.address(), options));
  link.stream = std::make_shared<Stream>(this, id);
  link.stream->Begin(link.stub.get(), link.stream);
  return &link;
}

void NcclKvClient::OnRead(LinkId id, bool ok, const v1::NcclTell& tell) {
  auto it = links_.find(id);
  if (it == links_.end() || it->second.closing) return;
  Link& link = it->second;
  if (!ok) return link.stream->LetGo();  // the status follows
  link.heard = absl::Now();
  if (absl::Status s = Take(&link, tell); !s.ok()) return Close(&link, s);
  link.paused = link.announced.size() >= kMaxAnnounced;
  if (!link.paused) link.stream->ReadNext();
}

absl::Status NcclKvClient::Take(Link* link, const v1::NcclTell& tell) {
  if (tell.has_end()) {
    Job* const job = JobOf(link, tell.fetch());
    if (job == nullptr) return absl::OkStatus();
    const FetchId id = job->id;
    job->server_done = true;
    if (absl::Status s = job->reception.TakeEnd(tell.end()); !s.ok()) {
      Fail(id, s);
    } else {
      MaybeSucceed(id);
    }
    return absl::OkStatus();
  }
  if (tell.has_group()) return TakeGroup(link, tell);
  if (tell.unique_id().empty()) return absl::OkStatus();  // a heartbeat
  if (link->pipe.comm != nullptr) return absl::UnavailableError("the sender began a second communicator");
  absl::StatusOr<std::unique_ptr<NcclComm>> comm =
      NcclComm::Begin(tell.unique_id(), /*rank=*/1, kNcclSlots * slot_bytes_);
  if (!comm.ok()) return absl::UnavailableError(comm.status().message());
  link->pipe.comm = *std::move(comm);
  link->pipe.made_by = absl::Now() + options_.init_timeout;
  return absl::OkStatus();
}

absl::Status NcclKvClient::TakeGroup(Link* link, const v1::NcclTell& tell) {
  size_t bytes = 0;
  bool fits = tell.group().parts_size() > 0 && tell.group().parts_size() <= kMaxNcclParts;
  for (const v1::NcclPart& part : tell.group().parts()) {
    fits = fits && part.size() > 0 && part.size() <= slot_bytes_ - bytes;
    if (fits) bytes += part.size();
  }
  if (!fits || link->pipe.comm == nullptr) {
    return absl::UnavailableError("the sender announced a group that cannot be");
  }
  link->announced.push_back(tell);
  return absl::OkStatus();
}

NcclKvClient::Job* NcclKvClient::JobOf(Link* link, FetchKey key) {
  const auto it = link->jobs.find(key);
  return it == link->jobs.end() ? nullptr : &jobs_.at(it->second);
}

absl::Status NcclKvClient::Progress(Link* link, absl::Time now) {
  if (link->pipe.comm == nullptr) return absl::OkStatus();
  absl::StatusOr<bool> settled = link->pipe.Look(now, options_.group_timeout);
  if (!settled.ok()) return settled.status();
  if (!*settled) return absl::OkStatus();
  while (!link->pipe.flights.empty()) {
    absl::StatusOr<bool> completed = link->pipe.comm->Completed(link->pipe.flights.front().number);
    if (!completed.ok()) return completed.status();
    if (!*completed) break;
    const auto flight = std::move(link->pipe.flights.front());
    link->pipe.flights.pop_front();
    link->pipe.Progressed();
    if (absl::Status s = Land(link, flight.group, flight.offset); !s.ok()) return s;
  }
  return PostGroups(link, now);
}

absl::Status NcclKvClient::PostGroups(Link* link, absl::Time now) {
  while (link->pipe.HasRoom() && !link->announced.empty()) {
    v1::NcclTell tell = std::move(link->announced.front());
    link->announced.pop_front();
    std::vector<size_t> sizes;
    for (const v1::NcclPart& part : tell.group().parts()) sizes.push_back(part.size());
    absl::StatusOr<uint64_t> number = link->pipe.comm->ReceiveGroup(link->pipe.NextOffset(), sizes);
    if (!number.ok()) return number.status();
    link->pipe.Posted(*number, std::move(tell), now);
    absl::StatusOr<bool> settled = link->pipe.comm->Settled();
    if (link->paused && link->announced.size() < kMaxAnnounced) {
      link->paused = false;
      link->stream->ReadNext();
    }
    if (!settled.ok() || !*settled) return settled.status();
  }
  return absl::OkStatus();
}

// A group has arrived in its slot: its pieces go to their places, if their fetch still wants them.
absl::Status NcclKvClient::Land(Link* link, const v1::NcclTell& tell, size_t offset) {
  Job* const job = JobOf(link, tell.fetch());
  if (job == nullptr) return absl::OkStatus();
  const FetchId id = job->id;
  bool broken = false;
  const absl::Status s = job->reception.to_device() ? LandOnDevice(link, &job->reception, tell, offset, &broken)
                                                    : LandByHost(link, &job->reception, tell, offset, &broken);
  if (broken) return absl::UnavailableError(s.message());
  s.ok() ? MaybeSucceed(id) : Fail(id, s);
  return absl::OkStatus();
}

absl::Status NcclKvClient::LandByHost(Link* link, Reception* reception, const v1::NcclTell& tell, size_t offset,
                                      bool* broken) {
  for (const v1::NcclPart& part : tell.group().parts()) {
    absl::StatusOr<std::span<std::byte>> place = reception->PlacePiece(part.seal(), part.offset(), part.size());
    if (!place.ok()) return place.status();
    if (!place->empty()) {
      if (absl::Status copied = link->pipe.comm->CopyOut(offset, *place); !copied.ok()) {
        *broken = true;
        return copied;
      }
      if (absl::Status s = reception->PieceArrived(part.seal().block_idx(), part.offset()); !s.ok()) return s;
    }
    offset += part.size();
  }
  return absl::OkStatus();
}

// Whatever comes of it, nothing of the lane's is under way afterwards: the destination may be given back.
absl::Status NcclKvClient::LandOnDevice(Link* link, Reception* reception, const v1::NcclTell& tell, size_t offset,
                                        bool* broken) {
  absl::Status s;
  std::vector<const v1::NcclPart*> landed;
  for (const v1::NcclPart& part : tell.group().parts()) {
    absl::StatusOr<std::span<std::byte>> place = reception->PlacePiece(part.seal(), part.offset(), part.size());
    s = place.status();
    if (s.ok() && !place->empty()) {
      s = lane_->Copy(place->data(), link->pipe.comm->staging() + offset, place->size());
      *broken = !s.ok();
      landed.push_back(&part);
    }
    if (!s.ok()) break;
    offset += part.size();
  }
  if (absl::Status waited = lane_->Wait(); s.ok() && !waited.ok()) {
    s = waited;
    *broken = true;
  }
  if (!s.ok()) return s;
  std::vector<uint32_t> whole;
  std::vector<const void*> blocks;
  for (const v1::NcclPart* part : landed) {
    const uint32_t block = part->seal().block_idx();
    if (!reception->PieceLanded(block, part->offset())) continue;
    whole.push_back(block);
    blocks.push_back(reception->place(block).data());
  }
  std::vector<uint64_t> sums(blocks.size());
  s = lane_->Checksums(blocks, receiver_.layout.block_bytes(), sums);
  *broken = !s.ok();
  for (size_t i = 0; i < whole.size() && s.ok(); ++i) s = reception->TakeChecksum(whole[i], sums[i]);
  return s;
}

void NcclKvClient::MaybeSucceed(FetchId id) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.reception.complete()) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  Release(&job);
  FetchResult result = job.reception.Result(job.reception.to_device() ? library_ + ", device memory" : library_);
  job.done(std::move(result), std::move(job.reception.destination()));
}

void NcclKvClient::Release(Job* job) {
  auto it = links_.find(job->link);
  if (it == links_.end()) return;
  it->second.jobs.erase(job->key);
  if (it->second.closing || job->server_done) return;
  v1::NcclAsk ask;
  ask.set_fetch(job->key);
  ask.set_stop(true);
  it->second.stream->Say(std::move(ask));
}

// The destination is the caller's at once: what is still under way lands in staging memory and goes no further.
void NcclKvClient::Fail(FetchId id, const absl::Status& why) {
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  Release(&job);
  job.done(absl::Status(why.code(), why.message()), std::move(job.reception.destination()));
}

void NcclKvClient::Close(Link* link, const absl::Status& why) {
  if (link->closing) return;
  link->closing = true;
  link->stream->Cancel();
  if (link->pipe.comm != nullptr) {
    link->aborting = true;
    aborter_.Post([this, id = link->id, comm = std::move(link->pipe.comm)]() mutable {
      comm.reset();
      loop_.Post([this, id] { OnAborted(id); });
    });
  }
  link->announced.clear();
  link->pipe.flights.clear();
  std::vector<FetchId> ids;
  for (const auto& [key, id] : link->jobs) ids.push_back(id);
  const std::string text = absl::StrCat("the NCCL link to worker ", link->worker, " broke: ", why.message());
  for (const FetchId id : ids) Fail(id, absl::UnavailableError(text));
}

void NcclKvClient::OnCallDone(LinkId id, const grpc::Status& status) {
  auto it = links_.find(id);
  it->second.stream_over = true;
  Close(&it->second, absl::UnavailableError(status.ok() ? "the stream ended early" : status.error_message()));
  EraseIfOver(it);
}

void NcclKvClient::OnAborted(LinkId id) {
  auto it = links_.find(id);
  it->second.aborting = false;
  EraseIfOver(it);
}

void NcclKvClient::EraseIfOver(Links::iterator it) {
  if (it->second.stream_over && !it->second.aborting) links_.erase(it);
}

absl::Time NcclKvClient::OnTick(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [id, link] : links_) {
    if (link.closing) continue;
    if (absl::Status s = Progress(&link, now); !s.ok()) {
      Close(&link, s);
      continue;
    }
    if (link.pipe.waiting()) next = std::min(next, link.pipe.NextLook(now));
    std::vector<std::pair<FetchId, absl::Status>> failed;
    absl::Duration interval = absl::InfiniteDuration();
    bool silent = false;
    for (const auto& [key, job_id] : link.jobs) {
      const Job& job = jobs_.at(job_id);
      const absl::Time silent_at = std::max(job.opened, link.heard) + SilenceLimit(job.reception.ticket());
      silent = silent || now >= silent_at;
      if (now >= job.reception.deadline()) {
        failed.emplace_back(job_id, absl::DeadlineExceededError("the deadline passed during the KV fetch"));
      }
      interval = std::min(interval, HeartbeatInterval(job.reception.ticket()));
      next = std::min({next, silent_at, job.reception.deadline()});
    }
    for (const auto& [job_id, why] : failed) Fail(job_id, why);
    if (silent) {
      Close(&link, absl::UnavailableError("the exporting worker fell silent"));
      continue;
    }
    if (now >= link.beat_at) {
      link.beat_at = now + interval;
      v1::NcclAsk beat;
      beat.set_beat(true);
      if (!link.jobs.empty() && link.stream->idle()) link.stream->Say(std::move(beat));
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

}  // namespace

absl::StatusOr<std::unique_ptr<TransportClient>> StartNcclKvClient(ReceiverOptions receiver, NcclOptions options) {
  absl::StatusOr<std::string> library = StartNccl(options.network_trusted);
  if (!library.ok()) return library.status();
  absl::StatusOr<std::unique_ptr<kernels::DeviceLane>> lane = LaneFor(options.device, receiver.layout.block_bytes());
  if (!lane.ok()) return lane.status();
  return std::make_unique<NcclKvClient>(std::move(receiver), std::move(options), *std::move(library), *std::move(lane));
}

}  // namespace baton::kvtransfer
