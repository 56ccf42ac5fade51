// What the console's pages read, as JSON. docs/API.md describes it.
#ifndef BATON_ROUTER_CONSOLE_CONSOLE_JSON_H_
#define BATON_ROUTER_CONSOLE_CONSOLE_JSON_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "router/load_history.h"
#include "router/request_log.h"

namespace baton::router::console {

// {"admin": bool, "status": baton.v1.ClusterStatus in protobuf's JSON form}. KV endpoints are left out.
std::string ClusterJson(v1::ClusterStatus status, bool admin);
// {"requests": [...]}, the newest first; each with the figures of a list.
std::string RequestsJson(const std::vector<std::shared_ptr<const EndedRequest>>& requests);
// One request: its figures, stations, tokens' moments, and why it went where it went (null when that is forgotten).
std::string RequestJson(const EndedRequest& request, const absl::StatusOr<v1::PlacementExplanation>& placement);
// {"seconds": [...]}, the oldest first.
std::string LoadJson(const std::vector<LoadSecond>& seconds);

}  // namespace baton::router::console

#endif  // BATON_ROUTER_CONSOLE_CONSOLE_JSON_H_
