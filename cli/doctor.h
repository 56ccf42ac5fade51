// What `baton doctor` looks at. Each look gives lines: what was found, whether it is as it should be, and what to do
// next when it is not.
#ifndef BATON_CLI_DOCTOR_H_
#define BATON_CLI_DOCTOR_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/device_report.h"
#include "kvtransfer/ucx_memory.h"
#include "proto/cluster.pb.h"
#include "proto/config.pb.h"
#include "proto/inference.pb.h"

namespace baton::cli {

enum class Health {
  kGood,
  kAdvice,  // it works, and would work better otherwise
  kBad,
  kSkipped,  // could not be looked at
};

struct Finding {
  std::string name;
  Health health = Health::kGood;
  std::string detail;
  std::string next;  // what to do; not empty for kAdvice and kBad
};
using Findings = std::vector<Finding>;

// Pure: what figures and words mean. `soft` and `hard` as getrlimit gives them, infinity as the largest number.
Finding FileLimit(uint64_t soft, uint64_t hard);
Finding LockedMemoryLimit(uint64_t soft, bool has_rdma);
Finding SharedMemory(uint64_t total_bytes, uint64_t free_bytes);
Finding HugePages(absl::string_view transparent_hugepage_enabled);  // the text of that file
// A cluster's state: workers ready, refusals, ledgers, one finding each; fingerprints, layouts and numerics classes
// agree.
Findings ClusterFindings(const v1::ClusterStatus& status);
// What the hand-over of one request says of the transport.
Finding TransferFinding(const v1::Summary& summary);

// What the installed UCX can move by itself.
Finding UcxFinding(const absl::StatusOr<kvtransfer::UcxMemory>& memory);
// What there is for `isa: cuda`, which `config` may ask for. `module`: the NVIDIA driver's own version as the kernel tells it,
// empty: none is loaded.
Finding GpuFinding(const kernels::cuda::DeviceReport& report, absl::string_view module, const v1::Config& config);

// Look at this machine. `config` says which ports, model and key.
Findings MachineFindings(const v1::Config& config);
// Copies between two processes as the hand-over does (process_vm_readv). Call it before other threads start: it forks.
Finding CrossMemoryAttach();

std::string FormatFinding(const Finding& finding, bool color);
nlohmann::ordered_json FindingsToJson(const Findings& findings);
bool AllWell(const Findings& findings);  // nothing is kBad

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_H_
