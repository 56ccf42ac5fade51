// main() of a worker: loads the model, then serves one role after the other with it.
#ifndef BATON_WORKER_PROCESS_H_
#define BATON_WORKER_PROCESS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/worker_host.h"
#include "worker/parts.h"

namespace baton::worker {

// Builds what the role adds, serves until the host says otherwise, and takes all of it down again.
using ServeRole = absl::FunctionRef<absl::StatusOr<rpc::WorkerHost::ServeEnd>(const Parts& parts)>;

struct Roles {
  ServeRole prefill;
  ServeRole decode;
};

// `first`: "prefill" or "decode". Exit codes as rpc::WorkerMain.
int Main(absl::string_view first, const Roles& roles, int argc, char** argv);

}  // namespace baton::worker

#endif  // BATON_WORKER_PROCESS_H_
