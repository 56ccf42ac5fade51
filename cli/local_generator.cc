#include "cli/local_generator.h"

#include <sys/random.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/validate_request.h"
#include "engine/request_proto.h"

namespace baton::cli {
namespace {

double Ms(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

// Nearest rank, as the router computes it.
double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(rank), values.end());
  return values[rank];
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  while (::getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
  }
  return seed;
}

struct Done {
  absl::Status status;
  engine::RequestStats stats;
};
struct TimedToken {
  engine::SampledToken token;
  absl::Time at;
};

}  // namespace

// From the engine's thread to the one that waits in Generate.
class LocalGenerator::Sink : public engine::RequestSink {
 public:
  using Item = std::variant<TimedToken, Done>;

  void OnToken(const engine::SampledToken& token) override { Push(TimedToken{token, absl::Now()}); }
  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override { Push(Done{status, stats}); }

  Item Pop() {
    MutexLock lock(&mu_);
    while (items_.empty()) changed_.Wait(&mu_);
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  void Push(Item item) {
    MutexLock lock(&mu_);
    items_.push_back(std::move(item));
    changed_.Signal();
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
};

struct LocalGenerator::Run {
  struct Choice {
    model::TextStream text;
    uint32_t num_tokens = 0;
    bool finished = false;
    absl::Time last_token;
  };

  engine::Request request;
  v1::SamplingParams sampling;
  bool include_stop = false;
  absl::Time arrival;
  absl::Duration tokenize;
  absl::Time first_token = absl::InfiniteFuture();
  std::vector<double> itl_ms;
  std::vector<Choice> choices;
  std::function<void(const v1::GenerateResponse&)> on_event;
  absl::Time now;  // of the token at hand

  bool AllFinished() const {
    return std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.finished; });
  }
};

absl::StatusOr<std::unique_ptr<LocalGenerator>> LocalGenerator::Load(
    const v1::Config& config, absl::Duration timeout,
    const std::function<void(absl::string_view phase, double fraction)>& progress) {
  std::unique_ptr<LocalGenerator> generator(new LocalGenerator());
  generator->timeout_ = timeout;
  engine::LoadedModel::Options options;
  options.progress = progress;
  absl::StatusOr<std::unique_ptr<engine::LoadedModel>> model = engine::LoadedModel::Load(config, options);
  if (!model.ok()) return model.status();
  generator->model_ = *std::move(model);
  absl::StatusOr<std::unique_ptr<LocalText>> text = LocalText::Load(config.model());
  if (!text.ok()) return text.status();
  generator->text_ = *std::move(text);
  return generator;
}

absl::Status LocalGenerator::Admit(const v1::GenerateRequest& request, Run* run) const {
  ModelLimits limits = model_->limits();
  limits.vocab_size = std::min(limits.vocab_size, static_cast<int>(text_->tokenizer().vocab_size()));
  if (absl::Status s = ValidateGenerateRequest(request, limits); !s.ok()) return s;
  absl::StatusOr<std::vector<int32_t>> prompt = text_->PromptTokens(request);
  if (!prompt.ok()) return prompt.status();
  const auto length = static_cast<int64_t>(prompt->size());
  if (absl::Status s = ValidatePromptLength(length, request.sampling(), limits); !s.ok()) return s;
  run->tokenize = absl::Now() - run->arrival;
  run->sampling = ResolveDefaults(request.sampling(), length, RandomSeed(), limits);
  run->include_stop = run->sampling.include_stop_str_in_output();
  for (int i = 0; i < run->sampling.n(); ++i) {
    absl::StatusOr<model::TextStream> text = text_->NewChoice(run->sampling);
    if (!text.ok()) return text.status();
    run->choices.push_back(Run::Choice{.text = *std::move(text)});
  }
  // Stop strings are this side's; the engine knows ids only.
  v1::SamplingParams sampling = run->sampling;
  sampling.clear_stop();
  sampling.clear_include_stop_str_in_output();
  const google::protobuf::RepeatedField<int32_t> ids(prompt->begin(), prompt->end());
  const absl::Time deadline = timeout_ == absl::InfiniteDuration() ? absl::InfiniteFuture() : run->arrival + timeout_;
  const std::string id = request.request_id().empty() ? "local" : request.request_id();
  absl::StatusOr<engine::Request> built = engine::RequestFromProto(id, ids, sampling, "", deadline, model_->limits());
  if (!built.ok()) return built.status();
  if (absl::Status s = model_->Constrain(sampling, &*built); !s.ok()) return s;
  run->request = *std::move(built);
  return absl::OkStatus();
}

absl::Status LocalGenerator::Generate(const v1::GenerateRequest& request,
                                      const std::function<void(const v1::GenerateResponse&)>& on_event) {
  Run run;
  run.arrival = absl::Now();
  run.on_event = on_event;
  if (absl::Status s = Admit(request, &run); !s.ok()) return s;
  v1::GenerateResponse event;
  event.mutable_started()->set_request_id(run.request.request_id);
  event.mutable_started()->set_seed(run.request.sampling.seed);
  event.mutable_started()->set_prompt_tokens(static_cast<uint32_t>(run.request.prompt_token_ids.size()));
  event.mutable_started()->set_model(model_->model_name());
  on_event(event);

  const std::string id = run.request.request_id;
  auto sink = std::make_shared<Sink>();
  {
    MutexLock lock(&mu_);
    cancelled_ = false;
    running_ = id;
  }
  model_->engine()->Submit(std::move(run.request), sink);
  bool cut_short = false;  // by stop strings, which the engine does not know
  Done done;
  while (true) {
    Sink::Item item = sink->Pop();
    if (auto* end = std::get_if<Done>(&item)) {
      done = std::move(*end);
      break;
    }
    const auto& timed = std::get<TimedToken>(item);
    run.now = timed.at;
    HandleToken(timed.token, &run);
    if (run.AllFinished() && !cut_short) {
      cut_short = true;
      model_->engine()->Cancel(id);  // nothing when it ended by itself
    }
  }
  bool cancelled;
  {
    MutexLock lock(&mu_);
    running_.clear();
    cancelled = cancelled_;
  }
  if (!run.AllFinished()) {
    if (cancelled) return absl::CancelledError("interrupted");
    return done.status.ok() ? absl::InternalError("the engine ended although choices go on") : done.status;
  }
  SendSummary(done.stats, &run);
  return absl::OkStatus();
}

void LocalGenerator::HandleToken(const engine::SampledToken& token, Run* run) const {
  Run::Choice& choice = run->choices[static_cast<size_t>(token.choice_index)];
  if (choice.finished) return;  // beyond a stop string
  run->first_token = std::min(run->first_token, run->now);
  if (choice.num_tokens > 0) run->itl_ms.push_back(Ms(run->now - choice.last_token));
  choice.last_token = run->now;
  ++choice.num_tokens;

  // EOS and stop ids are text only where the request includes stop strings. An id outside the tokenizer's vocabulary (a
  // padded embedding has such rows) makes no text.
  const bool by_id = token.finish_reason == engine::FinishReason::kStop;
  model::TextStream::Output piece;
  if (!by_id || run->include_stop) {
    if (auto output = choice.text.Append(token.token_id); output.ok()) piece = *std::move(output);
  }
  const bool ends = piece.stop_string.has_value() || token.finish_reason != engine::FinishReason::kNone;
  model::TextStream::Output rest;
  rest.stop_string = piece.stop_string;
  if (ends && !piece.stop_string.has_value()) rest = choice.text.Finish();

  v1::GenerateResponse response;
  v1::TokenEvent* event = response.mutable_token();
  event->set_choice_index(static_cast<uint32_t>(token.choice_index));
  event->set_token_index(static_cast<uint32_t>(token.token_index));
  event->set_token_id(token.token_id);
  event->set_text(piece.text);
  event->set_logprob(token.logprob);
  for (const engine::TopLogprob& top : token.top_logprobs) {
    v1::TopLogprob* out = event->add_top_logprobs();
    out->set_token_id(top.token_id);
    out->set_logprob(top.logprob);
    if (auto bytes = text_->tokenizer().TokenBytes(top.token_id); bytes.ok()) out->set_token(std::string(*bytes));
  }
  run->on_event(response);
  if (!ends) return;

  choice.finished = true;
  response.Clear();
  v1::ChoiceFinished* finished = response.mutable_finished();
  finished->set_choice_index(static_cast<uint32_t>(token.choice_index));
  finished->set_text(rest.text);
  finished->set_completion_tokens(choice.num_tokens);
  if (rest.stop_string.has_value()) {
    finished->set_reason(v1::FINISH_REASON_STOP);
    finished->set_stop_string(*rest.stop_string);
  } else {
    finished->set_reason(engine::FinishReasonToProto(token.finish_reason));
    if (by_id) finished->set_stop_token_id(token.token_id);
  }
  run->on_event(response);
}

void LocalGenerator::SendSummary(const engine::RequestStats& stats, Run* run) const {
  v1::GenerateResponse response;
  v1::Summary* summary = response.mutable_summary();
  summary->mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(stats.prompt_tokens));
  summary->mutable_usage()->set_cached_tokens(static_cast<uint32_t>(stats.cached_tokens));
  uint32_t completion = 0;
  for (const Run::Choice& choice : run->choices) completion += choice.num_tokens;
  summary->mutable_usage()->set_completion_tokens(completion);
  v1::Timings* timings = summary->mutable_timings();
  timings->set_tokenize_ms(Ms(run->tokenize));
  timings->set_queue_ms(Ms(stats.queue));
  timings->set_prefill_ms(Ms(stats.prefill));
  timings->set_first_token_ms(Ms(run->first_token - run->arrival));
  timings->set_itl_p50_ms(Percentile(run->itl_ms, 0.50));
  timings->set_itl_p99_ms(Percentile(run->itl_ms, 0.99));
  timings->set_total_ms(Ms(run->now - run->arrival));
  summary->mutable_kv()->set_transport("none");
  summary->set_prefill_worker("local");
  if (run->sampling.max_tokens() > 1) summary->set_decode_worker("local");
  summary->set_seed(run->sampling.seed());
  run->on_event(response);
}

bool LocalGenerator::Cancel() {
  std::string id;
  {
    MutexLock lock(&mu_);
    if (running_.empty()) return false;
    cancelled_ = true;
    id = running_;
  }
  model_->engine()->Cancel(id);
  return true;
}

}  // namespace baton::cli
