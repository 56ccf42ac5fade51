// The router's spans of one request: the request, and its stations here.
#ifndef BATON_ROUTER_REQUEST_TRACE_H_
#define BATON_ROUTER_REQUEST_TRACE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tracing/tracer.h"
#include "router/request_stats.h"

namespace baton::router {

struct TracedRequest {
  const std::string& key;
  const std::string& model;
  int max_tokens = 0;
  const tracing::SpanContext& place;  // of the span "request"
  uint64_t parent_id = 0;             // the client's span; 0: none
  absl::Time arrived;
  absl::Duration emit;  // spent on sending, summed
};

// When the request has ended. Below "request": "tokenize"; "emit", from the first token to the last; "stop", from the last
// one to the end. What stations spent between tokens is in attributes.
void TraceRequest(const tracing::Tracer& tracer, const TracedRequest& request, const absl::Status& status,
                  const RequestStats& stats);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TRACE_H_
