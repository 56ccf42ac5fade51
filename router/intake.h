// Where requests of all front doors come in: one place that validates, tokenizes, fills in defaults and starts a
// driver.
#ifndef BATON_ROUTER_INTAKE_H_
#define BATON_ROUTER_INTAKE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/tracing/span.h"
#include "router/api_keys.h"
#include "router/client_stream.h"
#include "router/model_text.h"
#include "router/request_driver.h"

namespace baton::router {

struct IntakeOptions {
  absl::Duration default_deadline = absl::Minutes(10);  // of a request that has none
};

// Thread-safe. Nothing is owned; all outlives the intake and its requests.
class Intake {
 public:
  // Called once, before anything is pushed.
  using MakeClient = RequestDriver::MakeClient;

  Intake(const IntakeOptions& options, const ModelText* text, ClusterView* view, const DriverContext* context,
         const ApiKeys* keys)
      : options_(options), text_(text), view_(view), context_(context), keys_(keys) {}

  // From now on Generate is refused with UNAVAILABLE.
  void Drain() { draining_ = true; }

  // Who the caller is; doors ask before all else, for every kind of request. `authorization`: the header, or gRPC
  // metadata, of that name. UNAUTHENTICATED, as ApiKeys.
  absl::StatusOr<Caller> CallerOf(absl::string_view authorization) const { return keys_->CallerOf(authorization); }

  // Starts a request of `caller`; whatever happens to it, a refusal too, the client hears. An error as `request` is one
  // that the door found itself. PERMISSION_DENIED (NO_PRIORITY_SCOPE) where it is to go first and the caller's may not. `trace`: what the client sent as traceparent.
  void Generate(const absl::StatusOr<v1::GenerateRequest>& request, const Caller& caller, absl::Time deadline,
                const MakeClient& make_client, const std::optional<tracing::SpanContext>& trace = std::nullopt);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) const;
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request) const;
  v1::ListModelsResponse ListModels() const;

  // NOT_FOUND, with the names that are served. An empty name is the only model.
  absl::Status CheckModel(const std::string& model) const;
  // The router's limits and the workers', whichever is smaller.
  ModelLimits Limits() const;
  const ModelText& text() const { return *text_; }
  absl::Time started() const { return started_; }
  uint64_t requests_total() const { return requests_total_; }

 private:
  // Stations before the first: validation, tokenizing, defaults.
  absl::StatusOr<AdmittedRequest> Prepare(const v1::GenerateRequest& request, std::string request_id) const;

  const IntakeOptions options_;
  const ModelText* const text_;
  ClusterView* const view_;
  const DriverContext* const context_;
  const ApiKeys* const keys_;
  const absl::Time started_ = absl::Now();
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> requests_total_{0};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_INTAKE_H_
