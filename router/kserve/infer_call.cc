#include "router/kserve/infer_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace baton::router::kserve {
namespace {

constexpr size_t kMaxOpen = 256;       // requests of one stream; the next one is read when one has ended
constexpr size_t kMaxBuffered = 4096;  // answers that the client does not read

absl::Time Earlier(absl::Time deadline, absl::Duration timeout) { return std::min(deadline, absl::Now() + timeout); }

// Of each choice, what is said before its first token: the prompt, where that is asked for.
std::vector<std::string> FirstTexts(const absl::StatusOr<InferRequest>& parsed) {
  if (!parsed.ok()) return {};
  const int choices = std::max(1, parsed->generate.sampling().n());
  return std::vector<std::string>(static_cast<size_t>(choices), parsed->echo ? parsed->generate.prompt() : "");
}

// Adds what the event says of one choice; false where that is nothing.
bool AddText(const v1::GenerateResponse& event, std::vector<std::string>* texts) {
  const std::string& text = event.has_token() ? event.token().text() : event.finished().text();
  const size_t choice = event.has_token() ? event.token().choice_index() : event.finished().choice_index();
  if (text.empty() || choice >= texts->size()) return false;
  (*texts)[choice] += text;
  return true;
}

absl::StatusOr<v1::GenerateRequest> GenerateOf(const absl::StatusOr<InferRequest>& parsed) {
  if (!parsed.ok()) return parsed.status();
  return parsed->generate;
}

}  // namespace

class InferCall::Client final : public ClientStream {
 public:
  Client(std::shared_ptr<InferCall> call, std::string id, std::string model, std::vector<std::string> texts)
      : call_(std::move(call)), id_(std::move(id)), model_(std::move(model)), texts_(std::move(texts)) {}
  void Push(v1::GenerateResponse response) override { AddText(response, &texts_); }
  void Finish(absl::Status status) override {
    if (status.ok()) {
      *call_->response_ = MakeInferResponse(model_, id_, /*final=*/true);
      AddTexts(texts_, call_->response_);
    }
    call_->Finish(ToGrpcStatus(status));
  }

 private:
  const std::shared_ptr<InferCall> call_;
  const std::string id_, model_;
  std::vector<std::string> texts_;
};

InferCall* InferCall::Start(Intake* intake, const inference::ModelInferRequest& request,
                            const absl::StatusOr<Caller>& caller, absl::Time deadline,
                            const std::optional<tracing::SpanContext>& trace,
                            inference::ModelInferResponse* response) {
  std::shared_ptr<InferCall> call(new InferCall(response));
  call->self_ = call;
  const absl::StatusOr<InferRequest> parsed = caller.ok() ? ParseInferRequest(request, /*may_stream=*/false)
                                                          : absl::StatusOr<InferRequest>(caller.status());
  if (parsed.ok()) deadline = Earlier(deadline, parsed->timeout);
  intake->Generate(GenerateOf(parsed), caller.value_or(Caller()), deadline,
                   [&](const std::shared_ptr<RequestDriver>& driver) {
                     call->driver_ = driver;
                     return std::make_unique<Client>(call, request.id(), intake->text().model_name(), FirstTexts(parsed));
                   },
                   trace);
  return call.get();
}

void InferCall::OnCancel() { driver_->ClientGone(); }

void InferCall::OnDone() {
  driver_.reset();
  const std::shared_ptr<InferCall> last = std::move(self_);  // may delete this on return
}

class StreamCall::Client final : public ClientStream {
 public:
  Client(std::shared_ptr<StreamCall> call, uint64_t key, std::string id, const absl::StatusOr<InferRequest>& parsed)
      : call_(std::move(call)), key_(key), id_(std::move(id)), model_(call_->intake_->text().model_name()), texts_(FirstTexts(parsed)) {
    if (!parsed.ok()) return;
    stream_ = parsed->stream;
    empty_final_ = parsed->empty_final;
  }
  void Push(v1::GenerateResponse response) override {
    // The last words of a choice wait for the end, in case it is the only one.
    if (AddText(response, &texts_) && stream_ && response.has_token()) Send(/*final=*/false);
  }
  void Finish(absl::Status status) override {
    if (status.ok()) {
      Send(/*final=*/true);
    } else {
      inference::ModelStreamInferResponse failed;
      failed.set_error_message(absl::StrCat(RuleFor(status.code()).name, ": ", absl::string_view(status.message())));
      *failed.mutable_infer_response() = MakeInferResponse(model_, id_, /*final=*/true);
      call_->Send(std::move(failed));
    }
    call_->Ended(key_);
  }

 private:
  // What was said since the last time, of each choice.
  void Send(bool final) {
    inference::ModelStreamInferResponse response;
    *response.mutable_infer_response() = MakeInferResponse(model_, id_, final);
    const bool said = std::any_of(texts_.begin(), texts_.end(), [](const std::string& text) { return !text.empty(); });
    if (said || !empty_final_) AddTexts(texts_, response.mutable_infer_response());
    std::fill(texts_.begin(), texts_.end(), "");
    call_->Send(std::move(response));
  }

  const std::shared_ptr<StreamCall> call_;
  const uint64_t key_;
  const std::string id_, model_;
  bool stream_ = false;
  bool empty_final_ = false;
  std::vector<std::string> texts_;  // of each choice, to be sent
};

StreamCall* StreamCall::Start(Intake* intake, absl::StatusOr<Caller> caller, absl::Time deadline,
                              std::optional<tracing::SpanContext> trace) {
  std::shared_ptr<StreamCall> call(new StreamCall(intake, std::move(caller), deadline, std::move(trace)));
  call->self_ = call;
  if (call->caller_.ok()) {
    call->StartRead(&call->request_);
  } else {
    call->finished_ = true;
    call->Finish(ToGrpcStatus(call->caller_.status()));
  }
  return call.get();
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) Begin(request_);
  {
    MutexLock lock(&mu_);
    reading_ = false;
    read_all_ = !ok;
  }
  Advance();
}

void StreamCall::Begin(const inference::ModelInferRequest& request) {
  uint64_t key;
  {
    MutexLock lock(&mu_);
    key = next_key_++;
    ++open_;
  }
  const absl::StatusOr<InferRequest> parsed = ParseInferRequest(request, /*may_stream=*/true);
  std::shared_ptr<RequestDriver> driver;
  intake_->Generate(GenerateOf(parsed), *caller_, parsed.ok() ? Earlier(deadline_, parsed->timeout) : deadline_,
                    [&](const std::shared_ptr<RequestDriver>& made) {
                      driver = made;
                      return std::make_unique<Client>(shared_from_this(), key, request.id(), parsed);
                    },
                    trace_);
  // Only now may it be ended from here: before, it is not in the router's table. It may be over already.
  bool late;
  {
    MutexLock lock(&mu_);
    late = broken_;
    if (!late && over_.erase(key) == 0) drivers_[key] = driver;
  }
  if (late) driver->ClientGone();
}

void StreamCall::Send(inference::ModelStreamInferResponse response) {
  bool overflow;
  {
    MutexLock lock(&mu_);
    if (broken_) return;
    overflow = waiting_.size() >= kMaxBuffered;
    if (!overflow) waiting_.push_back(std::move(response));
  }
  if (overflow) {
    return Break(absl::ResourceExhaustedError(absl::StrCat("the reader is too slow: ", kMaxBuffered, " answers wait")));
  }
  Advance();
}

void StreamCall::Ended(uint64_t key) {
  std::shared_ptr<RequestDriver> dropped;
  {
    MutexLock lock(&mu_);
    --open_;
    if (const auto found = drivers_.find(key); found != drivers_.end()) {
      dropped = std::move(found->second);
      drivers_.erase(found);
    } else if (!broken_) {
      over_.insert(key);
    }
  }
  Advance();
}

void StreamCall::Break(absl::Status status) {
  std::map<uint64_t, std::shared_ptr<RequestDriver>> drivers;
  {
    MutexLock lock(&mu_);
    if (!std::exchange(broken_, true)) status_ = std::move(status);
    waiting_.clear();
    drivers.swap(drivers_);
  }
  for (const auto& [key, driver] : drivers) driver->ClientGone();
  Advance();
}

void StreamCall::Advance() {
  bool read = false, write = false, finish = false;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (finished_) return;
    if (!writing_ && !waiting_.empty()) {
      response_ = std::move(waiting_.front());
      waiting_.pop_front();
      writing_ = write = true;
    }
    if (!reading_ && !read_all_ && !broken_ && open_ < kMaxOpen) reading_ = read = true;
    if (!writing_ && open_ == 0 && (broken_ || read_all_)) {
      finished_ = finish = true;
      status = status_;
    }
  }
  if (write) StartWrite(&response_);
  if (read) StartRead(&request_);
  if (finish) Finish(ToGrpcStatus(status));
}

void StreamCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
  }
  if (!ok) return Break(absl::CancelledError("the client went away"));
  Advance();
}

void StreamCall::OnCancel() { Break(absl::CancelledError("the client went away or the deadline passed")); }

void StreamCall::OnDone() {
  const std::shared_ptr<StreamCall> last = std::move(self_);  // may delete this on return
}

}  // namespace baton::router::kserve
