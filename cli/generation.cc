#include "cli/generation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"
#include "cli/quantity.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ChoiceToJson(const GeneratedChoice& choice, bool logprobs) {
  Json json;
  json["text"] = ToUtf8(choice.text);
  json["token_ids"] = choice.token_ids;
  json["finish_reason"] = FinishReasonName(choice.finished.reason());
  if (choice.finished.has_stop_string()) json["stop_string"] = choice.finished.stop_string();
  if (choice.finished.has_stop_token_id()) json["stop_token_id"] = choice.finished.stop_token_id();
  if (!logprobs) return json;
  json["logprobs"] = Json::array();
  for (const v1::TokenEvent& token : choice.tokens) {
    Json top = Json::array();
    for (const v1::TopLogprob& alternative : token.top_logprobs()) {
      top.push_back({{"token_id", alternative.token_id()},
                     {"logprob", alternative.logprob()},
                     {"token", ToUtf8(alternative.token())}});
    }
    json["logprobs"].push_back({{"token_id", token.token_id()}, {"logprob", token.logprob()}, {"top", std::move(top)}});
  }
  return json;
}

std::string Ms(double ms) { return absl::StrFormat("%.1f ms", ms); }

// Of one choice's pace: the first token is prefill's.
double DecodeTokensPerSecond(const Generation& g) {
  const v1::Timings& t = g.summary().timings();
  const double decode_ms = t.total_ms() - t.first_token_ms();
  const double tokens =
      static_cast<double>(g.summary().usage().completion_tokens()) - static_cast<double>(g.choices().size());
  return decode_ms > 0 && tokens > 0 ? tokens / decode_ms * 1000 : 0;
}

}  // namespace

Generation::Generation(const v1::GenerateRequest& request)
    : logprobs_(request.sampling().has_logprobs()), choices_(std::clamp(request.sampling().n(), 1, 16)) {}

std::string Generation::Add(const v1::GenerateResponse& event, int* choice_index) {
  *choice_index = 0;
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      started_ = event.started();
      return "";
    case v1::GenerateResponse::kToken: {
      const v1::TokenEvent& token = event.token();
      if (token.choice_index() >= choices_.size()) return "";  // not ours to crash on
      GeneratedChoice& choice = choices_[token.choice_index()];
      *choice_index = static_cast<int>(token.choice_index());
      choice.token_ids.push_back(token.token_id());
      choice.text += token.text();
      if (logprobs_) choice.tokens.push_back(token);
      return token.text();
    }
    case v1::GenerateResponse::kFinished: {
      const v1::ChoiceFinished& finished = event.finished();
      if (finished.choice_index() >= choices_.size()) return "";
      GeneratedChoice& choice = choices_[finished.choice_index()];
      *choice_index = static_cast<int>(finished.choice_index());
      choice.finished = finished;
      choice.done = true;
      choice.text += finished.text();
      return finished.text();
    }
    case v1::GenerateResponse::kSummary:
      summary_ = event.summary();
      has_summary_ = true;
      return "";
    case v1::GenerateResponse::kTokens:  // RemoteGenerator takes them apart
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_ERROR:
      return "error";
    default:
      return "unspecified";
  }
}

Json GenerationToJson(const Generation& g) {
  const bool logprobs =
      std::any_of(g.choices().begin(), g.choices().end(), [](const GeneratedChoice& c) { return !c.tokens.empty(); });
  Json json;
  if (g.choices().size() == 1) {
    json = ChoiceToJson(g.choices()[0], logprobs);
  } else {
    json["choices"] = Json::array();
    for (size_t i = 0; i < g.choices().size(); ++i) {
      Json choice = {{"index", i}};
      choice.update(ChoiceToJson(g.choices()[i], logprobs));
      json["choices"].push_back(std::move(choice));
    }
  }
  const v1::Summary& s = g.summary();
  json["request_id"] = g.started().request_id();
  json["model"] = g.started().model();
  json["seed"] = g.started().seed();
  json["usage"] = {{"prompt", s.usage().prompt_tokens()},
                   {"cached", s.usage().cached_tokens()},
                   {"completion", s.usage().completion_tokens()}};
  const v1::Timings& t = s.timings();
  json["timings_ms"] = {
      {"tokenize", t.tokenize_ms()},       {"queue", t.queue_ms()},       {"prefill", t.prefill_ms()},
      {"first_token", t.first_token_ms()}, {"transfer", t.transfer_ms()}, {"decode_queue", t.decode_queue_ms()},
      {"reserve", t.reserve_ms()},         {"handover", t.handover_ms()}, {"second_token", t.second_token_ms()},
      {"itl_p50", t.itl_p50_ms()},         {"itl_p99", t.itl_p99_ms()},   {"total", t.total_ms()}};
  json["kv"] = {{"bytes", s.kv().bytes()},
                {"blocks", s.kv().blocks()},
                {"held_blocks", s.kv().held_blocks()},
                {"transport", s.kv().transport()},
                {"detail", s.kv().detail()}};
  json["workers"] = {{"prefill", s.prefill_worker()}, {"decode", s.decode_worker()}};
  return json;
}

std::string FormatGenerationSummary(const Generation& g) {
  if (!g.has_summary()) return "";
  const v1::Summary& s = g.summary();
  const v1::Timings& t = s.timings();
  std::string where;
  if (s.decode_worker().empty()) {
    where = absl::StrCat("prefill and the only token on ", s.prefill_worker(), "; no KV had to move");
  } else if (s.kv().transport() == "none") {
    where = absl::StrCat("prefill and decode in ", s.prefill_worker(), "; no KV had to move");
  } else {
    where = absl::StrCat("prefill on ", s.prefill_worker(), ", decode on ", s.decode_worker(), "; ",
                         WithCommas(s.kv().bytes()), " bytes of KV (", s.kv().blocks(), " blocks) moved by ",
                         s.kv().transport(), s.kv().detail().empty() ? "" : absl::StrCat(" ", s.kv().detail()));
  }
  std::vector<std::string> reasons;
  for (const GeneratedChoice& choice : g.choices()) reasons.push_back(FinishReasonName(choice.finished.reason()));
  std::string out = absl::StrCat("where:    ", where, "\n");
  absl::StrAppend(&out, "speed:    TTFT ", Ms(t.first_token_ms()), ", ITL p50 ", Ms(t.itl_p50_ms()), " p99 ",
                  Ms(t.itl_p99_ms()), ", ", absl::StrFormat("%.1f", DecodeTokensPerSecond(g)), " tokens/s in decode\n");
  absl::StrAppend(&out, "stations: tokenize ", Ms(t.tokenize_ms()), ", queue ", Ms(t.queue_ms()), ", prefill ",
                  Ms(t.prefill_ms()), ", hand-over ", Ms(t.handover_ms()), ", decode queue ", Ms(t.decode_queue_ms()),
                  ", total ", Ms(t.total_ms()), "\n");
  absl::StrAppend(&out, "tokens:   ", s.usage().prompt_tokens(), " prompt (", s.usage().cached_tokens(), " cached), ",
                  s.usage().completion_tokens(), " completion; finish: ", absl::StrJoin(reasons, ", "), "; seed ",
                  g.started().seed(), "\n");
  return Printable(out);
}

}  // namespace baton::cli
