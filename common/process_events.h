// What a server process tells whoever started it: one JSON object a line on stdout, flushed. Nothing else of Baton's
// servers writes to stdout.
//
//   {"event":"loading","phase":"weights","progress":0.42}
//   {"event":"ready","role":"prefill","name":"prefill-0","listen":"127.0.0.1:4711","http":"127.0.0.1:4712","pid":42}
//   {"event":"registered","router":"127.0.0.1:50051"}
//   {"event":"refused","reason":"..."}      the router did not accept this worker
//   {"event":"changing_role","role":"decode"}   a worker; "ready" and "registered" follow again
//   {"event":"draining"}  {"event":"stopped"}
//   {"event":"failed","reason":"..."}       before a non-zero exit
//
// Thread contract: thread-safe, but ReserveStdout comes first. A closed stdout is ignored.
#ifndef BATON_COMMON_PROCESS_EVENTS_H_
#define BATON_COMMON_PROCESS_EVENTS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// Keeps stdout for events alone: from now on what anything else prints to stdout (UCX's warnings, for one) goes to
// stderr. Call once, at the top of main.
void ReserveStdout();

// Repeats are thinned to one line per percent and phase. `progress` in [0, 1].
void EmitLoading(absl::string_view phase, double progress);
void EmitReady(absl::string_view role, absl::string_view name, absl::string_view listen, absl::string_view http);
// Other events; an empty key leaves the second member out.
void EmitEvent(absl::string_view event, absl::string_view key = "", absl::string_view value = "");

}  // namespace baton

#endif  // BATON_COMMON_PROCESS_EVENTS_H_
