// The trace's place in a gRPC call's metadata.
#ifndef BATON_COMMON_TRACING_GRPC_METADATA_H_
#define BATON_COMMON_TRACING_GRPC_METADATA_H_

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/strings/string_view.h"
#include "common/tracing/span.h"

namespace baton::tracing {

inline void AddTo(grpc::ClientContext* call, const std::optional<SpanContext>& context) {
  if (!context.has_value()) return;
  call->AddMetadata("traceparent", Traceparent(*context));
  if (!context->tracestate.empty()) call->AddMetadata("tracestate", context->tracestate);
}

// nullopt: the caller gave none that is valid.
inline std::optional<SpanContext> FromCall(const grpc::ServerContextBase& call) {
  const auto value = [&call](const char* key) {
    const auto found = call.client_metadata().find(key);
    if (found == call.client_metadata().end()) return absl::string_view();
    return absl::string_view(found->second.data(), found->second.size());
  };
  return ParseTraceparent(value("traceparent"), value("tracestate"));
}

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_GRPC_METADATA_H_
