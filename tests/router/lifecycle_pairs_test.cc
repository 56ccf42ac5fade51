// Every event in every state, carried out: the state that follows, and that a request ends once, with the right status.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "router/request_lifecycle.h"

namespace baton::router {
namespace {

class PlainText : public TextMaker {
 public:
  std::unique_ptr<ChoiceText> NewChoice(const v1::SamplingParams&) const override { return std::make_unique<Choice>(); }
  std::string TokenBytes(int32_t) const override { return ""; }

 private:
  struct Choice : ChoiceText {
    TextPiece Push(int32_t) override { return {}; }
    TextPiece PushStop(int32_t) override { return {}; }
    TextPiece Flush() override { return {}; }
  };
};

// What follows; a letter for each state. Columns: the state before, in the order of the enumeration. Where an event is
// impossible the request ends with INTERNAL (!) and gives everything back.
struct Row {
  Event event;
  const char* next;
};
constexpr char kLetters[] = "RPVFHLDBX";  // received, placing, reserving, prefilling, handover, local, decoding, backoff, done
constexpr Row kRows[kNumEvents] = {
    {Event::kAdmitted, "P!!!!!!!X"},
    {Event::kRejected, "X!!!!!!!X"},
    {Event::kPlaced, "!V!!!!!!X"},
    {Event::kUnplaced, "!X!!!!!!X"},
    {Event::kTicket, "!P!FHLDBX"},
    {Event::kPrefillToken, "!P!FHLDBX"},
    {Event::kPrefilled, "!P!HHLDBX"},
    {Event::kPrefillEnded, "!P!BHLDBX"},   // without its result: elsewhere
    {Event::kPrefillFailed, "!P!BBLDBX"},  // once the KV is over, prefill does not matter any more
    {Event::kReserved, "!PFFHBDBX"},
    {Event::kFetched, "!PBFDBDBX"},      // before there is a ticket it makes no sense: elsewhere
    {Event::kDecodeToken, "!PBFBLDBX"},  // held while prefill's last words are on their way
    {Event::kDecodeDone, "!PBFBBDBX"},
    {Event::kDecodeEnded, "!PBFBBBBX"},  // although a choice goes on: elsewhere
    {Event::kDecodeFailed, "!PBBBBBBX"},
    {Event::kLocalPrefilled, "!PBBBDDBX"},
    {Event::kBackoffOver, "!PVFHLDPX"},
    {Event::kClientGone, "XXXXXXXXX"},
    {Event::kDeadline, "XXXXXXXXX"},
    {Event::kStop, "XXXXXXXXX"},
};

class PairFixture : public ::testing::Test {
 protected:
  PairFixture() : life_(clock_.Now() + absl::Seconds(10), &text_, &clock_) {}

  void Do(Event event) {
    std::vector<Command> commands;
    life_.Handle(Make(event), &commands);
    for (Command& command : commands) {
      if (auto* finish = std::get_if<Finish>(&command)) ends_.push_back(finish->status);
    }
  }

  // In the order of the enumeration.
  void Reach(State state) {
    switch (state) {
      case State::kReceived:
        return;
      case State::kPlacing:
        return Do(Event::kAdmitted);
      case State::kReserving:
        Reach(State::kPlacing);
        return Do(Event::kPlaced);
      case State::kPrefilling:
        Reach(State::kReserving);
        Do(Event::kReserved);
        Do(Event::kTicket);
        return Do(Event::kPrefillToken);
      case State::kHandover:
        Reach(State::kPrefilling);
        return Do(Event::kPrefilled);
      case State::kLocal: {
        Reach(State::kPlacing);
        std::vector<Command> commands;
        life_.Handle({Event::kPlaced, 0, {}, PlacedPair{{}, {{"d", "i"}, "host:1"}}}, &commands);
        return Do(Event::kDecodeToken);
      }
      case State::kDecoding:
        Reach(State::kHandover);
        return Do(Event::kFetched);
      case State::kBackoff:
        Reach(State::kHandover);
        return Do(Event::kDecodeFailed);
      case State::kDone:
        Reach(State::kPlacing);
        return Do(Event::kStop);
    }
  }

  Input Make(Event event) {
    const bool of_prefill = event >= Event::kTicket && event <= Event::kPrefillFailed;
    Input input{event, life_.epoch(), {{of_prefill ? "p" : "d", "i"}, "host:1"}, {}};
    switch (event) {
      case Event::kAdmitted: {
        AdmittedRequest request;
        request.request_id = "r";
        request.prompt_token_ids = {1, 2, 3};
        request.sampling.set_n(1);
        request.sampling.set_max_tokens(8);
        input.payload = std::move(request);
        break;
      }
      case Event::kPlaced:
        input.payload = PlacedPair{{{"p", "i"}, "host:1"}, {{"d", "i"}, "host:1"}};
        break;
      case Event::kRejected:
        input.payload = absl::InvalidArgumentError("not valid");
        break;
      case Event::kUnplaced:
      case Event::kPrefillFailed:
      case Event::kDecodeFailed:
        input.payload = absl::UnavailableError("gone");
        break;
      case Event::kTicket:
        input.payload = v1::Ticket();
        break;
      case Event::kPrefillToken:
      case Event::kDecodeToken: {
        v1::SampledToken token;
        token.set_token_index(event == Event::kDecodeToken && life_.state() != State::kLocal ? 1 : 0);
        token.set_token_id(7);
        input.payload = token;
        break;
      }
      case Event::kPrefilled:
      case Event::kLocalPrefilled:
        input.payload = v1::Prefilled();
        break;
      case Event::kReserved:
        input.payload = v1::Reserved();
        break;
      case Event::kFetched: {
        v1::Fetched fetched;
        fetched.add_first_token_ids(7);
        input.payload = fetched;
        break;
      }
      case Event::kDecodeDone:
        input.payload = v1::DecodeDone();
        break;
      default:
        break;
    }
    return input;
  }

  SimulatedClock clock_;
  PlainText text_;
  RequestLifecycle life_;
  std::vector<absl::Status> ends_;
};

absl::StatusCode EndOf(Event event) {
  switch (event) {
    case Event::kRejected:
      return absl::StatusCode::kInvalidArgument;
    case Event::kClientGone:
      return absl::StatusCode::kCancelled;
    case Event::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

// A fixture of its own for each pair.
class Pair : public PairFixture {
 public:
  void TestBody() override {}
  void Check(State state, const Row& row) {
    Reach(state);
    ASSERT_EQ(life_.state(), state);
    ends_.clear();
    Do(row.event);
    const char want = row.next[static_cast<size_t>(state)];
    const char got = kLetters[static_cast<size_t>(life_.state())];
    EXPECT_EQ(got, want == '!' ? 'X' : want);
    if (life_.state() != State::kDone || state == State::kDone) {
      EXPECT_TRUE(ends_.empty());
      return;
    }
    ASSERT_EQ(ends_.size(), 1u);
    if (want == '!') {
      EXPECT_TRUE(absl::IsInternal(ends_[0]) && absl::StrContains(ends_[0].message(), "router bug")) << ends_[0];
    } else {
      EXPECT_EQ(ends_[0].code(), EndOf(row.event)) << ends_[0];
    }
    Do(row.event);
    EXPECT_EQ(ends_.size(), 1u) << "it ended twice";
  }
  // An event of the attempt before means nothing to this one.
  void CheckStale(State state, Event event) {
    Reach(state);
    Input input = Make(event);
    input.epoch -= 1;
    std::vector<Command> commands;
    life_.Handle(std::move(input), &commands);
    EXPECT_EQ(life_.state(), state);
    EXPECT_TRUE(commands.empty());
  }
};

TEST(LifecyclePairsTest, EveryEventInEveryState) {
  for (size_t e = 0; e < kNumEvents; ++e) {
    ASSERT_EQ(kRows[e].event, static_cast<Event>(e));
    for (size_t s = 0; s < kNumStates; ++s) {
      SCOPED_TRACE(testing::Message() << Name(static_cast<Event>(e)) << " in " << Name(static_cast<State>(s)));
      Pair().Check(static_cast<State>(s), kRows[e]);
      // The table that is carried out says the same of what is impossible.
      EXPECT_EQ(kRows[e].next[s] == '!', Lookup(static_cast<State>(s), static_cast<Event>(e)) == Action::kBug);
    }
  }
}

TEST(LifecyclePairsTest, EventsOfAFormerAttemptMeanNothingInAnyState) {
  for (size_t e = static_cast<size_t>(Event::kTicket); e <= static_cast<size_t>(Event::kBackoffOver); ++e) {
    for (size_t s = 0; s < kNumStates; ++s) {
      SCOPED_TRACE(testing::Message() << Name(static_cast<Event>(e)) << " in " << Name(static_cast<State>(s)));
      Pair().CheckStale(static_cast<State>(s), static_cast<Event>(e));
    }
  }
}

}  // namespace
}  // namespace baton::router
