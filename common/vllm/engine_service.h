// vllm.grpc.engine.VllmEngine, as both kinds of workers serve it (setting vllm_engine): somebody else's gateway then runs the
// two pools. It asks a prefill worker first, carries what that answered in kv_transfer_params_json to a decode worker, and
// drops prefill's token, so that decode sends index 0 too.
#ifndef BATON_COMMON_VLLM_ENGINE_SERVICE_H_
#define BATON_COMMON_VLLM_ENGINE_SERVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/tracing/span.h"
#include "common/validate_request.h"
#include "common/vllm/generate_call.h"
#include "proto/compat/vllm_engine.grpc.pb.h"
#include "proto/worker.pb.h"

namespace baton::vllm {

struct EngineInfo {
  std::string engine_id;  // this process: name and incarnation
  std::string kv_role;    // "kv_producer" (prefill) or "kv_consumer" (decode)
  ModelLimits limits;
  std::string architecture;
  std::vector<int32_t> eos_token_ids;
  uint32_t block_size = 0;
  uint32_t max_sequences = 0;
  absl::Duration default_deadline = absl::Minutes(10);  // of a call without one
  // Thread-safe. `generate` starts a valid request and returns at once; `trace`: the gateway's.
  std::function<void(EngineRequest request, absl::Time deadline, const std::optional<tracing::SpanContext>& trace,
                     std::shared_ptr<GenerateCall> call)>
      generate;
  std::function<v1::WorkerLoad()> load;
  std::function<bool()> serving;  // false while it drains
};

// Thread contract: gRPC calls it from its threads; calls must have ended (server shut down) before it is destroyed.
class EngineService final : public pb::VllmEngine::CallbackService {
 public:
  explicit EngineService(EngineInfo info) : info_(std::move(info)) {}

  grpc::ServerWriteReactor<pb::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const pb::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context, const pb::HealthCheckRequest*,
                                        pb::HealthCheckResponse* response) override;
  // Ids that nobody knows are no error: a gateway tells all workers.
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const pb::AbortRequest* request,
                                  pb::AbortResponse*) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const pb::GetModelInfoRequest*,
                                         pb::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const pb::GetServerInfoRequest*,
                                          pb::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context, const pb::GetLoadsRequest*,
                                     pb::GetLoadsResponse* response) override;

 private:
  void Remember(const std::string& request_id, const std::shared_ptr<GenerateCall>& call);

  const EngineInfo info_;
  const absl::Time started_ = absl::Now();
  std::atomic<int64_t> last_received_ns_{0};
  Mutex mu_;
  // Calls that ended are swept when their number has doubled.
  std::multimap<std::string, std::weak_ptr<GenerateCall>> calls_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace baton::vllm

#endif  // BATON_COMMON_VLLM_ENGINE_SERVICE_H_
