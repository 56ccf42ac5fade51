// One ModelInfer, and one ModelStreamInfer with its many requests.
//
// Both objects live until gRPC is done with the call and no driver holds them any more.
#ifndef BATON_ROUTER_KSERVE_INFER_CALL_H_
#define BATON_ROUTER_KSERVE_INFER_CALL_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/compat/kserve.grpc.pb.h"
#include "router/intake.h"
#include "router/kserve/infer_request.h"

namespace baton::router::kserve {

class InferCall final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<InferCall> {
 public:
  // The reactor to give to gRPC. `response` is gRPC's, and lives as long as the call.
  // An error as `caller`: the caller may not ask.
  static InferCall* Start(Intake* intake, const inference::ModelInferRequest& request,
                          const absl::StatusOr<Caller>& caller, absl::Time deadline,
                          const std::optional<tracing::SpanContext>& trace, inference::ModelInferResponse* response);

  void OnCancel() override;
  void OnDone() override;

 private:
  class Client;
  explicit InferCall(inference::ModelInferResponse* response) : response_(response) {}

  inference::ModelInferResponse* const response_;
  std::shared_ptr<RequestDriver> driver_;  // set before gRPC has the reactor, dropped when it is done with it
  std::shared_ptr<InferCall> self_;
};

// Thread contract: its methods are called by gRPC and by the requests' drivers.
class StreamCall final
    : public grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>,
      public std::enable_shared_from_this<StreamCall> {
 public:
  // An error as `caller`: the caller may not ask.
  static StreamCall* Start(Intake* intake, absl::StatusOr<Caller> caller, absl::Time deadline,
                           std::optional<tracing::SpanContext> trace);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Client;
  StreamCall(Intake* intake, absl::StatusOr<Caller> caller, absl::Time deadline,
             std::optional<tracing::SpanContext> trace)
      : intake_(intake), caller_(std::move(caller)), deadline_(deadline), trace_(std::move(trace)) {}

  void Begin(const inference::ModelInferRequest& request);
  void Send(inference::ModelStreamInferResponse response);
  void Ended(uint64_t key);
  // Nothing can be sent any more: all requests end.
  void Break(absl::Status status);
  // The next write, read or the end, whichever is due. Calls gRPC without the lock.
  void Advance();

  Intake* const intake_;
  const absl::StatusOr<Caller> caller_;
  const absl::Time deadline_;
  const std::optional<tracing::SpanContext> trace_;  // of all requests on the stream
  inference::ModelInferRequest request_;            // of the outstanding read
  inference::ModelStreamInferResponse response_;    // of the outstanding write
  std::shared_ptr<StreamCall> self_;

  Mutex mu_;
  std::deque<inference::ModelStreamInferResponse> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::shared_ptr<RequestDriver>> drivers_ ABSL_GUARDED_BY(mu_);  // of requests in the table
  std::set<uint64_t> over_ ABSL_GUARDED_BY(mu_);  // ended before they were in drivers_
  uint64_t next_key_ ABSL_GUARDED_BY(mu_) = 0;
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;  // requests that have not ended
  bool reading_ ABSL_GUARDED_BY(mu_) = true;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router::kserve

#endif  // BATON_ROUTER_KSERVE_INFER_CALL_H_
