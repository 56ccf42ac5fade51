#include "router/request_lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace baton::router {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A token's text is "<id>"; a stop string such as "<7>" matches that token.
class FakeChoice : public ChoiceText {
 public:
  explicit FakeChoice(const v1::SamplingParams& s) : stops_(s.stop().begin(), s.stop().end()) {}
  TextPiece Push(int32_t id) override {
    const std::string text = absl::StrCat("<", id, ">");
    if (stops_.count(text) > 0) return {"", text};
    return {text, std::nullopt};
  }
  TextPiece PushStop(int32_t) override { return {}; }
  TextPiece Flush() override { return {"held", std::nullopt}; }

 private:
  std::set<std::string> stops_;
};

class FakeText : public TextMaker {
 public:
  std::unique_ptr<ChoiceText> NewChoice(const v1::SamplingParams& s) const override {
    return std::make_unique<FakeChoice>(s);
  }
  std::string TokenBytes(int32_t id) const override { return absl::StrCat("b", id); }
};

class LifecycleTest : public ::testing::Test {
 protected:
  LifecycleTest() { Reset(); }
  void Reset() {
    first_ids_.clear();
    life_ = std::make_unique<RequestLifecycle>(clock_.Now() + absl::Seconds(10), &text_, &clock_);
  }

  // Handles the input and returns the commands as words: what a test reads.
  std::vector<std::string> Do(Input input) {
    std::vector<Command> commands;
    life_->Handle(std::move(input), &commands);
    std::vector<std::string> words;
    for (Command& command : commands) {
      words.push_back(Word(command));
      if (auto* decode = std::get_if<StartDecode>(&command)) last_decode_ = decode->request;
      if (auto* prefill = std::get_if<StartPrefill>(&command)) last_prefill_ = prefill->request;
      if (auto* finish = std::get_if<Finish>(&command)) finish_ = finish->status;
      if (auto* ask = std::get_if<AskPlacement>(&command)) need_ = ask->need;
      if (auto* send = std::get_if<Send>(&command); send && send->response.has_summary()) {
        summary_ = send->response.summary();
      }
    }
    return words;
  }

  static std::string Word(const Command& command) {
    struct {
      std::string operator()(const AskPlacement& c) { return c.needs_decode ? "place" : "place prefill"; }
      std::string operator()(const StartPrefill& c) {
        return absl::StrCat("prefill ", c.worker.id.name, " e", c.request.epoch());
      }
      std::string operator()(const StartDecode& c) {
        return absl::StrCat("decode ", c.worker.id.name, " e", c.request.epoch());
      }
      std::string operator()(const OfferHistory& c) {
        return absl::StrCat("history ", c.worker.id.name, " ", absl::StrJoin(c.request.token_ids(), ","));
      }
      std::string operator()(const CancelPrefill&) { return "cancel prefill"; }
      std::string operator()(const CancelDecode&) { return "cancel decode"; }
      std::string operator()(const UpdateDecode& c) {
        std::string word = absl::StrCat("update ", c.worker.id.name);
        if (c.request.has_ticket()) absl::StrAppend(&word, " ticket ", c.request.ticket().transfer_id_low());
        if (c.request.go()) absl::StrAppend(&word, " go");
        for (uint32_t choice : c.request.ended_choices()) absl::StrAppend(&word, " -", choice);
        return word;
      }
      std::string operator()(const Wait& c) { return absl::StrCat("wait ", absl::ToInt64Milliseconds(c.delay)); }
      std::string operator()(const Send& c) {
        const v1::GenerateResponse& r = c.response;
        if (r.has_started()) return absl::StrCat("started ", r.started().prompt_tokens());
        if (r.has_token()) {
          return absl::StrCat("token ", r.token().choice_index(), ".", r.token().token_index(), "=",
                              r.token().token_id(), r.token().text());
        }
        if (r.has_finished()) {
          return absl::StrCat("finished ", r.finished().choice_index(), " ", r.finished().reason(), " ",
                              r.finished().stop_string(), r.finished().text(), " ", r.finished().completion_tokens());
        }
        return absl::StrCat("summary ", r.summary().usage().completion_tokens());
      }
      std::string operator()(const Finish& c) { return absl::StrCat("finish ", static_cast<int>(c.status.code())); }
    } word;
    return std::visit(word, command);
  }

  static WorkerRef Ref(const std::string& name) { return {{name, "i"}, "host:1"}; }

  Input Admitted(int n = 1, int max_tokens = 8, std::vector<std::string> stop = {}) {
    AdmittedRequest request;
    request.request_id = "r";
    request.model = "m";
    request.prompt_token_ids = {1, 2, 3};
    request.sampling.set_n(n);
    request.sampling.set_seed(5);
    request.sampling.set_max_tokens(max_tokens);
    for (const std::string& s : stop) request.sampling.add_stop(s);
    return {Event::kAdmitted, 0, {}, std::move(request)};
  }
  static Input Placed(const std::string& p = "p0", const std::string& d = "d0") {
    return {Event::kPlaced, 0, {}, PlacedPair{Ref(p), Ref(d)}};
  }
  Input Reserved(const std::string& worker = "d0") {
    v1::Reserved reserved;
    reserved.set_reserve_ms(4);
    return {Event::kReserved, life_->epoch(), Ref(worker), std::move(reserved)};
  }
  // Placed, and decode has promised room; the words of the second.
  std::vector<std::string> Begin(const std::string& p = "p0", const std::string& d = "d0") {
    Do(Placed(p, d));
    return Do(Reserved(d));
  }
  Input Ticket(int id, const std::string& worker = "p0") {
    v1::Ticket ticket;
    ticket.set_transfer_id_low(id);
    return {Event::kTicket, life_->epoch(), Ref(worker), std::move(ticket)};
  }
  static v1::SampledToken Token(uint32_t choice, uint32_t index, int32_t id,
                                v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED) {
    v1::SampledToken token;
    token.set_choice_index(choice);
    token.set_token_index(index);
    token.set_token_id(id);
    token.set_finish_reason(reason);
    return token;
  }
  Input Pre(v1::SampledToken token, const std::string& worker = "p0") {
    if (first_ids_.size() <= token.choice_index()) first_ids_.resize(token.choice_index() + 1);
    first_ids_[token.choice_index()] = token.token_id();
    return {Event::kPrefillToken, life_->epoch(), Ref(worker), std::move(token)};
  }
  Input Dec(v1::SampledToken token, const std::string& worker = "d0") {
    return {Event::kDecodeToken, life_->epoch(), Ref(worker), std::move(token)};
  }
  // Its ticket (0: none) has come before, as it always does.
  Input Prefilled(int ticket, const std::string& worker = "p0") {
    if (ticket > 0) Do(Ticket(ticket, worker));
    v1::Prefilled prefilled;
    prefilled.set_cached_tokens(2);
    prefilled.set_prefill_ms(3);
    return {Event::kPrefilled, life_->epoch(), Ref(worker), std::move(prefilled)};
  }
  Input Fetched(const std::string& worker = "d0") {
    v1::Fetched fetched;
    fetched.set_bytes(100);
    fetched.set_transport("ucx");
    for (int32_t id : first_ids_) fetched.add_first_token_ids(id);
    return {Event::kFetched, life_->epoch(), Ref(worker), std::move(fetched)};
  }
  Input Plain(Event event, const std::string& worker = "d0") { return {event, life_->epoch(), Ref(worker), {}}; }
  Input Failed(Event event, absl::Status status, const std::string& worker) {
    return {event, life_->epoch(), Ref(worker), std::move(status)};
  }
  void ToDecoding(int n = 1, std::vector<std::string> stop = {}) {
    Do(Admitted(n, 8, std::move(stop)));
    Begin();
    for (int i = 0; i < n; ++i) Do(Pre(Token(i, 0, 10 + i)));
    Do(Prefilled(42));
    Do(Fetched());
    ASSERT_EQ(life_->state(), State::kDecoding);
  }

  SimulatedClock clock_;
  FakeText text_;
  std::unique_ptr<RequestLifecycle> life_;
  v1::PrefillRequest last_prefill_;
  v1::DecodeRequest last_decode_;
  v1::Summary summary_;
  absl::Status finish_;
  PlacementNeed need_;
  std::vector<int32_t> first_ids_;  // what comes with the KV: what prefill sampled
};

TEST_F(LifecycleTest, TheWholeWay) {
  EXPECT_THAT(Do(Admitted(1, 8, {"zz"})), ElementsAre("started 3", "place"));
  EXPECT_THAT(Do(Placed()), ElementsAre("decode d0 e1")) << "room first, work then";
  EXPECT_EQ(last_decode_.sampling().stop_size(), 0) << "stop strings are the router's";
  EXPECT_TRUE(last_decode_.wait_for_go());
  EXPECT_THAT(Do(Reserved()), ElementsAre("prefill p0 e1"));
  EXPECT_EQ(last_prefill_.sampling().stop_size(), 0);
  EXPECT_TRUE(last_prefill_.hand_over());
  EXPECT_THAT(Do(Ticket(42)), ElementsAre("update d0 ticket 42"));
  clock_.Advance(absl::Milliseconds(20));
  EXPECT_THAT(Do(Pre(Token(0, 0, 7))), ElementsAre("token 0.0=7<7>"));
  EXPECT_THAT(Do(Prefilled(0)), ElementsAre("update d0 go"));
  clock_.Advance(absl::Milliseconds(2));
  EXPECT_THAT(Do(Fetched()), IsEmpty());
  EXPECT_THAT(Do(Plain(Event::kPrefillEnded, "p0")), IsEmpty());
  clock_.Advance(absl::Milliseconds(3));
  EXPECT_THAT(Do(Dec(Token(0, 1, 8))), ElementsAre("token 0.1=8<8>"));
  clock_.Advance(absl::Milliseconds(5));
  EXPECT_THAT(Do(Dec(Token(0, 2, 9, v1::FINISH_REASON_LENGTH))), ElementsAre("token 0.2=9<9>", "finished 0 2 held 3"));
  v1::DecodeDone done;
  done.set_decode_queue_ms(1.5);
  EXPECT_THAT(Do({Event::kDecodeDone, 1, Ref("d0"), done}), IsEmpty());
  EXPECT_THAT(Do(Plain(Event::kDecodeEnded)), ElementsAre("summary 3", "finish 0"));
  EXPECT_EQ(summary_.usage().cached_tokens(), 2u);
  EXPECT_EQ(summary_.kv().bytes(), 100u);
  EXPECT_EQ(summary_.decode_worker(), "d0");
  EXPECT_DOUBLE_EQ(summary_.timings().first_token_ms(), 20);
  EXPECT_DOUBLE_EQ(summary_.timings().itl_p50_ms(), 5);
  EXPECT_DOUBLE_EQ(summary_.timings().decode_queue_ms(), 1.5);
  EXPECT_DOUBLE_EQ(summary_.timings().reserve_ms(), 4);
  EXPECT_DOUBLE_EQ(summary_.timings().handover_ms(), 2);
  EXPECT_DOUBLE_EQ(summary_.timings().second_token_ms(), 5);
  EXPECT_DOUBLE_EQ(summary_.timings().total_ms(), 30);
}

TEST_F(LifecycleTest, HistoryIsOfferedToWhoPrefilled) {
  ToDecoding();
  Do(Dec(Token(0, 1, 20)));
  Do(Dec(Token(0, 2, 21, v1::FINISH_REASON_STOP)));
  v1::DecodeDone done;
  done.mutable_history()->set_num_tokens(4);
  EXPECT_THAT(Do({Event::kDecodeDone, 1, Ref("d0"), done}), ElementsAre("history p0 1,2,3,10"));
  done.mutable_history()->set_num_tokens(7);
  EXPECT_THAT(Do({Event::kDecodeDone, 1, Ref("d0"), done}), IsEmpty()) << "more than there is";
}

TEST_F(LifecycleTest, OneTokenCostsNoDecode) {
  EXPECT_THAT(Do(Admitted(1, 1)), ElementsAre("started 3", "place prefill"));
  Do(Placed());
  EXPECT_FALSE(last_prefill_.hand_over());
  Do(Pre(Token(0, 0, 7, v1::FINISH_REASON_LENGTH)));
  EXPECT_THAT(Do(Prefilled(0)), ElementsAre("summary 1", "finish 0"));
  EXPECT_EQ(summary_.kv().transport(), "none");
  EXPECT_EQ(summary_.decode_worker(), "");
}

TEST_F(LifecycleTest, AStopStringInTheFirstTokenGivesAllBackAndCostsNoDecode) {
  Do(Admitted(1, 8, {"<7>"}));
  Begin();
  EXPECT_THAT(Do(Pre(Token(0, 0, 7))), ElementsAre("token 0.0=7", "finished 0 1 <7> 1"));
  EXPECT_THAT(Do(Prefilled(42)), ElementsAre("cancel prefill", "cancel decode", "summary 1", "finish 0"));
}

TEST_F(LifecycleTest, AStopIdInTheFirstTokenCostsNoDecode) {
  Do(Admitted());
  Begin();
  EXPECT_THAT(Do(Pre(Token(0, 0, 7, v1::FINISH_REASON_STOP))), ElementsAre("token 0.0=7", "finished 0 1 held 1"));
  EXPECT_THAT(Do(Prefilled(42)), ElementsAre("cancel prefill", "cancel decode", "summary 1", "finish 0"));
}

TEST_F(LifecycleTest, AStopStringOfAllChoicesCancelsDecodeAndUsageCountsToTheMatch) {
  ToDecoding(2, {"<99>"});
  EXPECT_THAT(Do(Dec(Token(0, 1, 99))), ElementsAre("token 0.1=99", "finished 0 1 <99> 2"));
  EXPECT_THAT(Do(Dec(Token(0, 2, 5))), IsEmpty()) << "what follows a match is dropped";
  EXPECT_THAT(Do(Dec(Token(1, 1, 3))), ElementsAre("token 1.1=3<3>"));
  EXPECT_THAT(Do(Dec(Token(1, 2, 99))),
              ElementsAre("token 1.2=99", "finished 1 1 <99> 3", "cancel decode", "summary 5", "finish 0"));
}

TEST_F(LifecycleTest, AChoiceThatAStopStringEndedAtOnceDoesNotRunInDecode) {
  Do(Admitted(2, 8, {"<10>"}));
  Begin();
  Do(Pre(Token(0, 0, 10)));
  Do(Pre(Token(1, 0, 11)));
  EXPECT_THAT(Do(Prefilled(42)), ElementsAre("update d0 go -0"));
}

TEST_F(LifecycleTest, AStopStringThatTheLastTokenCompletesWinsOverLength) {
  ToDecoding(1, {"<99>"});
  EXPECT_THAT(Do(Dec(Token(0, 1, 99, v1::FINISH_REASON_LENGTH))), ElementsAre("token 0.1=99", "finished 0 1 <99> 2"));
  EXPECT_THAT(Do(Plain(Event::kDecodeEnded)), ElementsAre("summary 2", "finish 0"));
}

TEST_F(LifecycleTest, DecodeDyingMidStreamContinuesElsewhereWithoutRepeats) {
  ToDecoding();
  Do(Dec(Token(0, 1, 20)));
  EXPECT_THAT(Do(Failed(Event::kDecodeFailed, absl::UnavailableError("gone"), "d0")),
              ElementsAre("cancel prefill", "cancel decode", "wait 0"));
  EXPECT_THAT(Do(Plain(Event::kBackoffOver)), ElementsAre("place"));
  EXPECT_TRUE(need_.avoid.count(Ref("d0").id));
  EXPECT_FALSE(need_.avoid.count(Ref("p0").id));
  EXPECT_THAT(Do(Placed("p0", "d1")), ElementsAre("decode d1 e2"));
  EXPECT_THAT(Do(Reserved("d1")), ElementsAre("prefill p0 e2"));
  ASSERT_EQ(last_decode_.resume_size(), 1);
  EXPECT_THAT(last_decode_.resume(0).token_ids(), ElementsAre(10, 20)) << "it goes on behind what the client has";
  EXPECT_THAT(Do(Pre(Token(0, 0, 10))), IsEmpty()) << "the client has index 0";
  Do(Prefilled(43));
  Do(Fetched("d1"));
  EXPECT_THAT(Do(Dec(Token(0, 1, 20))), IsEmpty());
  EXPECT_THAT(Do(Dec(Token(0, 2, 21, v1::FINISH_REASON_STOP))), ElementsAre("token 0.2=21", "finished 0 1 held 3"));
  EXPECT_THAT(Do(Plain(Event::kDecodeEnded)), ElementsAre("summary 3", "finish 0"));
  EXPECT_EQ(summary_.decode_worker(), "d1");
  EXPECT_EQ(life_->stats().retries_after_first_token, 1u);
}

TEST_F(LifecycleTest, ADifferentTokenOnTheRetryIsAnErrorNotAWrongStream) {
  ToDecoding();
  Do(Failed(Event::kDecodeFailed, absl::AbortedError("gone"), "d0"));
  Do(Plain(Event::kBackoffOver));
  Begin("p1", "d1");
  EXPECT_THAT(Do(Pre(Token(0, 0, 11), "p1")), ElementsAre("cancel prefill", "cancel decode", "finish 13"));
  EXPECT_THAT(std::string(finish_.message()), HasSubstr("computed another token at index 0 of choice 0"));
  // The message is logged, and token ids are the client's text: both of them stood in it.
  EXPECT_THAT(std::string(finish_.message()), AllOf(Not(HasSubstr("10")), Not(HasSubstr("11"))));
}

TEST_F(LifecycleTest, BothCallsAreCancelledWhateverEndsTheAttemptAndWhenever) {
  const std::pair<State, std::function<void()>> phases[] = {
      {State::kReserving, [this] { Do(Admitted()), Do(Placed()); }},
      {State::kPrefilling, [this] { Do(Admitted()), Begin(); }},
      {State::kPrefilling, [this] { Do(Admitted()), Begin(), Do(Ticket(42)); }},
      {State::kHandover, [this] { Do(Admitted()), Begin(), Do(Pre(Token(0, 0, 7))), Do(Prefilled(42)); }},
      {State::kDecoding, [this] { ToDecoding(); }},
  };
  for (const auto& [state, enter] : phases) {
    const auto again = [&] {
      Reset();
      enter();
      ASSERT_EQ(life_->state(), state);
    };
    again();
    EXPECT_THAT(Do(Failed(Event::kDecodeFailed, absl::UnavailableError("x"), "d0")),
                ElementsAre("cancel prefill", "cancel decode", "wait 0"))
        << Name(state);
    again();
    EXPECT_THAT(Do(Failed(Event::kDecodeFailed, absl::InvalidArgumentError("x"), "d0")),
                ElementsAre("cancel prefill", "cancel decode", "finish 3"))
        << Name(state);
    for (const auto& [event, code] : {std::pair{Event::kClientGone, "finish 1"},
                                      std::pair{Event::kDeadline, "finish 4"}, std::pair{Event::kStop, "finish 14"}}) {
      again();
      EXPECT_THAT(Do(Plain(event)), ElementsAre("cancel prefill", "cancel decode", code)) << Name(state);
    }
  }
}

// After a failed prefill stream a release by request went to a worker that might be dead.
TEST_F(LifecycleTest, AFailedPrefillCostsNoCallToItsWorker) {
  Do(Admitted());
  Begin();
  Do(Ticket(42));
  EXPECT_THAT(Do(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0")),
              ElementsAre("cancel prefill", "cancel decode", "wait 0"));
  EXPECT_THAT(Do(Plain(Event::kBackoffOver)), ElementsAre("place"));
}

TEST_F(LifecycleTest, WhatDecodeSaysBeforePrefillsLastWordsWaitsForThem) {
  Do(Admitted());
  Begin();
  Do(Ticket(42));
  first_ids_ = {7};
  EXPECT_THAT(Do(Fetched()), IsEmpty());
  EXPECT_THAT(Do(Dec(Token(0, 1, 8))), IsEmpty());
  EXPECT_THAT(Do(Pre(Token(0, 0, 7))), ElementsAre("token 0.0=7<7>"));
  EXPECT_THAT(Do(Prefilled(0)), ElementsAre("token 0.1=8<8>"));
  EXPECT_EQ(life_->state(), State::kDecoding);
  // And is forgotten with its attempt.
  Reset();
  Do(Admitted());
  Begin();
  first_ids_ = {7};
  Do(Fetched());
  Do(Dec(Token(0, 1, 8)));
  Do(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0"));
  Do(Plain(Event::kBackoffOver));
  Begin("p1", "d1");
  EXPECT_THAT(Do(Pre(Token(0, 0, 7), "p1")), ElementsAre("token 0.0=7<7>"));
  EXPECT_THAT(Do(Prefilled(43, "p1")), IsEmpty());
  EXPECT_EQ(life_->state(), State::kHandover);
}

TEST_F(LifecycleTest, OtherFirstTokensWithTheKvAreNeverDecodedOn) {
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{8}, {}, {7, 7}}) {
    Reset();
    Do(Admitted());
    Begin();
    Do(Pre(Token(0, 0, 7)));
    Do(Prefilled(42));
    first_ids_ = ids;
    EXPECT_EQ(Do(Fetched()).back(), "wait 0");
  }
}

TEST_F(LifecycleTest, ADecodeWorkerThatIsFullCostsNoPrefill) {
  Do(Admitted());
  Do(Placed());
  EXPECT_THAT(Do(Failed(Event::kDecodeFailed, absl::ResourceExhaustedError("full"), "d0")),
              ElementsAre("cancel prefill", "cancel decode", "wait 0"));
  Do(Plain(Event::kBackoffOver));
  EXPECT_TRUE(need_.only_others);
  EXPECT_TRUE(need_.avoid.count(Ref("d0").id));
  EXPECT_FALSE(need_.avoid.count(Ref("p0").id));
}

TEST_F(LifecycleTest, ResumingTellsEachChoiceWhatItHasAndLeavesFinishedOnesOut) {
  ToDecoding(3, {"<31>"});
  EXPECT_EQ(last_decode_.resume_size(), 0) << "nothing to resume the first time";
  Do(Dec(Token(0, 1, 20)));
  Do(Dec(Token(0, 2, 21)));
  Do(Dec(Token(1, 1, 31)));  // a stop string
  Do(Failed(Event::kDecodeFailed, absl::UnavailableError("gone"), "d0"));
  Do(Plain(Event::kBackoffOver));
  Do(Placed("p0", "d1"));
  EXPECT_TRUE(last_decode_.wait_for_go());
  ASSERT_EQ(last_decode_.resume_size(), 3);
  EXPECT_THAT(last_decode_.resume(0).token_ids(), ElementsAre(10, 20, 21));
  EXPECT_THAT(last_decode_.resume(1).token_ids(), IsEmpty());
  EXPECT_THAT(last_decode_.resume(2).token_ids(), ElementsAre(12));
}

TEST_F(LifecycleTest, ARequestThatTwoWorkersInARowDiedOfIsNotGivenToAThird) {
  ToDecoding();
  Do(Dec(Token(0, 1, 20)));
  const auto again = [&](const std::string& decode) {
    Do(Plain(Event::kBackoffOver));
    Do(Placed("p0", decode));
    Do(Reserved(decode));
    Do(Ticket(43));
    Do(Pre(Token(0, 0, 10)));
    Do(Prefilled(43));
    Do(Fetched(decode));
    ASSERT_EQ(life_->state(), State::kDecoding);
  };
  const absl::Status broke = absl::UnavailableError("Socket closed");
  EXPECT_EQ(Do(Failed(Event::kDecodeFailed, broke, "d0")).back(), "wait 0");
  again("d1");
  Do(Dec(Token(0, 2, 21), "d1"));
  EXPECT_EQ(Do(Failed(Event::kDecodeFailed, broke, "d1")).back(), "wait 100") << "d1 had given it a token";
  again("d2");
  EXPECT_EQ(Do(Failed(Event::kDecodeFailed, broke, "d2")).back(), "finish 13");
  EXPECT_EQ(ReasonOf(finish_), "POISON");
}

TEST_F(LifecycleTest, AWorkerThatNeverHadTheRequestCostsNoMove) {
  Do(Admitted());
  const absl::Status draining = absl::UnavailableError("this worker is draining");
  for (uint32_t attempt = 1; attempt < kMaxAttempts; ++attempt) {
    Begin();
    EXPECT_NE(Do(Failed(Event::kPrefillFailed, draining, "p0")).back(), "finish 14") << attempt;
    Do(Plain(Event::kBackoffOver));
  }
  Begin();
  EXPECT_EQ(Do(Failed(Event::kPrefillFailed, draining, "p0")).back(), "finish 14");
}

TEST_F(LifecycleTest, ThreeMovesAtMost) {
  Do(Admitted());
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Begin();
    const auto words = Do(Failed(Event::kPrefillFailed, absl::AbortedError("down"), "p0"));
    EXPECT_THAT(words, ElementsAre("cancel prefill", "cancel decode", attempt == 1 ? "wait 0" : "wait 100"));
    EXPECT_THAT(Do(Plain(Event::kBackoffOver)), ElementsAre("place"));
  }
  Begin();
  EXPECT_THAT(Do(Failed(Event::kPrefillFailed, absl::AbortedError("down"), "p0")),
              ElementsAre("cancel prefill", "cancel decode", "finish 10"));
  EXPECT_EQ(std::string(finish_.message()), "after 4 attempts: prefill worker p0: down");
}

TEST_F(LifecycleTest, OnlyRetryableCodesAreRetried) {
  for (int code = 1; code <= 16; ++code) {
    Reset();
    Do(Admitted());
    Begin();
    const absl::Status status(static_cast<absl::StatusCode>(code), "x");
    const bool retried = Do(Failed(Event::kPrefillFailed, status, "p0")).back() == "wait 0";
    // CANCELLED that nobody here asked for is a worker that stops.
    EXPECT_EQ(retried, ActionFor(status) == RouterAction::kRetryElsewhere || ActionFor(status) == RouterAction::kShed ||
                           code == 1)
        << status;
  }
}

TEST_F(LifecycleTest, NoRetryAfterTheDeadline) {
  Do(Admitted());
  Begin();
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Do(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0")),
              ElementsAre("cancel prefill", "cancel decode", "finish 4"));
}

TEST_F(LifecycleTest, AFullWorkerIsNotAskedAgainAndItsWordsReachTheClient) {
  Do(Admitted());
  Begin();
  Do(Failed(Event::kPrefillFailed, WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Seconds(1)), "p0"));
  Do(Plain(Event::kBackoffOver));
  EXPECT_TRUE(need_.only_others);
  Do({Event::kUnplaced, 0, {}, absl::UnavailableError("none left")});
  EXPECT_EQ(finish_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterOf(finish_), absl::Seconds(1));
}

TEST_F(LifecycleTest, AWorkerThatBreaksTheProtocolIsReplaced) {
  ToDecoding();
  EXPECT_THAT(Do(Dec(Token(0, 3, 5))), ElementsAre("cancel prefill", "cancel decode", "wait 0")) << "a gap";
  Reset();
  ToDecoding();
  EXPECT_EQ(Do(Dec(Token(7, 1, 5))).back(), "wait 0") << "a choice that is not there";
  Reset();
  ToDecoding();
  EXPECT_EQ(Do(Dec(Token(0, 0, 10))).back(), "wait 0") << "index 0 from decode";
  Reset();
  ToDecoding();
  EXPECT_EQ(Do(Plain(Event::kDecodeEnded)).back(), "wait 0") << "an end before the choice's";
  Reset();
  Do(Admitted());
  Begin();
  EXPECT_EQ(Do(Plain(Event::kPrefillEnded, "p0")).back(), "wait 0") << "an end without a result";
  Reset();
  Do(Admitted());
  Begin();
  EXPECT_EQ(Do(Prefilled(42)).back(), "wait 0") << "a result without token 0";
  Reset();
  Do(Admitted());
  Begin();
  Do(Pre(Token(0, 0, 1)));
  EXPECT_EQ(Do(Prefilled(0)).back(), "wait 0") << "no ticket although the choice goes on";
}

TEST_F(LifecycleTest, AFailureAfterTheLastTokenIsNotTheClients) {
  ToDecoding();
  Do(Dec(Token(0, 1, 5, v1::FINISH_REASON_STOP)));
  EXPECT_THAT(Do(Failed(Event::kDecodeFailed, absl::UnavailableError("x"), "d0")),
              ElementsAre("cancel prefill", "cancel decode", "summary 2", "finish 0"));
}

TEST_F(LifecycleTest, APrefillWorkerLostDuringHandOverIsAFailureAndAfterItIsNot) {
  Do(Admitted());
  Begin();
  Do(Pre(Token(0, 0, 7)));
  Do(Prefilled(42));
  EXPECT_EQ(Do(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0")).back(), "wait 0");
  Reset();
  ToDecoding();
  EXPECT_THAT(Do(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0")), IsEmpty());
}

TEST_F(LifecycleTest, StaleStreamsAreIgnored) {
  ToDecoding();
  Do(Failed(Event::kDecodeFailed, absl::UnavailableError("x"), "d0"));
  Do(Plain(Event::kBackoffOver));
  Begin("p1", "d1");
  Input zombie = Dec(Token(0, 1, 99));
  zombie.epoch = 1;
  EXPECT_THAT(Do(std::move(zombie)), IsEmpty());
  Input failed = Failed(Event::kDecodeFailed, absl::UnavailableError("x"), "d0");
  failed.epoch = 1;
  EXPECT_THAT(Do(std::move(failed)), IsEmpty());
  EXPECT_EQ(life_->state(), State::kPrefilling);
}

// Whatever comes in whatever order: no crash, one Finish at most, and at the end every call that was begun has ended by
// itself, was cancelled, or (prefill's) has had its KV fetched.
TEST_F(LifecycleTest, RandomInputsKeepTheInvariants) {
  uint64_t x = 88172645463325252ull;
  const auto next = [&x](uint64_t bound) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x % bound;
  };
  int decoded = 0;
  for (int run = 0; run < 3000; ++run) {
    Reset();
    int finishes = 0;
    bool prefill_open = false, decode_open = false;
    const auto handle = [&](Input input) {
      const State before = life_->state();
      if (input.event == Event::kPrefillEnded || input.event == Event::kPrefillFailed) prefill_open = false;
      if (input.event == Event::kDecodeEnded || input.event == Event::kDecodeFailed) decode_open = false;
      for (const std::string& word : Do(std::move(input))) {
        finishes += word.rfind("finish ", 0) == 0;
        if (word.rfind("prefill ", 0) == 0) {
          ASSERT_FALSE(prefill_open) << "a second call beside the first";
          prefill_open = true;
        }
        if (word.rfind("decode ", 0) == 0) {
          ASSERT_FALSE(decode_open) << "a second call beside the first";
          decode_open = true;
        }
        if (word == "cancel prefill") prefill_open = false;
        if (word == "cancel decode") decode_open = false;
      }
      if (before != State::kDecoding && life_->state() == State::kDecoding) {
        prefill_open = false;
        ++decoded;
      }
    };
    const auto n = static_cast<uint32_t>(1 + next(2));
    handle(Admitted(static_cast<int>(n), static_cast<int>(1 + next(4)), {"<3>"}));
    // Half of the time what should come next does.
    const auto expected = [&] {
      switch (life_->state()) {
        case State::kPlacing:
          return handle(Placed());
        case State::kReserving:
          return handle(Reserved());
        case State::kPrefilling:
          handle(Ticket(1));
          for (uint32_t c = 0; c < n; ++c) handle(Pre(Token(c, 0, static_cast<int32_t>(next(3)))));
          return handle(Prefilled(0));
        case State::kHandover:
          first_ids_.resize(n);
          return handle(Fetched());
        case State::kBackoff:
          return handle(Plain(Event::kBackoffOver));
        default:
          return;
      }
    };
    for (int step = 0; step < 60; ++step) {
      if (next(2) == 0) expected();
      switch (next(16)) {
        case 0: {
          Input done = Plain(Event::kDecodeDone);
          done.payload = v1::DecodeDone();
          handle(std::move(done));
          break;
        }
        case 1:
          handle(Placed());
          break;
        case 2:
          if (next(4) == 0) handle({Event::kUnplaced, 0, {}, absl::UnavailableError("x")});
          break;
        case 3:
        case 4:
          handle(Pre(Token(next(2), 0, next(4), static_cast<v1::FinishReason>(next(3)))));
          break;
        case 5:
          handle(Prefilled(0));
          break;
        case 6:
          handle(Plain(Event::kPrefillEnded, "p0"));
          break;
        case 7:
          handle(Failed(Event::kPrefillFailed, absl::UnavailableError("x"), "p0"));
          break;
        case 8:
          handle(Fetched());
          break;
        case 9:
        case 10:
          handle(Dec(Token(next(3), next(4), next(4), static_cast<v1::FinishReason>(next(3)))));
          break;
        case 11:
          handle(Plain(next(2) ? Event::kDecodeEnded : Event::kBackoffOver));
          break;
        case 12:
          if (next(2)) handle(Failed(Event::kDecodeFailed, absl::AbortedError("x"), "d0"));
          break;
        case 13:
          handle(Plain(next(8) == 0 ? Event::kClientGone : Event::kBackoffOver));
          break;
        case 14:
          handle(Reserved());
          break;
        case 15:
          handle(Ticket(1));
          break;
      }
      if (HasFatalFailure()) return;
    }
    handle(Plain(Event::kClientGone));
    ASSERT_EQ(life_->state(), State::kDone);
    ASSERT_EQ(finishes, 1);
    ASSERT_FALSE(prefill_open || decode_open) << run;
  }
  EXPECT_GT(decoded, 50);
}

// The decode worker computes the prompt: one call, tokens from index 0 on.
class LocalLifecycleTest : public LifecycleTest {
 protected:
  std::vector<std::string> PlaceLocally(const std::string& worker = "d0") {
    return Do({Event::kPlaced, 0, {}, PlacedPair{{}, Ref(worker)}});
  }
  Input Token(int choice, int index, int id, bool last = false, const std::string& worker = "d0") {
    v1::SampledToken token;
    token.set_choice_index(choice);
    token.set_token_index(index);
    token.set_token_id(id);
    if (last) token.set_finish_reason(v1::FINISH_REASON_LENGTH);
    return {Event::kDecodeToken, life_->epoch(), Ref(worker), std::move(token)};
  }
  Input LocallyPrefilled(const std::string& worker = "d0") {
    v1::Prefilled prefilled;
    prefilled.set_cached_tokens(2);
    return {Event::kLocalPrefilled, life_->epoch(), Ref(worker), std::move(prefilled)};
  }
  Input Of(Event event, absl::Status status = absl::OkStatus(), const std::string& worker = "d0") {
    if (event == Event::kDecodeDone) return {event, life_->epoch(), Ref(worker), v1::DecodeDone()};
    return {event, life_->epoch(), Ref(worker), std::move(status)};
  }
};

TEST_F(LocalLifecycleTest, OneCallGivesTheWholeAnswer) {
  Do(Admitted(1, 2));
  EXPECT_THAT(PlaceLocally(), ElementsAre("decode d0 e1"));
  EXPECT_TRUE(last_decode_.local_prefill());
  EXPECT_EQ(life_->state(), State::kLocal);
  EXPECT_THAT(Do(Token(0, 0, 7)), ElementsAre("token 0.0=7<7>"));
  EXPECT_THAT(Do(LocallyPrefilled()), IsEmpty());
  EXPECT_EQ(life_->state(), State::kDecoding);
  Do(Token(0, 1, 8, true));
  Do(Of(Event::kDecodeDone));
  EXPECT_THAT(Do(Of(Event::kDecodeEnded)), ElementsAre("summary 2", "finish 0"));
  EXPECT_EQ(summary_.prefill_worker(), "d0");
  EXPECT_EQ(summary_.decode_worker(), "d0");
  EXPECT_EQ(summary_.usage().cached_tokens(), 2u);
  EXPECT_EQ(summary_.kv().transport(), "none");
}

TEST_F(LocalLifecycleTest, OneTokenNeedsNoPrefillWorkerEither) {
  Do(Admitted(1, 1));
  EXPECT_THAT(PlaceLocally(), ElementsAre("decode d0 e1"));
  Do(Token(0, 0, 7, true));
  EXPECT_THAT(Do(LocallyPrefilled()), IsEmpty());
  Do(Of(Event::kDecodeDone));
  EXPECT_THAT(Do(Of(Event::kDecodeEnded)), ElementsAre("summary 1", "finish 0"));
}

TEST_F(LocalLifecycleTest, AfterAFailureItGoesOnBehindWhatTheClientHas) {
  Do(Admitted(2, 8, {"<9>"}));
  PlaceLocally();
  Do(Token(0, 0, 7));
  Do(Token(1, 0, 9));  // a stop string ends this choice
  Do(LocallyPrefilled());
  Do(Token(0, 1, 8));
  EXPECT_THAT(Do(Of(Event::kDecodeFailed, absl::UnavailableError("broke"))),
              ElementsAre("cancel prefill", "cancel decode", "wait 0"));
  Do({Event::kBackoffOver, 2, {}, {}});
  EXPECT_THAT(PlaceLocally("d1"), ElementsAre("decode d1 e2"));
  ASSERT_EQ(last_decode_.resume_size(), 2);
  EXPECT_THAT(last_decode_.resume(0).token_ids(), ElementsAre(7, 8));
  EXPECT_THAT(last_decode_.ended_choices(), ElementsAre(1));
  EXPECT_THAT(Do(Token(0, 0, 7, false, "d1")), IsEmpty()) << "the client has it";
  EXPECT_THAT(Do(Token(1, 0, 9, false, "d1")), IsEmpty());
  Do(LocallyPrefilled("d1"));
  EXPECT_THAT(Do(Token(0, 2, 4, false, "d1")), ElementsAre("token 0.2=4<4>"));
}

TEST_F(LocalLifecycleTest, ItMayGoOnThroughAPrefillWorkerAndBack) {
  Do(Admitted());
  PlaceLocally();
  Do(Token(0, 0, 7));
  Do(Of(Event::kDecodeFailed, absl::UnavailableError("broke")));
  Do({Event::kBackoffOver, 2, {}, {}});
  EXPECT_THAT(Begin("p0", "d1"), ElementsAre("prefill p0 e2"));
  EXPECT_FALSE(last_decode_.local_prefill());
}

TEST_F(LocalLifecycleTest, AStopStringThatEndsAllWithTokenZeroEndsTheCall) {
  Do(Admitted(1, 8, {"<9>"}));
  PlaceLocally();
  Do(Token(0, 0, 9));
  EXPECT_THAT(Do(LocallyPrefilled()), ElementsAre("cancel decode", "summary 1", "finish 0"));
}

TEST_F(LocalLifecycleTest, AnotherFirstTokenIsAnError) {
  Do(Admitted());
  PlaceLocally();
  Do(Token(0, 0, 7));
  Do(Of(Event::kDecodeFailed, absl::UnavailableError("broke")));
  Do({Event::kBackoffOver, 2, {}, {}});
  PlaceLocally("d1");
  Do(Token(0, 0, 6, false, "d1"));
  EXPECT_EQ(finish_.code(), absl::StatusCode::kInternal);
}

TEST_F(LocalLifecycleTest, AWorkerThatDoesNotKnowTheModeIsNotWaitedFor) {
  Do(Admitted());
  PlaceLocally();
  EXPECT_THAT(Do(Reserved()), ElementsAre("cancel prefill", "cancel decode", "wait 0"));
}

TEST_F(LocalLifecycleTest, TwoThatDieWithItArePoison) {
  Do(Admitted());
  PlaceLocally();
  Do(Of(Event::kDecodeFailed, absl::UnavailableError("broke")));
  Do({Event::kBackoffOver, 2, {}, {}});
  PlaceLocally("d1");
  Do(Of(Event::kDecodeFailed, absl::UnavailableError("broke"), "d1"));
  EXPECT_EQ(ReasonOf(finish_), "POISON");
}

}  // namespace
}  // namespace baton::router
