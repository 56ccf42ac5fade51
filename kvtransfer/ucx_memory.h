// What memory the installed UCX can move by itself. The transport here is given the host's only (docs/TRANSPORT.md).
#ifndef BATON_KVTRANSFER_UCX_MEMORY_H_
#define BATON_KVTRANSFER_UCX_MEMORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton::kvtransfer {

struct UcxMemory {
  std::string version;        // "1.13.1"
  bool cuda = false;          // memory of NVIDIA's GPUs: UCX was built with it, and finds a driver
};
// Makes a context with all that UCX has and ends it again: some tens of milliseconds. UNAVAILABLE: UCX.
absl::StatusOr<UcxMemory> QueryUcxMemory();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_MEMORY_H_
