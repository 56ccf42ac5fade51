#include "router/console/console_json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router::console {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string ProtoJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // It fails only for well-known types, which ours have none of.
  return google::protobuf::util::MessageToJsonString(message, &json, options).ok() ? json : "null";
}

// Null for what did not happen.
Json Ms(absl::Duration d) { return d == absl::InfiniteDuration() ? Json() : Json(absl::ToDoubleMilliseconds(d)); }

const char* ReasonName(v1::FinishReason reason) {
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
      return "none";
  }
}

Json Figures(const EndedRequest& request) {
  const RequestStats& stats = request.stats;
  const v1::Timings& timings = request.summary.timings();
  return {{"id", request.request_id},
          {"arrived_unix_ms", absl::ToUnixMillis(request.arrived)},
          {"code", RuleFor(request.status.code()).name},
          {"prompt_tokens", stats.prompt_tokens},
          {"cached_tokens", stats.cached_tokens},
          {"completion_tokens", stats.completion_tokens},
          {"prefill_worker", stats.prefill_worker},
          {"decode_worker", stats.decode_worker},
          {"mode", stats.mode},
          {"ttft_ms", Ms(stats.ttft)},
          {"itl_p50_ms", timings.itl_p50_ms()},
          {"itl_p99_ms", timings.itl_p99_ms()},
          {"total_ms", Ms(stats.total)}};
}

}  // namespace

std::string ClusterJson(v1::ClusterStatus status, bool admin) {
  for (v1::ClusterWorker& worker : *status.mutable_workers()) worker.mutable_info()->clear_endpoints();
  return absl::StrCat("{\"admin\":", admin ? "true" : "false", ",\"status\":", ProtoJson(status), "}\n");
}

std::string RequestsJson(const std::vector<std::shared_ptr<const EndedRequest>>& requests) {
  Json list = Json::array();
  for (const auto& request : requests) list.push_back(Figures(*request));
  return Dump({{"requests", std::move(list)}});
}

std::string RequestJson(const EndedRequest& request, const absl::StatusOr<v1::PlacementExplanation>& placement) {
  const RequestStats& stats = request.stats;
  Json json = Figures(request);
  json["message"] = std::string(request.status.message());
  json["attempts"] = stats.attempts;
  json["preemptions"] = stats.num_preemptions;
  json["seed"] = absl::StrCat(request.summary.seed());  // more than JavaScript's numbers hold
  json["finish_reasons"] = Json::array();
  for (const v1::FinishReason reason : stats.finish_reasons) json["finish_reasons"].push_back(ReasonName(reason));
  // Moments since arrival, and what each station took by the clock of whoever did it.
  json["moments_ms"] = {{"tokenized", Ms(stats.tokenize)},       {"placed", Ms(stats.placed_at)},
                        {"reserved", Ms(stats.reserved_at)},     {"first_token", Ms(stats.ttft)},
                        {"prefilled", Ms(stats.prefilled_at)},   {"kv_arrived", Ms(stats.fetched_at)},
                        {"ended", Ms(stats.total)}};
  const bool decoded = stats.num_steps > 0;
  json["stations_ms"] = {{"tokenize", Ms(stats.tokenize)},
                         {"prefill", Ms(stats.prefill)},
                         {"logits", decoded ? Ms(stats.logits) : Json()},
                         {"sample", Ms(stats.sample)},
                         {"emit", Ms(request.emit)},
                         {"stop", Ms(stats.stop)}};
  json["waits_ms"] = {{"prefill_queue", Ms(stats.queue)},
                      {"decode_room", Ms(stats.reserve)},
                      {"decode_queue", Ms(stats.decode_queue)}};
  json["chunks"] = stats.num_chunks;
  json["steps"] = stats.num_steps;
  json["kv"] = {{"bytes", stats.kv.bytes()},           {"blocks", stats.kv.blocks()},
                {"held_blocks", stats.kv.held_blocks()}, {"transport", stats.kv.transport()},
                {"detail", stats.kv.detail()},         {"transfer_ms", Ms(stats.transfer)},
                {"handover_ms", Ms(stats.handover)}};
  json["token_ms"] = stats.token_ms;
  json["placement"] = placement.ok() ? Json::parse(ProtoJson(*placement), nullptr, false) : Json();
  return Dump(json);
}

std::string LoadJson(const std::vector<LoadSecond>& seconds) {
  Json list = Json::array();
  for (const LoadSecond& s : seconds) {
    list.push_back({{"t", s.unix_s},
                    {"in_flight", s.in_flight},
                    {"queued", s.queued},
                    {"prompt_tokens", s.prompt_tokens},
                    {"generated_tokens", s.generated_tokens},
                    {"first_tokens", s.first_tokens},
                    {"ttft_p50_ms", s.ttft_p50_ms},
                    {"ttft_p99_ms", s.ttft_p99_ms},
                    {"itl_p50_ms", s.itl_p50_ms},
                    {"itl_p99_ms", s.itl_p99_ms}});
  }
  return Dump({{"seconds", std::move(list)}});
}

}  // namespace baton::router::console
