#include "tests/fakes/scripted_worker.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>

#include "common/ids.h"
#include "decode_worker/feeds.h"

namespace baton::fakes {
namespace {

// The last token of choice `c` that the request allows, and how it ends. Texts end with LENGTH by max_tokens, or with
// STOP at their end.
v1::SampledToken TokenAt(const Script& script, const v1::SamplingParams& sampling, uint32_t choice, uint32_t index) {
  const std::string& text = script.texts[choice % script.texts.size()];
  v1::SampledToken token;
  token.set_choice_index(choice);
  token.set_token_index(index);
  if (index >= text.size()) {
    token.set_token_id(258);  // EOS of the tiny models
    token.set_finish_reason(v1::FINISH_REASON_STOP);
    token.set_stop_token_id(258);
    return token;
  }
  token.set_token_id(static_cast<unsigned char>(text[index]));
  if (static_cast<int32_t>(index) + 1 == sampling.max_tokens()) token.set_finish_reason(v1::FINISH_REASON_LENGTH);
  return token;
}

}  // namespace

uint64_t TicketBook::Issue(std::function<void()> redeemed) {
  MutexLock lock(&mu_);
  outstanding_[++last_] = std::move(redeemed);
  return last_;
}

bool TicketBook::Redeem(uint64_t id) {
  std::function<void()> redeemed;
  {
    MutexLock lock(&mu_);
    const auto it = outstanding_.find(id);
    if (it == outstanding_.end()) return false;
    redeemed = std::move(it->second);
    outstanding_.erase(it);
  }
  redeemed();
  return true;
}

bool TicketBook::Release(uint64_t id) {
  std::function<void()> dropped;
  MutexLock lock(&mu_);
  const auto it = outstanding_.find(id);
  if (it == outstanding_.end()) return false;
  dropped = std::move(it->second);
  outstanding_.erase(it);
  ++released_;
  return true;
}

int TicketBook::issued() const {
  MutexLock lock(&mu_);
  return static_cast<int>(last_);
}
int TicketBook::released() const {
  MutexLock lock(&mu_);
  return released_;
}
int TicketBook::outstanding() const {
  MutexLock lock(&mu_);
  return static_cast<int>(outstanding_.size());
}

struct ScriptedWorker::State {
  explicit State(TicketBook* book) : book(book) {}

  TicketBook* const book;
  mutable Mutex mu;
  Script script ABSL_GUARDED_BY(mu);
  int calls ABSL_GUARDED_BY(mu) = 0;
  int open ABSL_GUARDED_BY(mu) = 0;
  int next_id ABSL_GUARDED_BY(mu) = 0;
  int drains ABSL_GUARDED_BY(mu) = 0;
  std::vector<std::string> roles ABSL_GUARDED_BY(mu);  // asked for
  using GoOn = std::function<void(const absl::Status&)>;  // an error ends the call with it
  std::map<int, GoOn> paused ABSL_GUARDED_BY(mu);
  std::vector<v1::PrefillRequest> prefills ABSL_GUARDED_BY(mu);
  std::vector<v1::DecodeRequest> decodes ABSL_GUARDED_BY(mu);
  std::vector<v1::UpdateDecodeRequest> updates ABSL_GUARDED_BY(mu);

  Script Begin() {
    MutexLock lock(&mu);
    ++calls;
    ++open;
    return script;
  }
  // Keeps `go_on` until Resume, unless the call ends first.
  void PauseUntilResumed(int id, GoOn go_on, const std::function<bool()>& ended) {
    {
      MutexLock lock(&mu);
      paused[id] = std::move(go_on);
    }
    if (ended()) Drop(id);  // it was cancelled meanwhile
  }
  void Drop(int id) {
    GoOn dropped;
    MutexLock lock(&mu);
    if (auto it = paused.find(id); it != paused.end()) {
      dropped = std::move(it->second);
      paused.erase(it);
    }
  }
  int NewId() {
    MutexLock lock(&mu);
    return next_id++;
  }
  void End(int id) {
    Drop(id);
    MutexLock lock(&mu);
    --open;
  }
};

// One call: a list of steps, of which one may be a pause.
template <class Event>
struct ScriptedCall : std::enable_shared_from_this<ScriptedCall<Event>> {
  using Stream = rpc::EventStream<Event>;

  std::function<void(int)> end;  // told once
  int id = 0;
  std::shared_ptr<Stream> stream;
  Mutex mu;
  bool ended ABSL_GUARDED_BY(mu) = false;

  bool Ended() {
    MutexLock lock(&mu);
    return ended;
  }
  void Finish(absl::Status status) {
    {
      MutexLock lock(&mu);
      if (ended) return;
      ended = true;
    }
    end(id);
    stream->Finish(std::move(status));
  }
};

class ScriptedWorker::PrefillService final : public v1::PrefillWorker::CallbackService {
 public:
  explicit PrefillService(std::shared_ptr<State> state) : state_(std::move(state)) {}

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext*,
                                                      const v1::PrefillRequest* request) override {
    const Script script = state_->Begin();
    {
      MutexLock lock(&state_->mu);
      state_->prefills.push_back(*request);
    }
    auto call = std::make_shared<PrefillCall>();
    call->id = state_->NewId();
    call->end = [state = state_, weak = std::weak_ptr(call)](int id) {
      if (const auto c = weak.lock()) state->book->Release(c->ticket);
      state->End(id);
    };
    auto writer = rpc::StreamWriter<v1::PrefillEvent>::Create({}, [call] { call->Finish(absl::CancelledError("")); });
    auto* reactor = writer.get();
    call->stream = std::move(writer);
    Begin(call, script, *request);
    return reactor;
  }

 private:
  struct PrefillCall : ScriptedCall<v1::PrefillEvent> {
    std::atomic<uint64_t> ticket{0};  // 0: none
    // Redeemed (or never issued), and Prefilled is sent: the call is over when both are so.
    std::atomic<int> left{1};
    void OneDone() {
      if (--left == 0) Finish(absl::OkStatus());
    }
  };
  using Call = std::shared_ptr<PrefillCall>;

  void Begin(const Call& call, const Script& script, const v1::PrefillRequest& request) {
    if (!script.prefill_error.ok()) return call->Finish(script.prefill_error);
    if (request.hand_over()) {
      ++call->left;
      const uint64_t id = state_->book->Issue([call] { call->OneDone(); });
      call->ticket = id;
      if (call->Ended()) state_->book->Release(id);
      v1::PrefillEvent event;
      event.mutable_ticket()->set_request_id(request.request_id());
      event.mutable_ticket()->set_epoch(request.epoch());
      event.mutable_ticket()->set_transfer_id_low(id);
      call->stream->Push(event);
    }
    Run(call, script, request, 0);
  }

  void Run(const Call& call, const Script& script, const v1::PrefillRequest& request, int step) {
    const auto stop_here = [&](Pause where, int at) {
      if (script.pause != where || step > at) return false;
      if (!script.after_pause.ok()) {
        call->Finish(script.after_pause);
      } else {
        state_->PauseUntilResumed(
            call->id,
            [=, this](const absl::Status& then) {
              then.ok() ? Run(call, script, request, at + 1) : call->Finish(then);
            },
            [&] { return call->Ended(); });
      }
      return true;
    };
    if (stop_here(Pause::kBeforeFirstToken, 0)) return;
    if (step <= 1) {
      for (int c = 0; c < request.sampling().n(); ++c) {
        v1::PrefillEvent event;
        *event.mutable_token() = TokenAt(script, request.sampling(), static_cast<uint32_t>(c), 0);
        call->stream->Push(event);
      }
    }
    if (stop_here(Pause::kBeforePrefilled, 1)) return;
    v1::PrefillEvent event;
    v1::Prefilled* prefilled = event.mutable_prefilled();
    prefilled->set_prefill_ms(2);
    prefilled->set_queue_ms(1);
    prefilled->set_cached_tokens(1);
    prefilled->set_num_chunks(1);
    call->stream->Push(event);
    call->OneDone();
  }

  const std::shared_ptr<State> state_;
};

class ScriptedWorker::DecodeService final : public v1::DecodeWorker::CallbackService {
 public:
  explicit DecodeService(std::shared_ptr<State> state) : state_(std::move(state)) {}

  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext*,
                                                    const v1::DecodeRequest* request) override {
    auto call = std::make_shared<DecodeCall>();
    call->script = state_->Begin();
    call->request = *request;
    {
      MutexLock lock(&state_->mu);
      state_->decodes.push_back(*request);
    }
    call->id = state_->NewId();
    call->end = [state = state_](int id) { state->End(id); };
    std::shared_ptr<rpc::StreamWriter<v1::DecodeEvent>> writer;
    const auto make_own = [&writer](std::function<void()> on_cancel) {
      return writer = rpc::StreamWriter<v1::DecodeEvent>::Create({}, std::move(on_cancel));
    };
    call->stream = feeds_.Stream(request->feed(), make_own, [call] { call->Finish(absl::CancelledError("")); });
    auto* reactor = writer.get();
    if (!call->script.reserve_error.ok()) {
      call->Finish(call->script.reserve_error);
      return reactor;
    }
    {
      MutexLock lock(&mu_);
      calls_[{request->request_id(), request->epoch()}] = call;
    }
    v1::DecodeEvent event;
    event.mutable_reserved()->set_blocks(2);
    call->stream->Push(event);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::FeedBatch>* Feed(grpc::CallbackServerContext* context,
                                                const v1::FeedRequest* request) override {
    bool known = false;
    {
      MutexLock lock(&state_->mu);
      known = state_->script.feeds;
    }
    if (known) {
      MutexLock lock(&mu_);
      feed_contexts_.push_back(context);
    }
    if (known) return feeds_.Open(context, *request);
    auto refused = rpc::StreamWriter<v1::FeedBatch>::Create({}, nullptr);
    refused->Finish(absl::UnimplementedError("no feeds here"));
    return refused.get();
  }

  void BreakFeeds() {
    std::vector<grpc::CallbackServerContext*> contexts;
    {
      MutexLock lock(&mu_);
      contexts.swap(feed_contexts_);
    }
    for (grpc::CallbackServerContext* context : contexts) context->TryCancel();
  }

  grpc::ServerUnaryReactor* UpdateDecode(grpc::CallbackServerContext* context, const v1::UpdateDecodeRequest* request,
                                         v1::UpdateDecodeResponse*) override {
    {
      MutexLock lock(&state_->mu);
      state_->updates.push_back(*request);
    }
    auto* reactor = context->DefaultReactor();
    Call call;
    {
      MutexLock lock(&mu_);
      const auto it = calls_.find({request->request_id(), request->epoch()});
      if (it != calls_.end()) call = it->second;
    }
    if (call == nullptr || call->Ended()) {
      reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such call"));
      return reactor;
    }
    reactor->Finish(grpc::Status::OK);
    bool go_on = false;
    if (request->go()) {
      MutexLock lock(&call->mu);
      call->go = true;
      call->ended_choices.insert(request->ended_choices().begin(), request->ended_choices().end());
      go_on = call->waits_for_go;
    }
    if (request->has_ticket()) {
      call->ticket = request->ticket().transfer_id_low();
      Run(call, 0);
    }
    if (go_on) Run(call, 2);
    return reactor;
  }

 private:
  struct DecodeCall : ScriptedCall<v1::DecodeEvent> {
    Script script;
    v1::DecodeRequest request;
    uint64_t ticket = 0;
    bool go = false;            // guarded by mu, as below
    bool waits_for_go = false;
    std::set<uint32_t> ended_choices;
  };
  using Call = std::shared_ptr<DecodeCall>;

  // Steps: 0 before the fetch, 1 in it, 2 decode, 3 after the pause in decode.
  void Run(const Call& call, int step) {
    const Script& script = call->script;
    if (step == 0 && script.pause == Pause::kBeforeFetch) return PauseCall(call, 1);
    if (step <= 1) {
      if (!script.decode_error.ok()) return call->Finish(script.decode_error);
      if (!Fetch(call)) return;
    }
    if (step <= 2) {
      const int pause_at = script.pause == Pause::kInDecode ? script.pause_after : INT32_MAX;
      Emit(call, 1, pause_at);
      feeds_.Flush();
      if (script.pause == Pause::kInDecode) return PauseCall(call, 3);
    } else {
      Emit(call, 1 + script.pause_after, INT32_MAX);
    }
    v1::DecodeEvent event;
    event.mutable_done()->set_decode_queue_ms(0.25);
    call->stream->Push(event);
    call->Finish(absl::OkStatus());
    feeds_.Flush();
  }

  // False: the call is over, or waits for a go.
  bool Fetch(const Call& call) {
    if (!state_->book->Redeem(call->ticket)) {
      call->Finish(absl::AbortedError("the ticket is not valid any more"));
      return false;
    }
    v1::DecodeEvent event;
    v1::Fetched* fetched = event.mutable_fetched();
    fetched->set_bytes(4096);
    fetched->set_blocks(2);
    fetched->set_transfer_ms(0.5);
    fetched->set_transport("loopback");
    fetched->set_detail("scripted");
    bool finished = true;
    for (uint32_t c = 0; c < static_cast<uint32_t>(call->request.sampling().n()); ++c) {
      const v1::SampledToken first = TokenAt(call->script, call->request.sampling(), c, 0);
      fetched->add_first_token_ids(first.token_id());
      finished = finished && first.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
    }
    fetched->set_finished(finished);
    call->stream->Push(event);
    if (finished) {
      call->Finish(absl::OkStatus());
      return false;
    }
    MutexLock lock(&call->mu);
    call->waits_for_go = call->request.wait_for_go() && !call->go;
    return !call->waits_for_go;
  }

  void PauseCall(const Call& call, int next) {
    if (!call->script.after_pause.ok()) return call->Finish(call->script.after_pause);
    state_->PauseUntilResumed(
        call->id,
        [=, this](const absl::Status& then) { then.ok() ? Run(call, next) : call->Finish(then); },
        [&] { return call->Ended(); });
  }

  // Tokens [begin, begin + count) of each choice that runs, interleaved as a batch would.
  void Emit(const Call& call, int begin, int count) {
    const v1::SamplingParams& sampling = call->request.sampling();
    std::set<uint32_t> ended;
    {
      MutexLock lock(&call->mu);
      ended = call->ended_choices;
    }
    const auto num_choices = static_cast<uint32_t>(sampling.n());
    for (uint32_t c = 0; c < num_choices; ++c) {
      if (TokenAt(call->script, sampling, c, 0).finish_reason() != v1::FINISH_REASON_UNSPECIFIED) ended.insert(c);
    }
    for (int index = 1; ended.size() < num_choices && (index < begin || index - begin < count); ++index) {
      for (uint32_t c = 0; c < num_choices; ++c) {
        if (ended.count(c) > 0) continue;
        v1::DecodeEvent event;
        *event.mutable_token() = TokenAt(call->script, sampling, c, static_cast<uint32_t>(index));
        if (event.token().finish_reason() != v1::FINISH_REASON_UNSPECIFIED) ended.insert(c);
        if (index >= begin) call->stream->Push(event);
      }
    }
  }

  const std::shared_ptr<State> state_;
  decode_worker::Feeds feeds_;
  Mutex mu_;
  std::vector<grpc::CallbackServerContext*> feed_contexts_ ABSL_GUARDED_BY(mu_);  // gRPC's, while their feeds are open
  std::map<std::pair<std::string, uint32_t>, Call> calls_ ABSL_GUARDED_BY(mu_);
};

class ScriptedWorker::WorkerService final : public v1::Worker::CallbackService {
 public:
  explicit WorkerService(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Counted only, as is Drain.
  grpc::ServerUnaryReactor* ChangeRole(grpc::CallbackServerContext* context, const v1::ChangeRoleRequest* request,
                                       v1::ChangeRoleResponse*) override {
    {
      MutexLock lock(&state_->mu);
      state_->roles.push_back(request->role());
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                  v1::DrainResponse*) override {
    {
      MutexLock lock(&state_->mu);
      ++state_->drains;
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::shared_ptr<State> state_;
};

ScriptedWorker::ScriptedWorker(std::string name, std::string role, TicketBook* book, Script script)
    : name_(std::move(name)),
      incarnation_(NewIncarnation()),
      role_(std::move(role)),
      state_(std::make_shared<State>(book)) {
  set_script(std::move(script));
  prefill_ = std::make_unique<PrefillService>(state_);
  decode_ = std::make_unique<DecodeService>(state_);
  rpc::NamedService service = {"baton.v1.PrefillWorker", prefill_.get()};
  if (role_ == "decode") service = {"baton.v1.DecodeWorker", decode_.get()};
  worker_ = std::make_unique<WorkerService>(state_);
  auto server = rpc::Server::Start({}, {service, {"baton.v1.Worker", worker_.get()}});
  if (!server.ok()) abort();  // no free port: the test cannot run
  server_ = *std::move(server);
  address_ = server_->address();
}

ScriptedWorker::~ScriptedWorker() { Kill(); }

v1::WorkerInfo ScriptedWorker::info() const {
  v1::WorkerInfo info;
  info.set_name(name_);
  info.set_incarnation(incarnation_);
  info.set_role(role_);
  info.set_address(address_);
  info.set_max_context(512);
  info.set_total_blocks(1000);
  info.mutable_fingerprint()->set_weights("weights");
  info.mutable_fingerprint()->set_config("config");
  info.mutable_fingerprint()->set_numerics_class("int");
  info.mutable_layout()->set_dtype("f16");
  info.mutable_layout()->set_block_size(16);
  info.mutable_layout()->set_num_layers(2);
  info.mutable_layout()->set_num_kv_heads(2);
  info.mutable_layout()->set_head_dim(16);
  info.mutable_layout()->set_version(1);
  return info;
}

void ScriptedWorker::set_script(Script script) {
  MutexLock lock(&state_->mu);
  state_->script = std::move(script);
}

void ScriptedWorker::Resume(const absl::Status& then) {
  std::map<int, State::GoOn> paused;
  {
    MutexLock lock(&state_->mu);
    paused.swap(state_->paused);
  }
  for (auto& [id, go_on] : paused) go_on(then);
}

void ScriptedWorker::Kill() {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
}

void ScriptedWorker::BreakFeeds() { decode_->BreakFeeds(); }

int ScriptedWorker::calls() const {
  MutexLock lock(&state_->mu);
  return state_->calls;
}
int ScriptedWorker::open() const {
  MutexLock lock(&state_->mu);
  return state_->open;
}
std::vector<std::string> ScriptedWorker::roles() const {
  MutexLock lock(&state_->mu);
  return state_->roles;
}

int ScriptedWorker::drains() const {
  MutexLock lock(&state_->mu);
  return state_->drains;
}
int ScriptedWorker::paused() const {
  MutexLock lock(&state_->mu);
  return static_cast<int>(state_->paused.size());
}
std::vector<v1::PrefillRequest> ScriptedWorker::prefills() const {
  MutexLock lock(&state_->mu);
  return state_->prefills;
}
std::vector<v1::DecodeRequest> ScriptedWorker::decodes() const {
  MutexLock lock(&state_->mu);
  return state_->decodes;
}

std::vector<v1::UpdateDecodeRequest> ScriptedWorker::updates() const {
  MutexLock lock(&state_->mu);
  return state_->updates;
}

}  // namespace baton::fakes
