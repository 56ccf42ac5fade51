#include "tests/bench/router_load.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ids.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/stream_writer.h"
#include "common/status.h"
#include "decode_worker/feeds.h"

namespace baton::bench {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

constexpr size_t kFewWaiting = 32; // events of one answer that wait for the transport

using Own = rpc::StreamWriter<v1::DecodeEvent>;
using Events = rpc::EventStream<v1::DecodeEvent>;

struct Sequence {
  int client = 0;
  uint32_t next = 0;
  uint32_t end = 0;
  std::shared_ptr<Events> events;
  std::shared_ptr<Own> own;  // null: its events are in a feed
  std::atomic<bool> over{false};
};

}  // namespace

class IdleWorkers::Service final : public v1::DecodeWorker::CallbackService {
 public:
  explicit Service(SendTimes* times) : times_(times) {}

  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext*,
                                                    const v1::DecodeRequest* request) override {
    auto sequence = std::make_shared<Sequence>();
    // "CLIENT-NUMBER"
    if (!absl::SimpleAtoi(request->request_id().substr(0, request->request_id().find('-')), &sequence->client)) {
      sequence->client = 0;
    }
    sequence->end = static_cast<uint32_t>(request->sampling().max_tokens());
    std::shared_ptr<Own> own;
    const auto make_own = [&own](std::function<void()> on_cancel) {
      return own = Own::Create({}, std::move(on_cancel));
    };
    sequence->events = feeds_.Stream(request->feed(), make_own, [sequence] { sequence->over = true; });
    if (sequence->events == own) sequence->own = own;
    {
      MutexLock lock(&mu_);
      added_.push_back(std::move(sequence));
    }
    return own.get();
  }
  grpc::ServerWriteReactor<v1::FeedBatch>* Feed(grpc::CallbackServerContext* context,
                                                const v1::FeedRequest* request) override {
    return feeds_.Open(context, *request);
  }

  // One token of every sequence. False: the transport has enough to do.
  bool Step(bool paced) {
    {
      MutexLock lock(&mu_);
      for (std::shared_ptr<Sequence>& sequence : added_) running_.push_back(std::move(sequence));
      added_.clear();
    }
    bool any = false;
    const bool feed_full = feeds_.buffered() >= kFewWaiting * std::max<size_t>(running_.size(), 1);
    for (const std::shared_ptr<Sequence>& sequence : running_) {
      if (!paced && (sequence->own != nullptr ? sequence->own->buffered() >= kFewWaiting : feed_full)) continue;
      any = true;
      Emit(sequence.get());
    }
    feeds_.Flush();
    std::erase_if(running_, [](const std::shared_ptr<Sequence>& sequence) {
      if (!sequence->over) return false;
      sequence->events->Finish(absl::OkStatus());
      return true;
    });
    return any;
  }
  size_t running() const { return running_.size(); }

 private:
  void Emit(Sequence* sequence) {
    v1::DecodeEvent event;
    v1::SampledToken* token = event.mutable_token();
    token->set_token_index(sequence->next);
    token->set_token_id('a' + static_cast<int32_t>(sequence->next % 26));
    const bool last = sequence->next + 1 == sequence->end;
    if (last) token->set_finish_reason(v1::FINISH_REASON_LENGTH);
    times_->Set(sequence->client, sequence->next, NowNs());
    sequence->events->Push(std::move(event));
    if (sequence->next == 0) {
      event.mutable_prefilled()->set_num_chunks(1);
      sequence->events->Push(event);
    }
    ++sequence->next;
    if (!last) return;
    event.mutable_done()->set_num_steps(sequence->end);
    sequence->events->Push(event);
    sequence->over = true;
  }

  SendTimes* const times_;
  decode_worker::Feeds feeds_;
  Mutex mu_;
  std::vector<std::shared_ptr<Sequence>> added_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Sequence>> running_;  // the stepper's
};

struct IdleWorkers::Worker {
  explicit Worker(SendTimes* times) : service(times) {}
  Service service;
  std::unique_ptr<rpc::Server> server;
  v1::WorkerInfo info;
  absl::Time due;
};

absl::StatusOr<std::unique_ptr<IdleWorkers>> IdleWorkers::Start(int workers, SendTimes* times) {
  std::unique_ptr<IdleWorkers> all(new IdleWorkers());
  for (int i = 0; i < workers; ++i) {
    auto worker = std::make_unique<Worker>(times);
    rpc::ServerOptions options;
    options.max_concurrent_streams = 4096;
    options.quota_bytes = rpc::kWorkerQuotaBytes;
    auto server = rpc::Server::Start(options, {{"baton.v1.DecodeWorker", &worker->service}});
    if (!server.ok()) return server.status();
    worker->server = *std::move(server);
    v1::WorkerInfo& info = worker->info;
    info.set_name(absl::StrCat("idle-", i));
    info.set_incarnation(NewIncarnation());
    info.set_role("decode");
    info.set_address(worker->server->address());
    info.set_max_context(kAnswerTokens + 64);
    info.set_total_blocks(1000000);
    info.mutable_fingerprint()->set_weights("weights");
    info.mutable_fingerprint()->set_config("config");
    info.mutable_fingerprint()->set_numerics_class("int");
    info.mutable_layout()->set_dtype("f16");
    info.mutable_layout()->set_block_size(16);
    info.mutable_layout()->set_num_layers(2);
    info.mutable_layout()->set_num_kv_heads(2);
    info.mutable_layout()->set_head_dim(16);
    info.mutable_layout()->set_version(1);
    all->workers_.push_back(std::move(worker));
  }
  all->stepper_ = std::thread([raw = all.get()] { raw->Run(); });
  return all;
}

IdleWorkers::~IdleWorkers() {
  stop_ = true;
  if (stepper_.joinable()) stepper_.join();
  for (const auto& worker : workers_) worker->server->Shutdown(absl::ZeroDuration());
}

std::vector<v1::WorkerInfo> IdleWorkers::infos() const {
  std::vector<v1::WorkerInfo> infos;
  for (const auto& worker : workers_) infos.push_back(worker->info);
  return infos;
}

void IdleWorkers::SetPace(const Pace& pace) { rate_ = pace.tokens_per_second; }

void IdleWorkers::Run() {
  while (!stop_) {
    const double rate = rate_;
    bool any = false;
    absl::Time next = absl::Now() + absl::Milliseconds(10);
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = *workers_[i];
      if (rate <= 0) {
        any |= worker.service.Step(/*paced=*/false);
        worker.due = absl::InfinitePast();
        continue;
      }
      // Each worker has its own beat, as workers have.
      const absl::Time now = absl::Now();
      if (worker.due == absl::InfinitePast() || now >= worker.due) {
        worker.service.Step(/*paced=*/true);
        size_t all = 0;
        for (const auto& other : workers_) all += other->service.running();
        const absl::Duration period = absl::Seconds(static_cast<double>(std::max<size_t>(all, 1)) / rate);
        const absl::Duration offset = period * (static_cast<double>(i) / static_cast<double>(workers_.size()));
        worker.due = worker.due == absl::InfinitePast() ? now + offset + absl::Milliseconds(1)
                                                        : std::max(worker.due + period, now - period);
      }
      next = std::min(next, worker.due);
    }
    if (rate <= 0 && !any) next = absl::Now() + absl::Microseconds(200);
    if (rate > 0 || !any) absl::SleepFor(next - absl::Now());
  }
}

class Readers::Stream {
 public:
  virtual ~Stream() = default;
  virtual void Cancel() = 0;
};

// Deletes itself when gRPC is done with it.
template <class Request, class Response>
class Readers::StreamOf final : public Stream, public grpc::ClientReadReactor<Response> {
 public:
  StreamOf(Readers* owner, int client, Request request) : owner_(owner), client_(client), request_(std::move(request)) {}
  // `start`: of the stub's async().
  void Run(const std::function<void(grpc::ClientContext*, const Request*, grpc::ClientReadReactor<Response>*)>& start) {
    start(&context_, &request_, this);
    this->StartRead(&event_);
    this->StartCall();
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    owner_->OnEvent(client_, event_);
    this->StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(&owner_->mu_);
      owner_->running_[static_cast<size_t>(client_)] = nullptr;
      if (status.ok()) {
        ++owner_->seen_.answers;
      } else if (!owner_->stop_) {
        if (owner_->seen_.failures++ == 0) owner_->seen_.failure = status.error_message();
      }
    }
    owner_->Again(client_);
    delete this;
  }

  Readers* const owner_;
  const int client_;
  grpc::ClientContext context_;
  const Request request_;
  Response event_;
};

Readers::Readers(const std::string& router, const std::vector<std::string>& workers, int clients, int connections,
                 SendTimes* times)
    : times_(times), clients_(clients), running_(static_cast<size_t>(clients)), next_(static_cast<size_t>(clients)) {
  rpc::ChannelOptions options;
  options.own_connection = true;
  for (int i = 0; i < connections; ++i) stubs_.push_back(v1::Inference::NewStub(rpc::CreateChannel(router, options)));
  for (const std::string& worker : workers) {
    worker_stubs_.push_back(v1::DecodeWorker::NewStub(rpc::CreateChannel(worker, options)));
  }
}

Readers::~Readers() { Stop(); }

void Readers::Start(int tokens_per_message) {
  tokens_per_message_ = tokens_per_message;
  stop_ = false;
  {
    MutexLock lock(&mu_);
    open_ = clients_;
  }
  for (int i = 0; i < clients_; ++i) Again(i);
}

void Readers::Again(int client) {
  static std::atomic<int64_t> number{0};
  if (stop_) {
    MutexLock lock(&mu_);
    --open_;
    cv_.SignalAll();
    return;
  }
  const std::string id = absl::StrCat(client, "-", number++);
  if (tokens_per_message_ == 0) {
    v1::DecodeRequest request;
    request.set_request_id(id);
    request.mutable_sampling()->set_max_tokens(kAnswerTokens);
    auto* stream = new StreamOf<v1::DecodeRequest, v1::DecodeEvent>(this, client, std::move(request));
    Began(client, stream);
    v1::DecodeWorker::Stub* stub = worker_stubs_[static_cast<size_t>(client) % worker_stubs_.size()].get();
    return stream->Run([stub](auto* context, auto* r, auto* reactor) { stub->async()->Decode(context, r, reactor); });
  }
  v1::GenerateRequest request;
  request.set_request_id(id);
  for (int i = 0; i < 8; ++i) request.mutable_token_ids()->add_ids('a' + i);
  request.mutable_sampling()->set_max_tokens(kAnswerTokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  request.set_tokens_per_message(static_cast<uint32_t>(tokens_per_message_));
  auto* stream = new StreamOf<v1::GenerateRequest, v1::GenerateResponse>(this, client, std::move(request));
  Began(client, stream);
  v1::Inference::Stub* stub = stubs_[static_cast<size_t>(client) % stubs_.size()].get();
  stream->Run([stub](auto* context, auto* r, auto* reactor) { stub->async()->Generate(context, r, reactor); });
}

void Readers::Began(int client, Stream* stream) {
  MutexLock lock(&mu_);
  running_[static_cast<size_t>(client)] = stream;
  next_[static_cast<size_t>(client)] = 0;
}

void Readers::OnEvent(int client, const v1::GenerateResponse& event) {
  if (event.has_token()) {
    const uint32_t index = event.token().token_index();
    OnTokens(client, {&index, 1});
  }
  if (!event.has_tokens()) return;
  std::vector<uint32_t> indices;
  for (const v1::TokenEvent& token : event.tokens().tokens()) indices.push_back(token.token_index());
  OnTokens(client, indices);
}

void Readers::OnEvent(int client, const v1::DecodeEvent& event) {
  if (!event.has_token()) return;
  const uint32_t index = event.token().token_index();
  OnTokens(client, {&index, 1});
}

void Readers::OnTokens(int client, std::span<const uint32_t> indices) {
  const int64_t now = NowNs();
  MutexLock lock(&mu_);
  ++seen_.messages;
  seen_.tokens += indices.size();
  for (const uint32_t index : indices) {
    uint32_t& next = next_[static_cast<size_t>(client)];
    if (index != next && seen_.failures++ == 0) seen_.failure = "a token out of order";
    next = index + 1;
    seen_.latency_ms.push_back(static_cast<float>(now - times_->Get(client, index)) * 1e-6f);
  }
}

void Readers::Stop() {
  stop_ = true;
  MutexLock lock(&mu_);
  for (Stream* stream : running_) {
    if (stream != nullptr) stream->Cancel();
  }
  while (open_ > 0) cv_.Wait(&mu_);
}

Seen Readers::Take() {
  MutexLock lock(&mu_);
  return std::exchange(seen_, {});
}

}  // namespace baton::bench
