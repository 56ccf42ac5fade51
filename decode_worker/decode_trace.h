// A decode worker's spans of one call: "decode" around all; "transfer", the fetch of the prompt's KV; "prefill", where the
// prompt was computed here; "logits" and "sample", from the first step to the last token, with the time that was theirs in
// an attribute.
#ifndef BATON_DECODE_WORKER_DECODE_TRACE_H_
#define BATON_DECODE_WORKER_DECODE_TRACE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tracing/tracer.h"
#include "engine/request.h"
#include "kvtransfer/transport.h"

namespace baton::decode_worker {

// Notes moments, and makes spans of them at the end. Without a tracer, or in a trace that nobody records, does nothing.
//
// Thread contract: one caller at a time.
class DecodeTrace {
 public:
  // `tracer` may be null; else it outlives this. `parent`: the caller's.
  DecodeTrace(const tracing::Tracer* tracer, const std::optional<tracing::SpanContext>& parent, absl::Time begun);

  void OnFetched(absl::Time now, absl::string_view peer, const kvtransfer::FetchStats& stats);
  void OnStart(absl::Time now);  // the engine got the request
  void OnPrefilled(const engine::RequestStats& so_far);
  void OnToken(absl::Time now);
  void OnDone(const engine::RequestStats& stats);
  void End(const std::string& request_id, uint32_t epoch, const absl::Status& status, absl::Time now);

 private:
  void EndSteps();

  const tracing::Tracer* tracer_ = nullptr;  // null: nothing is noted
  tracing::Span call_;
  std::optional<tracing::Span> transfer_;
  absl::Time started_ = absl::InfiniteFuture();
  absl::Time first_token_ = absl::InfiniteFuture(), last_token_ = absl::InfinitePast();
  int64_t tokens_ = 0;
  bool local_ = false;
  engine::RequestStats stats_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DECODE_TRACE_H_
