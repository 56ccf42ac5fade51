#include "tests/fakes/scripted_worker.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "common/ids.h"

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

uint64_t TicketBook::Issue() {
  MutexLock lock(&mu_);
  outstanding_.insert(++last_);
  return last_;
}

bool TicketBook::Redeem(uint64_t id) {
  MutexLock lock(&mu_);
  return outstanding_.erase(id) > 0;
}

bool TicketBook::Release(uint64_t id) {
  MutexLock lock(&mu_);
  if (outstanding_.erase(id) == 0) return false;
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
  std::map<int, std::function<void()>> paused ABSL_GUARDED_BY(mu);  // how each goes on
  std::vector<v1::PrefillRequest> prefills ABSL_GUARDED_BY(mu);
  std::vector<v1::DecodeRequest> decodes ABSL_GUARDED_BY(mu);

  Script Begin() {
    MutexLock lock(&mu);
    ++calls;
    ++open;
    return script;
  }
  // Keeps `go_on` until Resume, unless the call ends first.
  void PauseUntilResumed(int id, std::function<void()> go_on, const std::function<bool()>& ended) {
    {
      MutexLock lock(&mu);
      paused[id] = std::move(go_on);
    }
    if (ended()) Drop(id);  // it was cancelled meanwhile
  }
  void Drop(int id) {
    std::function<void()> dropped;
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
  using Stream = rpc::StreamWriter<Event>;

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
    auto call = std::make_shared<ScriptedCall<v1::PrefillEvent>>();
    call->id = state_->NewId();
    call->end = [state = state_](int id) { state->End(id); };
    call->stream = rpc::StreamWriter<v1::PrefillEvent>::Create({}, [call] { call->Finish(absl::CancelledError("")); });
    auto* reactor = call->stream.get();
    Run(call, script, *request, 0);
    return reactor;
  }

  grpc::ServerUnaryReactor* ReleaseTicket(grpc::CallbackServerContext* context, const v1::ReleaseTicketRequest* request,
                                          v1::ReleaseTicketResponse* response) override {
    response->set_released(request->request_id().empty() && state_->book->Release(request->transfer_id_low()));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  using Call = std::shared_ptr<ScriptedCall<v1::PrefillEvent>>;

  void Run(const Call& call, const Script& script, const v1::PrefillRequest& request, int step) {
    if (!script.prefill_error.ok()) return call->Finish(script.prefill_error);
    const auto stop_here = [&](Pause where, int at) {
      if (script.pause != where || step > at) return false;
      if (!script.after_pause.ok()) {
        call->Finish(script.after_pause);
      } else {
        state_->PauseUntilResumed(
            call->id, [=, this] { Run(call, script, request, at + 1); }, [&] { return call->Ended(); });
      }
      return true;
    };
    if (stop_here(Pause::kBeforeFirstToken, 0)) return;
    bool goes_on = false;
    if (step <= 1) {
      for (int c = 0; c < request.sampling().n(); ++c) {
        v1::PrefillEvent event;
        *event.mutable_token() = TokenAt(script, request.sampling(), static_cast<uint32_t>(c), 0);
        call->stream->Push(event);
      }
    }
    for (int c = 0; c < request.sampling().n(); ++c) {
      goes_on = goes_on || TokenAt(script, request.sampling(), static_cast<uint32_t>(c), 0).finish_reason() ==
                               v1::FINISH_REASON_UNSPECIFIED;
    }
    if (stop_here(Pause::kBeforeTicket, 1)) return;
    v1::PrefillEvent event;
    v1::Prefilled* prefilled = event.mutable_prefilled();
    prefilled->set_prefill_ms(2);
    prefilled->set_queue_ms(1);
    prefilled->set_cached_tokens(1);
    prefilled->set_num_chunks(1);
    if (goes_on && request.hand_over()) {
      prefilled->mutable_ticket()->set_request_id(request.request_id());
      prefilled->mutable_ticket()->set_epoch(request.epoch());
      prefilled->mutable_ticket()->set_transfer_id_low(state_->book->Issue());
    }
    call->stream->Push(event);
    call->Finish(absl::OkStatus());
  }

  const std::shared_ptr<State> state_;
};

class ScriptedWorker::DecodeService final : public v1::DecodeWorker::CallbackService {
 public:
  explicit DecodeService(std::shared_ptr<State> state) : state_(std::move(state)) {}

  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext*,
                                                    const v1::DecodeRequest* request) override {
    const Script script = state_->Begin();
    {
      MutexLock lock(&state_->mu);
      state_->decodes.push_back(*request);
    }
    auto call = std::make_shared<ScriptedCall<v1::DecodeEvent>>();
    call->id = state_->NewId();
    call->end = [state = state_](int id) { state->End(id); };
    call->stream = rpc::StreamWriter<v1::DecodeEvent>::Create({}, [call] { call->Finish(absl::CancelledError("")); });
    auto* reactor = call->stream.get();
    Run(call, script, *request, 0);
    return reactor;
  }

 private:
  using Call = std::shared_ptr<ScriptedCall<v1::DecodeEvent>>;

  // Steps: 0 before the fetch, 1 after it, 2 after the pause in decode.
  void Run(const Call& call, const Script& script, const v1::DecodeRequest& request, int step) {
    if (!script.decode_error.ok()) return call->Finish(script.decode_error);
    if (script.pause == Pause::kBeforeFetch && step == 0) return PauseCall(call, script, request, 1);
    if (step <= 1) {
      if (!state_->book->Redeem(request.ticket().transfer_id_low())) {
        return call->Finish(absl::AbortedError("the ticket is not valid any more"));
      }
      v1::DecodeEvent event;
      event.mutable_fetched()->set_bytes(4096);
      event.mutable_fetched()->set_blocks(2);
      event.mutable_fetched()->set_transfer_ms(0.5);
      event.mutable_fetched()->set_transport("loopback");
      event.mutable_fetched()->set_detail("scripted");
      call->stream->Push(event);
      const int pause_at = script.pause == Pause::kInDecode ? script.pause_after : INT32_MAX;
      Emit(call, script, request, 1, pause_at);
      if (script.pause == Pause::kInDecode) return PauseCall(call, script, request, 2);
    } else {
      Emit(call, script, request, 1 + script.pause_after, INT32_MAX);
    }
    v1::DecodeEvent event;
    event.mutable_done()->set_decode_queue_ms(0.25);
    call->stream->Push(event);
    call->Finish(absl::OkStatus());
  }

  void PauseCall(const Call& call, const Script& script, const v1::DecodeRequest& request, int next) {
    if (!script.after_pause.ok()) return call->Finish(script.after_pause);
    state_->PauseUntilResumed(
        call->id, [=, this] { Run(call, script, request, next); }, [&] { return call->Ended(); });
  }

  // Tokens [begin, begin + count) of each choice that runs, interleaved as a batch would.
  void Emit(const Call& call, const Script& script, const v1::DecodeRequest& request, int begin, int count) {
    std::set<uint32_t> ended;
    for (const v1::SampledToken& first : request.first_tokens()) {
      if (first.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) ended.insert(first.choice_index());
    }
    const auto num_choices = static_cast<uint32_t>(request.first_tokens_size());
    for (int index = 1; ended.size() < num_choices && (index < begin || index - begin < count); ++index) {
      for (uint32_t c = 0; c < num_choices; ++c) {
        if (ended.count(c) > 0) continue;
        v1::DecodeEvent event;
        *event.mutable_token() = TokenAt(script, request.sampling(), c, static_cast<uint32_t>(index));
        if (event.token().finish_reason() != v1::FINISH_REASON_UNSPECIFIED) ended.insert(c);
        if (index >= begin) call->stream->Push(event);
      }
    }
  }

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
  auto server = rpc::Server::Start({}, {service});
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

void ScriptedWorker::Resume() {
  std::map<int, std::function<void()>> paused;
  {
    MutexLock lock(&state_->mu);
    paused.swap(state_->paused);
  }
  for (auto& [id, go_on] : paused) go_on();
}

void ScriptedWorker::Kill() {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
}

int ScriptedWorker::calls() const {
  MutexLock lock(&state_->mu);
  return state_->calls;
}
int ScriptedWorker::open() const {
  MutexLock lock(&state_->mu);
  return state_->open;
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

}  // namespace baton::fakes
