#include "router/request_lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr uint64_t kExpectedTokens = 128;  // of one choice, where max_tokens says no less
constexpr absl::Duration kSecondRetryDelay = absl::Milliseconds(100);

absl::Status StatusOf(const Input& input) {
  const absl::Status* status = std::get_if<absl::Status>(&input.payload);
  return status != nullptr && !status->ok() ? *status : absl::InternalError("failed without a reason");
}

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  absl::Status out(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

// What both legs are told of a request. Stop strings stay here: workers know no text.
template <typename WorkerRequest>
void Describe(const AdmittedRequest& admitted, uint32_t epoch, WorkerRequest* request) {
  request->set_request_id(admitted.request_id);
  request->set_epoch(epoch);
  request->mutable_prompt_token_ids()->Assign(admitted.prompt_token_ids.begin(), admitted.prompt_token_ids.end());
  *request->mutable_sampling() = admitted.sampling;
  request->mutable_sampling()->clear_stop();
  request->mutable_sampling()->clear_include_stop_str_in_output();
  request->set_tenant(admitted.tenant);
}

}  // namespace

RequestLifecycle::RequestLifecycle(absl::Time deadline, const TextMaker* text, Clock* clock)
    : deadline_(deadline), text_(text), clock_(clock), arrival_(clock->Now()) {}

void RequestLifecycle::Handle(Input input, std::vector<Command>* commands) {
  out_ = commands;
  Step(input);
  // What was held back for prefill's last words comes now, unless the attempt is over.
  while (state_ != State::kPrefilling && !held_.empty()) {
    std::vector<Input> held = std::move(held_);
    held_.clear();
    for (Input& late : held) Step(late);
  }
  out_ = nullptr;
}

void RequestLifecycle::Step(Input& input) {
  const bool of_stream = input.event >= Event::kTicket && input.event <= Event::kBackoffOver;
  Action action = Lookup(state_, input.event);
  if (of_stream && input.epoch != epoch_) action = Action::kIgnore;
  switch (action) {
    case Action::kIgnore:
      break;
    case Action::kBug:
      Abort(absl::InternalError(absl::StrCat("router bug: ", Name(input.event), " in state ", Name(state_),
                                             "; please report this with the request id")));
      break;
    case Action::kAdmit:
      Admit(input);
      break;
    case Action::kReject:
      End(StatusOf(input));
      break;
    case Action::kReserve:
      Reserve(input);
      break;
    case Action::kBeginPrefill:
      stats_.reserved_at = clock_->Now() - arrival_;
      stats_.reserve = absl::Milliseconds(std::get<v1::Reserved>(input.payload).reserve_ms());
      stats_.kv.set_held_blocks(std::get<v1::Reserved>(input.payload).held_blocks());
      BeginPrefill();
      break;
    case Action::kPresent:
      Present(input);
      break;
    case Action::kHold:
      held_.push_back(std::move(input));
      break;
    case Action::kGiveUp:
      GiveUp(input);
      break;
    case Action::kToken:
      OnToken(input);
      break;
    case Action::kHandOver:
      HandOver(input);
      break;
    case Action::kMissing:
      FailOver(input, absl::AbortedError(absl::StrCat("its stream said ", Name(input.event), " in state ", Name(state_),
                                                      ", before what must come first")));
      break;
    case Action::kRedeem:
      Redeem(input);
      break;
    case Action::kGoOn:
      GoOn(input);
      break;
    case Action::kNoteDone:
      NoteDone(input);
      break;
    case Action::kConclude:
      Conclude(input);
      break;
    case Action::kFailOver:
      FailOver(input, StatusOf(input));
      break;
    case Action::kPlaceAgain:
      Ask();
      break;
    case Action::kAbortGone:
      Abort(absl::CancelledError("the client cancelled the request"));
      break;
    case Action::kAbortLate:
      Abort(TooLate());
      break;
    case Action::kAbortStop:
      Abort(
          absl::UnavailableError("the router is stopping; send the request again, to another router if there is one"));
      break;
  }
}

absl::Status RequestLifecycle::TooLate() const {
  return absl::DeadlineExceededError(absl::StrCat("the request's deadline passed after ",
                                                  absl::ToInt64Milliseconds(clock_->Now() - arrival_),
                                                  " ms; ask for fewer tokens or give it more time"));
}

void RequestLifecycle::Admit(Input& input) {
  request_ = std::move(std::get<AdmittedRequest>(input.payload));
  stats_.tokenize = request_.tokenize;
  stats_.prompt_tokens = static_cast<uint32_t>(request_.prompt_token_ids.size());
  choices_.resize(std::max(request_.sampling.n(), 1));
  for (Choice& choice : choices_) choice.text = text_->NewChoice(request_.sampling);
  v1::GenerateResponse response;
  v1::Started* started = response.mutable_started();
  started->set_request_id(request_.request_id);
  started->set_seed(request_.sampling.seed());
  started->set_prompt_tokens(stats_.prompt_tokens);
  started->set_model(request_.model);
  Emit(Send{std::move(response)});
  Ask();
}

PlacementNeed RequestLifecycle::Need() const {
  PlacementNeed need;
  need.prompt_tokens = request_.prompt_token_ids.size();
  need.total_tokens = need.prompt_tokens + static_cast<uint64_t>(std::max(request_.sampling.max_tokens(), 0));
  need.output_tokens = std::min<uint64_t>(std::max(request_.sampling.max_tokens(), 0), kExpectedTokens);
  need.choices = static_cast<uint32_t>(choices_.size());
  need.avoid = avoid_;
  need.only_others = !shed_.ok();
  return need;
}

void RequestLifecycle::Ask() {
  state_ = State::kPlacing;
  Emit(AskPlacement{Need(), request_.sampling.max_tokens() > 1});
}

void RequestLifecycle::Reserve(Input& input) {
  PlacedPair& pair = std::get<PlacedPair>(input.payload);
  prefill_ = std::move(pair.prefill);
  decode_ = std::move(pair.decode);
  local_ = prefill_.id.name.empty();
  stats_.mode = local_ ? "local" : "remote";
  stats_.prefill_worker = local_ ? decode_.id.name : prefill_.id.name;
  stats_.decode_worker.clear();
  stats_.placed_at = clock_->Now() - arrival_;
  stats_.reserved_at = stats_.prefilled_at = stats_.fetched_at = absl::InfiniteDuration();
  presented_ = false;
  held_.clear();
  if (!local_ && request_.sampling.max_tokens() <= 1) return BeginPrefill();
  state_ = local_ ? State::kLocal : State::kReserving;
  OpenDecode();
}

void RequestLifecycle::OpenDecode() {
  // Whether token 0 ends a choice may be text, and a former attempt may have ended one: decode must not run it.
  wait_for_go_ = !local_ && (request_.sampling.stop_size() > 0 ||
                             std::any_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.finished; }));
  StartDecode start;
  start.worker = decode_;
  v1::DecodeRequest& request = start.request;
  Describe(request_, epoch_, &request);
  request.set_wait_for_go(wait_for_go_);
  request.set_local_prefill(local_);
  SetResume(&request);
  for (size_t i = 0; local_ && i < choices_.size(); ++i) {
    if (choices_[i].finished) request.add_ended_choices(static_cast<uint32_t>(i));
  }
  Emit(std::move(start));
}

void RequestLifecycle::BeginPrefill() {
  state_ = State::kPrefilling;
  StartPrefill start;
  start.worker = prefill_;
  v1::PrefillRequest& request = start.request;
  Describe(request_, epoch_, &request);
  request.set_hand_over(request_.sampling.max_tokens() > 1);
  Emit(std::move(start));
}

UpdateDecode RequestLifecycle::MakeUpdate() const {
  UpdateDecode update;
  update.worker = decode_;
  update.request.set_request_id(request_.request_id);
  update.request.set_epoch(epoch_);
  return update;
}

void RequestLifecycle::Present(Input& input) {
  if (presented_ || request_.sampling.max_tokens() <= 1) return;  // one is enough, or too many
  presented_ = true;
  UpdateDecode update = MakeUpdate();
  *update.request.mutable_ticket() = std::move(std::get<v1::Ticket>(input.payload));
  Emit(std::move(update));
}

void RequestLifecycle::OnToken(Input& input) {
  v1::SampledToken& token = std::get<v1::SampledToken>(input.payload);
  const bool prefill = state_ == State::kPrefilling || state_ == State::kLocal;
  absl::Status status;
  if (token.choice_index() >= choices_.size() || prefill != (token.token_index() == 0)) {
    status = absl::InternalError(absl::StrCat("the worker sent index ", token.token_index(), " of choice ",
                                              token.choice_index(), ", which is not its to send"));
  } else {
    status = Forward(choices_[token.choice_index()], token);
  }
  if (!status.ok()) return FailOver(input, std::move(status));
  if (prefill || !AllFinished()) return;  // a prefill's result follows, with or without a ticket
  if (!CutShort()) return;  // the worker knows that all is over; its figures follow
  Emit(CancelDecode{});
  Conclude(input);
}

absl::Status RequestLifecycle::Forward(Choice& choice, v1::SampledToken& token) {
  const size_t next = choice.ids.size();
  const size_t index = token.token_index();
  if (index == 0) {
    choice.first = token;
    choice.first_epoch = epoch_;
  }
  if (index < next) {
    if (choice.ids[index] == token.token_id()) return absl::OkStatus();
    // Trying again could not tell which of the two is right.
    diverged_ = true;
    // Without the ids: they are the client's text, and this is logged.
    return absl::InternalError(absl::StrCat("attempt ", epoch_, " computed another token at index ", index, " of choice ",
                                            token.choice_index(), " than the client has; the workers' arithmetic differs"));
  }
  if (choice.finished) return absl::OkStatus();  // beyond a stop string
  if (index > next) {
    return absl::DataLossError(
        absl::StrCat("index ", index, " of choice ", token.choice_index(), " came where ", next, " was due"));
  }
  const absl::Time now = clock_->Now();
  if (absl::Duration since = now - arrival_; since < stats_.ttft) stats_.ttft = since;
  if (next == 1 && token.choice_index() == 0) stats_.second_token = now - choice.last_token;
  if (next > 0) stats_.itl_ms.push_back(static_cast<float>(absl::ToDoubleMilliseconds(now - choice.last_token)));
  choice.last_token = now;
  stats_.last_token_at = now - arrival_;
  if (token.choice_index() == 0 && next < kMaxTokenMoments) {
    stats_.token_ms.push_back(static_cast<float>(absl::ToDoubleMilliseconds(now - arrival_)));
  }
  choice.ids.push_back(token.token_id());
  ++stats_.completion_tokens;

  const bool by_id = token.finish_reason() == v1::FINISH_REASON_STOP;
  TextPiece piece = by_id ? choice.text->PushStop(token.token_id()) : choice.text->Push(token.token_id());
  // A stop string that the last text completes is what ended the choice, also when max_tokens did at once.
  const bool ends = piece.stop_string.has_value() || token.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  TextPiece rest;
  rest.stop_string = piece.stop_string;
  if (ends && !piece.stop_string.has_value()) rest = choice.text->Flush();
  stats_.stop += clock_->Now() - now;

  v1::GenerateResponse response;
  v1::TokenEvent* event = response.mutable_token();
  event->set_choice_index(token.choice_index());
  event->set_token_index(token.token_index());
  event->set_token_id(token.token_id());
  event->set_text(std::move(piece.text));
  event->set_logprob(token.logprob());
  event->mutable_top_logprobs()->Swap(token.mutable_top_logprobs());
  for (v1::TopLogprob& top : *event->mutable_top_logprobs()) top.set_token(text_->TokenBytes(top.token_id()));
  Emit(Send{std::move(response)});
  if (ends) FinishChoice(choice, token, std::move(rest));
  return absl::OkStatus();
}

void RequestLifecycle::FinishChoice(Choice& choice, const v1::SampledToken& token, TextPiece rest) {
  const std::optional<std::string>& stop_string = rest.stop_string;
  choice.finished = true;
  choice.matched_string = stop_string.has_value() && token.finish_reason() == v1::FINISH_REASON_UNSPECIFIED;
  v1::GenerateResponse response;
  v1::ChoiceFinished* finished = response.mutable_finished();
  finished->set_choice_index(token.choice_index());
  finished->set_reason(stop_string.has_value() ? v1::FINISH_REASON_STOP : token.finish_reason());
  if (stop_string.has_value()) {
    finished->set_stop_string(*stop_string);
  } else if (token.finish_reason() == v1::FINISH_REASON_STOP) {
    finished->set_stop_token_id(token.stop_token_id());
  }
  finished->set_text(std::move(rest.text));
  finished->set_completion_tokens(static_cast<uint32_t>(choice.ids.size()));
  stats_.finish_reasons.push_back(finished->reason());
  Emit(Send{std::move(response)});
}

void RequestLifecycle::NotePrefilled(const v1::Prefilled& prefilled) {
  stats_.cached_tokens = prefilled.cached_tokens();
  stats_.queue = absl::Milliseconds(prefilled.queue_ms());
  stats_.prefill = absl::Milliseconds(prefilled.prefill_ms());
  stats_.sample = absl::Milliseconds(prefilled.sample_ms());
  stats_.num_chunks = prefilled.num_chunks();
  prefilled_ = clock_->Now();
  stats_.prefilled_at = prefilled_ - arrival_;
}

void RequestLifecycle::GoOn(Input& input) {
  NotePrefilled(std::get<v1::Prefilled>(input.payload));
  if (!AllHaveFirst()) {
    return FailOver(input, absl::InternalError("it ended the prefill without token 0 of every choice"));
  }
  stats_.decode_worker = decode_.id.name;
  state_ = State::kDecoding;
  // Stop strings may have ended all of them, and the worker does not know.
  if (AllFinished() && CutShort()) {
    Emit(CancelDecode{});
    Conclude(input);
  }
}

void RequestLifecycle::HandOver(Input& input) {
  NotePrefilled(std::get<v1::Prefilled>(input.payload));
  if (AllFinished()) {
    // Whoever still holds something for it hears so from the other, or by this.
    if (request_.sampling.max_tokens() > 1) {
      Emit(CancelPrefill{});
      Emit(CancelDecode{});
    }
    return Conclude(input);
  }
  if (!AllHaveFirst() || !presented_) {
    return FailOver(input, absl::InternalError(absl::StrCat(
                               "it ended the prefill without ",
                               presented_ ? "token 0 of every choice" : "a ticket, and choices go on")));
  }
  state_ = State::kHandover;
  if (!wait_for_go_) return;
  UpdateDecode update = MakeUpdate();
  update.request.set_go(true);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished) update.request.add_ended_choices(static_cast<uint32_t>(i));
  }
  Emit(std::move(update));
}

void RequestLifecycle::SetResume(v1::DecodeRequest* request) const {
  // Where a former attempt got further than token 0, decode goes on behind its tokens instead of sampling them again.
  const bool resumes = std::any_of(choices_.begin(), choices_.end(),
                                   [](const Choice& c) { return !c.finished && c.ids.size() > 1; });
  if (!resumes) return;
  for (const Choice& choice : choices_) {
    v1::EmittedTokens* known = request->add_resume();
    if (!choice.finished) known->mutable_token_ids()->Assign(choice.ids.begin(), choice.ids.end());
  }
}

void RequestLifecycle::Redeem(Input& input) {
  const v1::Fetched& fetched = std::get<v1::Fetched>(input.payload);
  bool equal = !fetched.finished() && fetched.first_token_ids_size() == static_cast<int>(choices_.size());
  for (size_t i = 0; equal && i < choices_.size(); ++i) {
    equal = fetched.first_token_ids(static_cast<int>(i)) == choices_[i].first.token_id();
  }
  if (!equal) {
    return FailOver(input, absl::DataLossError("it got other first tokens with the KV than the client has"));
  }
  stats_.decode_worker = decode_.id.name;
  stats_.transfer = absl::Milliseconds(fetched.transfer_ms());
  stats_.handover = clock_->Now() - prefilled_;
  stats_.fetched_at = clock_->Now() - arrival_;
  stats_.kv.set_bytes(fetched.bytes());
  stats_.kv.set_blocks(fetched.blocks());
  stats_.kv.set_transport(fetched.transport());
  stats_.kv.set_detail(fetched.detail());
  state_ = State::kDecoding;
}

void RequestLifecycle::NoteDone(const Input& input) {
  const v1::DecodeDone& done = std::get<v1::DecodeDone>(input.payload);
  stats_.decode_queue = absl::Milliseconds(done.decode_queue_ms());
  stats_.num_preemptions += done.num_preemptions();
  stats_.num_steps = done.num_steps();
  stats_.logits = absl::Milliseconds(done.logits_ms());
  // A worker that computed the prompt too has counted all of it.
  stats_.sample = absl::Milliseconds(done.sample_ms()) + (local_ ? absl::ZeroDuration() : stats_.sample);
  if (!done.has_history() || choices_.size() != 1 || local_) return;
  // The next turn's prompt begins with this one and its answer; who computes it should find both.
  const size_t num_tokens = done.history().num_tokens();
  std::vector<int32_t> ids = request_.prompt_token_ids;
  ids.insert(ids.end(), choices_[0].ids.begin(), choices_[0].ids.end());
  if (num_tokens > ids.size()) return;
  OfferHistory offer;
  offer.worker = prefill_;
  offer.request.set_request_id(request_.request_id);
  offer.request.set_epoch(epoch_);
  offer.request.set_tenant(request_.tenant);
  offer.request.mutable_token_ids()->Assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(num_tokens));
  *offer.request.mutable_ticket() = done.history();
  Emit(std::move(offer));
}

void RequestLifecycle::Conclude(const Input& input) {
  if (!AllFinished()) {
    return FailOver(input, absl::AbortedError("it ended its stream although choices go on"));
  }
  if (stats_.kv.transport().empty()) stats_.kv.set_transport("none");
  stats_.total = clock_->Now() - arrival_;
  v1::GenerateResponse response;
  *response.mutable_summary() = MakeSummary(stats_, request_.sampling.seed());
  Emit(Send{std::move(response)});
  End(absl::OkStatus());
}

void RequestLifecycle::FailOver(const Input& input, absl::Status status) {
  // All was sent: only the stream's last figures are missing.
  if (!choices_.empty() && AllFinished()) {
    Emit(CancelPrefill{});
    Emit(CancelDecode{});
    return Conclude(input);
  }
  // Whatever the worker says of it.
  if (clock_->Now() >= deadline_) return Abort(TooLate());
  const bool prefill = input.event <= Event::kPrefillFailed;
  // Nobody here cancelled: the worker is being stopped.
  if (absl::IsCancelled(status)) status = absl::UnavailableError(status.message());
  if (!input.worker.id.name.empty()) {
    avoid_.insert(input.worker.id);
    status = Prefixed(absl::StrCat(prefill ? "prefill" : "decode", " worker ", input.worker.id.name), status);
  }
  // While the KV moves either end may be the cause.
  const bool moving = state_ == State::kPrefilling || state_ == State::kHandover;
  if (moving && !prefill && !absl::IsResourceExhausted(status)) avoid_.insert(prefill_.id);
  const RouterAction action = diverged_ ? RouterAction::kFail : ActionFor(status);
  if (action == RouterAction::kShed) shed_ = status;
  const bool retry = action == RouterAction::kRetryElsewhere || action == RouterAction::kShed;
  if (retry && IsPoison(input, status)) {
    return Abort(WithReason(absl::InternalError(absl::StrCat(
                                "two workers in a row broke off while they had this request and before they gave it "
                                "another token; it is not tried on a third. The last one: ",
                                status.message())),
                            "POISON"));
  }
  // Nothing is lost when a worker could not be reached, drains, or is full before it began.
  const bool refused = absl::IsUnavailable(status) || (state_ == State::kLocal && absl::IsResourceExhausted(status));
  const bool began = state_ != State::kReserving &&
                     !(((state_ == State::kPrefilling && prefill) || state_ == State::kLocal) && refused);
  moves_ += began;
  if (!retry || moves_ > kMaxMoves || epoch_ >= kMaxAttempts) {
    if (epoch_ > 1) status = Prefixed(absl::StrCat("after ", epoch_, " attempts"), status);
    return Abort(std::move(status));
  }
  Emit(CancelPrefill{});
  Emit(CancelDecode{});
  held_.clear();
  if (stats_.completion_tokens > 0) ++stats_.retries_after_first_token;
  stats_.kv.Clear();
  stats_.transfer = stats_.handover = stats_.reserve = absl::ZeroDuration();
  ++epoch_;
  stats_.attempts = epoch_;
  state_ = State::kBackoff;
  Emit(Wait{epoch_ == 2 ? absl::ZeroDuration() : kSecondRetryDelay, epoch_, std::move(status)});
}

bool RequestLifecycle::IsPoison(const Input& input, const absl::Status& status) {
  // A connection that was never made, or a refusal in words, is no death; silence may be the network's.
  const absl::string_view words = status.message();
  const bool broke = absl::IsUnavailable(status) && !absl::StrContains(words, "failed to connect") &&
                     !absl::StrContains(words, "draining") && !absl::StrContains(words, "stopping") &&
                     !absl::StrContains(words, "heartbeat");
  // While KV moves a failure may be the other end's.
  const bool prefill = input.event <= Event::kPrefillFailed;
  const bool had_it = state_ == State::kLocal || state_ == (prefill ? State::kPrefilling : State::kDecoding);
  if (!broke || !had_it || input.worker.id.name.empty()) return false;
  if (stats_.completion_tokens != tokens_when_broke_) broke_.clear();
  tokens_when_broke_ = stats_.completion_tokens;
  broke_.insert(input.worker.id);
  return broke_.size() >= 2;
}

void RequestLifecycle::GiveUp(const Input& input) {
  // That there is no worker left is news only when none was full.
  Abort(shed_.ok() ? StatusOf(input) : shed_);
}

void RequestLifecycle::Abort(absl::Status status) {
  Emit(CancelPrefill{});
  Emit(CancelDecode{});
  held_.clear();
  End(std::move(status));
}

void RequestLifecycle::End(absl::Status status) {
  state_ = State::kDone;
  stats_.total = clock_->Now() - arrival_;
  Emit(Finish{std::move(status)});
}

bool RequestLifecycle::AllFinished() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.finished; });
}

bool RequestLifecycle::CutShort() const {
  return std::any_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.matched_string; });
}

bool RequestLifecycle::AllHaveFirst() const {
  return std::all_of(choices_.begin(), choices_.end(), [this](const Choice& c) { return c.first_epoch == epoch_; });
}

}  // namespace baton::router
