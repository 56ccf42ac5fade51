// One request's life in the router: validate and tokenize, place, reserve, prefill and hand over, decode, end. A state machine
// without RPCs: inputs go in, commands come out, and a driver carries those out. lifecycle_table.h says what happens
// when.
//
// What it guarantees:
//  - The client sees index 0, 1, 2, ... of each choice once. When a worker fails, the prompt is asked for again with
//    epoch + 1 (a prefill cache may hold it), token 0 is compared with what the client got (it must be equal, else
//    INTERNAL) and dropped, and decode goes on behind the tokens that the client has.
//  - What a worker holds for a request belongs to the router's call to it: whatever ends the attempt, both calls are
//    cancelled (or have ended), and with them all room, tickets and KV are given back.
//  - No prefill work is spent before a decode worker has promised room for the whole prompt (or, where it computes the
//    prompt itself, has that room).
//  - At most kMaxMoves, only for codes that common/status.h calls retryable, only before the deadline. A worker that is
//    full (RESOURCE_EXHAUSTED) is not asked again; the client hears of it when there is no other.
//  - A request on which two workers in a row died is not given to a third.
//  - Nothing is decoded when token 0 already ends every choice.
//
// Thread contract: one caller at a time. Time comes from the injected clock.
#ifndef BATON_ROUTER_REQUEST_LIFECYCLE_H_
#define BATON_ROUTER_REQUEST_LIFECYCLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/tracing/span.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/admission.h"
#include "router/choice_text.h"
#include "router/lifecycle_table.h"
#include "router/policy.h"
#include "router/request_stats.h"

namespace baton::router {

// Times a request goes elsewhere after a worker had begun with it.
inline constexpr uint32_t kMaxMoves = 3;
// Attempts in all, those that no worker had begun with (it drained, or could not be reached) too.
inline constexpr uint32_t kMaxAttempts = 16;

struct WorkerRef {
  WorkerId id;
  std::string address;
};

struct AdmittedRequest {
  std::string request_id;
  std::string model;
  std::string tenant;
  Priority priority = Priority::kStandard;
  std::vector<int32_t> prompt_token_ids;  // not empty
  v1::SamplingParams sampling;            // validated; seed, max_tokens and n are set
  absl::Duration tokenize;                // what station 1 took
};

struct PlacedPair {
  WorkerRef prefill;  // empty: decode computes the prompt too
  WorkerRef decode;   // empty when max_tokens is 1 and there is a prefill worker
};

// What happened. `epoch` is the attempt's that a stream belongs to, and `worker` the stream's other end.
struct Input {
  Event event;
  uint32_t epoch = 0;
  WorkerRef worker;
  std::variant<std::monostate, AdmittedRequest, PlacedPair, absl::Status, v1::Ticket, v1::SampledToken, v1::Prefilled,
               v1::Reserved, v1::Fetched, v1::DecodeDone>
      payload;
};

struct AskPlacement {
  PlacementNeed need;
  bool needs_decode = true;
};
struct StartPrefill {
  WorkerRef worker;
  std::optional<tracing::SpanContext> trace = std::nullopt;  // the driver's to set
  v1::PrefillRequest request;
};
struct StartDecode {
  WorkerRef worker;
  std::optional<tracing::SpanContext> trace = std::nullopt;  // as above
  v1::DecodeRequest request;
};
struct UpdateDecode {  // a failure of it is the decode call's
  WorkerRef worker;
  v1::UpdateDecodeRequest request;
};
struct OfferHistory {  // nobody waits for it
  WorkerRef worker;
  v1::ImportHistoryRequest request;
};
struct CancelPrefill {};
struct CancelDecode {};
struct Wait {
  absl::Duration delay;  // then kBackoffOver with `epoch`
  uint32_t epoch = 0;    // of the next attempt
  absl::Status why;      // what ended the one before
};
struct Send {
  v1::GenerateResponse response;
};
struct Finish {
  absl::Status status;  // the client's; the last command
};
using Command = std::variant<AskPlacement, StartPrefill, StartDecode, UpdateDecode, OfferHistory, CancelPrefill,
                             CancelDecode, Wait, Send, Finish>;

class RequestLifecycle {
 public:
  // `text` and `clock` are not owned and outlive this.
  RequestLifecycle(absl::Time deadline, const TextMaker* text, Clock* clock);

  // Appends to `commands`, which are to be carried out in order.
  void Handle(Input input, std::vector<Command>* commands);

  State state() const { return state_; }
  uint32_t epoch() const { return epoch_; }
  absl::Time deadline() const { return deadline_; }
  const AdmittedRequest& request() const { return request_; }
  const RequestStats& stats() const { return stats_; }

 private:
  struct Choice {
    std::unique_ptr<ChoiceText> text;
    std::vector<int32_t> ids;  // what the client has
    v1::SampledToken first;    // index 0 as attempt `first_epoch` sent it, for the decode request
    uint32_t first_epoch = 0;
    bool finished = false;
    bool matched_string = false;  // the workers do not know that it ended
    absl::Time last_token;
  };

  void Step(Input& input);
  void Admit(Input& input);
  void Ask();
  void Reserve(Input& input);
  void OpenDecode();
  void BeginPrefill();
  void Present(Input& input);
  void OnToken(Input& input);
  // Non-OK: this attempt cannot go on.
  absl::Status Forward(Choice& choice, v1::SampledToken& token);
  // `rest`: what was held back, and the stop string if one ended the choice.
  void FinishChoice(Choice& choice, const v1::SampledToken& token, TextPiece rest);
  void HandOver(Input& input);
  // What the client has of each choice, for a decode worker that is not the first.
  void SetResume(v1::DecodeRequest* request) const;
  void Redeem(Input& input);
  void NotePrefilled(const v1::Prefilled& prefilled);
  void GoOn(Input& input);
  void NoteDone(const Input& input);
  void Conclude(const Input& input);
  void FailOver(const Input& input, absl::Status status);
  void GiveUp(const Input& input);
  // Whether the worker, which had this request, is likely to have died of it: the second one in a row.
  bool IsPoison(const Input& input, const absl::Status& status);
  absl::Status TooLate() const;
  // Gives everything back and ends with `status`.
  void Abort(absl::Status status);
  void End(absl::Status status);
  UpdateDecode MakeUpdate() const;
  bool AllFinished() const;
  bool AllHaveFirst() const;  // from this attempt
  bool CutShort() const;      // by a stop string, which the workers do not see
  PlacementNeed Need() const;
  void Emit(Command command) { out_->push_back(std::move(command)); }

  const absl::Time deadline_;
  const TextMaker* const text_;
  Clock* const clock_;
  const absl::Time arrival_;
  State state_ = State::kReceived;
  uint32_t epoch_ = 1;
  AdmittedRequest request_;
  std::vector<Choice> choices_;
  std::set<WorkerId> avoid_;
  absl::Status shed_;  // non-OK: a full worker's words; others only from now on
  bool diverged_ = false;
  uint32_t moves_ = 0;
  // Workers that broke off one after another without a token in between.
  std::set<WorkerId> broke_;
  uint32_t tokens_when_broke_ = 0;
  WorkerRef prefill_, decode_;
  bool local_ = false;        // decode_ computes the prompt too
  bool presented_ = false;    // this attempt's ticket went to decode
  bool wait_for_go_ = false;  // decode starts only on our word
  std::vector<Input> held_;   // of this attempt's decode call, in order; at most what one stream holds
  absl::Time prefilled_;
  RequestStats stats_;
  std::vector<Command>* out_ = nullptr;  // of the running Handle
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_LIFECYCLE_H_
