#include "common/vllm/engine_service.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "common/tracing/grpc_metadata.h"
#include "common/version.h"

namespace baton::vllm {
namespace {

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<pb::GenerateResponse>* EngineService::Generate(grpc::CallbackServerContext* context,
                                                                        const pb::GenerateRequest* request) {
  const absl::Time now = absl::Now();
  last_received_ns_ = absl::ToUnixNanos(now);
  const std::shared_ptr<GenerateCall> call = GenerateCall::Create();
  absl::StatusOr<EngineRequest> parsed = ParseEngineRequest(*request, info_.limits);
  if (!parsed.ok()) {
    call->Finish(parsed.status());
    return call->reactor();
  }
  call->Describe(*parsed);
  Remember(parsed->request_id, call);
  info_.generate(*std::move(parsed), std::min(rpc::DeadlineOf(*context), now + info_.default_deadline),
                 tracing::FromCall(*context), call);
  return call->reactor();
}

void EngineService::Remember(const std::string& request_id, const std::shared_ptr<GenerateCall>& call) {
  MutexLock lock(&mu_);
  if (calls_.size() >= sweep_at_) {
    std::erase_if(calls_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * calls_.size());
  }
  calls_.emplace(request_id, call);
}

grpc::ServerUnaryReactor* EngineService::Abort(grpc::CallbackServerContext* context, const pb::AbortRequest* request,
                                               pb::AbortResponse*) {
  std::vector<std::shared_ptr<GenerateCall>> calls;
  {
    MutexLock lock(&mu_);
    for (const std::string& id : request->request_ids()) {
      const auto [begin, end] = calls_.equal_range(id);
      for (auto it = begin; it != end; ++it) {
        if (std::shared_ptr<GenerateCall> call = it->second.lock()) calls.push_back(std::move(call));
      }
      calls_.erase(begin, end);
    }
  }
  for (const std::shared_ptr<GenerateCall>& call : calls) call->Abort();
  return Done(context);
}

grpc::ServerUnaryReactor* EngineService::HealthCheck(grpc::CallbackServerContext* context, const pb::HealthCheckRequest*,
                                                     pb::HealthCheckResponse* response) {
  response->set_healthy(info_.serving());
  response->set_message(response->healthy() ? "serving" : "draining");
  return Done(context);
}

grpc::ServerUnaryReactor* EngineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                      const pb::GetModelInfoRequest*,
                                                      pb::GetModelInfoResponse* response) {
  const std::string& name = info_.limits.model_names[0];
  response->set_model_path(name);
  response->set_served_model_name(name);
  response->set_is_generation(true);
  response->set_max_context_length(static_cast<uint32_t>(info_.limits.max_context));
  response->set_max_req_input_len(info_.limits.max_context - 1);
  response->set_vocab_size(static_cast<uint32_t>(info_.limits.vocab_size));
  response->set_model_type(info_.architecture);
  response->mutable_eos_token_ids()->Assign(info_.eos_token_ids.begin(), info_.eos_token_ids.end());
  return Done(context);
}

grpc::ServerUnaryReactor* EngineService::GetServerInfo(grpc::CallbackServerContext* context,
                                                       const pb::GetServerInfoRequest*,
                                                       pb::GetServerInfoResponse* response) {
  const v1::WorkerLoad load = info_.load();
  response->set_active_requests(load.running() + load.waiting());
  response->set_last_receive_timestamp(static_cast<double>(last_received_ns_.load()) / 1e9);
  response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - started_));
  response->set_server_type("vllm-grpc");
  // The name under which gateways mark the prefill leg; what its parameters hold is ours.
  response->set_kv_connector("NixlConnector");
  response->set_kv_role(info_.kv_role);
  response->set_kv_engine_id(info_.engine_id);
  response->set_data_parallel_size(1);
  return Done(context);
}

grpc::ServerUnaryReactor* EngineService::GetLoads(grpc::CallbackServerContext* context, const pb::GetLoadsRequest*,
                                                  pb::GetLoadsResponse* response) {
  const v1::WorkerLoad load = info_.load();
  const v1::KvLedger& ledger = load.ledger();
  const uint64_t used = ledger.active() + ledger.leased() + ledger.quarantined();
  const auto tokens = [this](uint64_t blocks) {
    return static_cast<int32_t>(std::min<uint64_t>(blocks * info_.block_size, INT32_MAX));
  };
  response->set_timestamp(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
  response->set_version(kVersion);
  response->set_dp_rank_count(1);
  pb::SchedulerLoad* out = response->add_loads();
  out->set_num_running_reqs(static_cast<int32_t>(load.running()));
  out->set_num_waiting_reqs(static_cast<int32_t>(load.waiting()));
  out->set_num_total_reqs(static_cast<int32_t>(load.running() + load.waiting()));
  out->set_num_used_tokens(tokens(used));
  out->set_max_total_num_tokens(tokens(ledger.total()));
  out->set_token_usage(ledger.total() == 0 ? 0 : static_cast<double>(used) / static_cast<double>(ledger.total()));
  out->set_gen_throughput(static_cast<double>(load.tokens_per_second()));
  out->set_utilization(info_.max_sequences == 0 ? 0 : static_cast<double>(load.running()) / info_.max_sequences);
  out->set_max_running_requests(static_cast<int32_t>(info_.max_sequences));
  out->set_num_waiting_uncached_tokens(static_cast<int32_t>(std::min<uint64_t>(load.waiting_tokens(), INT32_MAX)));
  return Done(context);
}

}  // namespace baton::vllm
