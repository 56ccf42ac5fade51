#include "tests/sim/sim_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/request_proto.h"
#include "tests/engine/engine_test_util.h"

namespace baton::sim {
namespace {

engine::Request MakeRequest(size_t i) {
  std::mt19937_64 random(i + 1);
  engine::Request request = engine::RandomRequest(random, absl::StrCat("q", i), kVocabulary, 40, 24, 3);
  if (i % 4 == 3) {
    // The next turn of the conversation before.
    const Question& before = QuestionAt(i - 1);
    request.prompt_token_ids = before.prompt;
    request.prompt_token_ids.insert(request.prompt_token_ids.end(), before.answer[0].begin(), before.answer[0].end());
    for (int k = 0; k < 3; ++k) request.prompt_token_ids.push_back(static_cast<int32_t>(random() % kVocabulary));
    request.tenant = before.tenant;
  }
  request.sampling.min_tokens = std::min(request.sampling.min_tokens, request.sampling.max_tokens);
  if (i % 4 == 2) {
    request.sampling.n = 1;
    request.sampling.ignore_eos = true;
    request.sampling.stop_token_ids.clear();
    request.sampling.max_tokens = 24;
  }
  return request;
}

Question MakeQuestion(size_t i) {
  const engine::Request request = MakeRequest(i);
  const engine::Answer alone = engine::RunAlone(request);
  Question question;
  question.prompt = request.prompt_token_ids;
  question.tenant = request.tenant;
  question.sampling = engine::SamplingToProto(request.sampling);
  if (i % 5 == 1) {
    const std::vector<int32_t>& ids = alone.token_ids.at(0);
    question.sampling.add_stop(absl::StrCat("<", ids[i % ids.size()], ">"));
  }
  for (int c = 0; c < request.sampling.n; ++c) {
    std::vector<int32_t> ids = alone.token_ids.at(c);
    v1::FinishReason finish = engine::FinishReasonToProto(alone.finish.at(c));
    for (size_t k = 0; question.sampling.stop_size() > 0 && k < ids.size(); ++k) {
      if (absl::StrCat("<", ids[k], ">") != question.sampling.stop(0)) continue;
      // A stop id ends the choice before its text is looked at.
      const bool by_id = k + 1 == ids.size() && finish == v1::FINISH_REASON_STOP;
      if (!by_id) finish = v1::FINISH_REASON_STOP;
      ids.resize(k + 1);
    }
    question.answer.push_back(std::move(ids));
    question.finish.push_back(finish);
  }
  return question;
}

}  // namespace

const Question& QuestionAt(size_t i) {
  static auto* questions = new std::vector<std::unique_ptr<Question>>(kNumQuestions);
  std::unique_ptr<Question>& question = (*questions)[i];
  if (question == nullptr) {
    auto made = std::make_unique<Question>(MakeQuestion(i));
    question = std::move(made);
  }
  return *question;
}

SimClient::SimClient(World* world, SimRouter* router, std::shared_ptr<Asked> asked)
    : world_(world), router_(router), asked_(std::move(asked)) {
  asked_->tokens.assign(asked_->question->answer.size(), 0);
  asked_->finished.assign(asked_->question->answer.size(), false);
}

void SimClient::Complain(const std::string& what) { world_->Violation(absl::StrCat(asked_->id, ": ", what)); }

void SimClient::Push(v1::GenerateResponse response) {
  if (asked_->ended) return Complain("a message after the end");
  if (response.has_token()) return OnToken(response.token());
  if (response.has_finished()) {
    const v1::ChoiceFinished& f = response.finished();
    if (f.choice_index() >= asked_->finished.size() || asked_->finished[f.choice_index()]) {
      return Complain("a choice finished twice");
    }
    asked_->finished[f.choice_index()] = true;
    const Question& q = *asked_->question;
    if (f.reason() != q.finish[f.choice_index()]) {
      Complain(absl::StrCat("choice ", f.choice_index(), " finished by ", f.reason(), ", not ",
                            q.finish[f.choice_index()]));
    }
    if (asked_->tokens[f.choice_index()] != q.answer[f.choice_index()].size()) Complain("a choice finished early");
  }
  if (response.has_summary()) asked_->summary = true;
}

void SimClient::OnToken(const v1::TokenEvent& token) {
  const Question& q = *asked_->question;
  world_->Note(absl::StrCat(asked_->id, " token ", token.choice_index(), ".", token.token_index()));
  const Source* source = router_->source();
  if (source == nullptr) {
    Complain("a token from nowhere");
  } else if (!router_->IsCurrent(*source)) {
    Complain(absl::StrCat("a token of epoch ", source->epoch, " from ", source->worker.name, " ",
                          source->worker.incarnation, ", which was given up"));
  }
  if (token.choice_index() >= q.answer.size()) return Complain("a choice that was not asked for");
  size_t& next = asked_->tokens[token.choice_index()];
  if (token.token_index() != next) return Complain(absl::StrCat("index ", token.token_index(), " where ", next, " was due"));
  const std::vector<int32_t>& want = q.answer[token.choice_index()];
  if (next >= want.size()) return Complain("a token past the end of the right answer");
  if (token.token_id() != want[next]) {
    Complain(absl::StrCat("token ", token.token_id(), " at index ", next, " of choice ", token.choice_index(),
                          ", the right one is ", want[next]));
  }
  ++next;
}

void SimClient::Finish(absl::Status status) {
  // Not its payloads: their order depends on addresses.
  world_->Note(absl::StrCat(asked_->id, " ends ", static_cast<int>(status.code()), " ", status.message()));
  if (asked_->ended) return Complain("it ended twice");
  asked_->ended = true;
  asked_->status = status;
  asked_->driver.reset();
  if (world_->now() > asked_->deadline + absl::Milliseconds(1) && !router_->process()->was_frozen()) {
    Complain(absl::StrCat("ended ", absl::FormatDuration(world_->now() - asked_->deadline), " after its deadline"));
  }
  if (!status.ok()) return;
  for (size_t c = 0; c < asked_->finished.size(); ++c) {
    if (!asked_->finished[c]) Complain(absl::StrCat("ended OK without the end of choice ", c));
  }
  if (!asked_->summary) Complain("ended OK without a summary");
}

std::string Unexplained(const Asked& asked, bool faults) {
  const absl::Status& s = asked.status;
  if (s.ok()) return "";
  const std::string what = absl::StrCat("ended with ", s.ToString());
  if (asked.must_succeed) return absl::StrCat(what, " although nothing is wrong any more");
  switch (s.code()) {
    case absl::StatusCode::kCancelled:
      return asked.cancelled ? "" : absl::StrCat(what, ", which its client did not ask for");
    case absl::StatusCode::kDeadlineExceeded:
      return asked.deadline - asked.submitted < absl::Seconds(10) || faults ? "" : what;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
      return faults ? "" : absl::StrCat(what, " although nothing was broken");
    case absl::StatusCode::kInternal:
      return faults && ReasonOf(s) == "POISON" ? "" : what;
    default:
      return what;
  }
}

}  // namespace baton::sim
