#include "cli/doctor.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"
#include "cli/quantity.h"
#include "cli/status_print.h"

namespace baton::cli {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

std::string Limit(uint64_t value) { return value == kUnlimited ? "unlimited" : WithCommas(value); }

std::string Short(absl::string_view hex) { return Printable(hex.substr(0, 12)); }

// "" when `worker` may hand over within this cluster, else the field that differs.
std::string Difference(const v1::ModelFingerprint& a, const v1::ModelFingerprint& b) {
  if (a.weights() != b.weights()) return absl::StrCat("weights ", Short(a.weights()), " and ", Short(b.weights()));
  if (a.config() != b.config())
    return absl::StrCat("model configuration ", Short(a.config()), " and ", Short(b.config()));
  if (a.tokenizer() != b.tokenizer())
    return absl::StrCat("tokenizer ", Short(a.tokenizer()), " and ", Short(b.tokenizer()));
  if (a.numerics_class() != b.numerics_class()) {
    return absl::StrCat("numerics class ", Short(a.numerics_class()), " and ", Short(b.numerics_class()));
  }
  return "";
}

std::string Difference(const v1::KvLayout& a, const v1::KvLayout& b) {
  if (a.version() != b.version()) return absl::StrCat("KV layout version ", a.version(), " and ", b.version());
  if (a.dtype() != b.dtype()) return absl::StrCat("KV type ", Printable(a.dtype()), " and ", Printable(b.dtype()));
  if (a.block_size() != b.block_size()) return absl::StrCat("block size ", a.block_size(), " and ", b.block_size());
  if (a.num_layers() != b.num_layers() || a.num_kv_heads() != b.num_kv_heads() || a.head_dim() != b.head_dim()) {
    return "KV shapes";
  }
  return "";
}

Finding Agreement(const v1::ClusterStatus& status) {
  Finding finding{.name = "model of all workers"};
  const v1::WorkerInfo& first = status.workers(0).info();
  for (const v1::ClusterWorker& worker : status.workers()) {
    const v1::WorkerInfo& info = worker.info();
    std::string difference = Difference(first.fingerprint(), info.fingerprint());
    if (difference.empty()) difference = Difference(first.layout(), info.layout());
    if (difference.empty()) continue;
    finding.health = Health::kBad;
    finding.detail = absl::StrCat(Printable(first.name()), " and ", Printable(info.name()), " differ: ", difference);
    finding.next = "start both with the same model file and the same settings (baton config dump --role worker)";
    return finding;
  }
  finding.detail =
      absl::StrCat(Printable(first.model_name()), ", weights ", Short(first.fingerprint().weights()), ", numerics ",
                   Printable(first.fingerprint().numerics_class()), ", KV ", Printable(first.layout().dtype()),
                   ", layout ", first.layout().version(), ": ", status.workers_size(), " alike");
  return finding;
}

Finding WorkerFinding(const v1::ClusterWorker& worker) {
  Finding finding{.name = absl::StrCat("worker ", Printable(worker.info().name()))};
  finding.detail =
      absl::StrCat(Printable(worker.state()), ", ", Printable(worker.info().backend()), ", ", worker.load().running(),
                   " running, ", worker.load().waiting(), " waiting, heard of ", worker.heartbeat_age_ms(), " ms ago");
  if (worker.state() == "lost") {
    finding.health = Health::kBad;
    finding.next = absl::StrCat("see whether it runs (pid ", worker.info().pid(), ") and what its log says");
  } else if (worker.state() == "warming") {
    finding.health = Health::kAdvice;
    finding.next = "it gets requests once a generation through it has passed; if that takes long, the router's log says why";
  } else if (worker.state() != "ready") {
    finding.health = Health::kAdvice;
    finding.next = "wait until it has drained, or start another worker";
  } else if (!LedgerAddsUp(worker.load().ledger())) {
    finding.health = Health::kBad;
    absl::StrAppend(&finding.detail, "; its KV blocks do not add up");
    finding.next = "keep its log and restart it; this is a defect";
  }
  return finding;
}

}  // namespace

Finding FileLimit(uint64_t soft, uint64_t hard) {
  Finding finding{.name = "open files (ulimit -n)", .detail = absl::StrCat(Limit(soft), ", at most ", Limit(hard))};
  // A router holds a connection for each client, some for each worker.
  if (soft >= 4096) return finding;
  finding.health = soft >= 1024 ? Health::kAdvice : Health::kBad;
  finding.next =
      absl::StrCat("ulimit -n ", std::min<uint64_t>(hard, 65536), "  before starting; systemd: LimitNOFILE=65536");
  return finding;
}

Finding LockedMemoryLimit(uint64_t soft, bool has_rdma) {
  Finding finding{.name = "locked memory (ulimit -l)"};
  finding.detail = soft == kUnlimited ? "unlimited" : FormatBytes(soft, 1);
  if (!has_rdma) {
    absl::StrAppend(&finding.detail, "; only RDMA needs more, and there is no RDMA device");
  } else if (soft != kUnlimited) {
    finding.health = Health::kBad;
    finding.next = "ulimit -l unlimited  before starting; systemd: LimitMEMLOCK=infinity (RDMA pins the KV pool)";
  }
  return finding;
}

Finding SharedMemory(uint64_t total_bytes, uint64_t free_bytes) {
  Finding finding{.name = "shared memory (/dev/shm)"};
  finding.detail = absl::StrCat(FormatBytes(free_bytes, 1), " of ", FormatBytes(total_bytes, 1), " free");
  // UCX keeps its queues there, some MB for each connection between two workers.
  if (free_bytes >= uint64_t{256} << 20) return finding;
  finding.health = free_bytes >= uint64_t{32} << 20 ? Health::kAdvice : Health::kBad;
  finding.next = "mount -o remount,size=1G /dev/shm; a container: --shm-size=1g, or a Memory emptyDir at /dev/shm";
  return finding;
}

Finding HugePages(absl::string_view enabled) {
  Finding finding{.name = "transparent huge pages"};
  if (enabled.empty()) {
    finding.health = Health::kSkipped;
    finding.detail = "this kernel does not tell";
    return finding;
  }
  const bool never = absl::StrContains(enabled, "[never]");
  finding.detail = absl::StrContains(enabled, "[always]")    ? "always"
                   : absl::StrContains(enabled, "[madvise]") ? "madvise: for weights and KV, which ask for them"
                                                             : "never";
  if (!never) return finding;
  finding.health = Health::kAdvice;
  finding.next = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled  (as root): fewer TLB misses";
  return finding;
}

Finding UcxFinding(const absl::StatusOr<kvtransfer::UcxMemory>& memory) {
  Finding finding{.name = "UCX"};
  if (!memory.ok()) {
    finding.health = Health::kBad;
    finding.detail = std::string(memory.status().message());
    finding.next = "install libucx0, or start workers with --kv-transport=grpc";
    return finding;
  }
  finding.detail = absl::StrCat(memory->version, memory->cuda ? ", has GPU memory, which is not used"
                                                              : ", has no GPU memory",
                                ": KV on a GPU goes over UCX by pinned memory of the host");
  return finding;
}

Finding GpuFinding(const kernels::cuda::DeviceReport& report, absl::string_view module, const v1::Config& config) {
  Finding finding{.name = "GPUs"};
  const bool wanted = config.isa() == "cuda";
  const auto or_none = [](absl::string_view text) { return text.empty() ? absl::string_view("none") : text; };
  const std::string driver =
      module.empty() ? "no NVIDIA driver is loaded"
                     : absl::StrCat("NVIDIA driver ", module, report.driver.empty() ? "" : ", for CUDA ", report.driver);
  if (!report.built_with_cuda) {
    finding.health = wanted ? Health::kBad : Health::kSkipped;
    finding.detail = absl::StrCat("this build has no CUDA; ", driver);
    if (wanted) finding.next = "bazel build --config=cuda, the workers too, or leave isa away";
    return finding;
  }
  finding.detail =
      absl::StrCat("built with CUDA ", or_none(report.runtime), ", NCCL ", or_none(report.nccl), "; ", driver, "; ");
  // Alike ones together.
  size_t same = 0;
  for (size_t i = 0; i < report.devices.size(); i += same) {
    const kernels::cuda::DeviceReport::Device& device = report.devices[i];
    for (same = 1; i + same < report.devices.size() && report.devices[i + same].name == device.name;) ++same;
    absl::StrAppend(&finding.detail, i == 0 ? "" : ", ", same, " x ", device.name, " (compute capability ",
                    device.compute_capability / 10, ".", device.compute_capability % 10, ", ",
                    FormatBytes(device.memory_bytes, 0), ")");
  }
  if (report.devices.empty()) {
    absl::StrAppend(&finding.detail, "no GPU", report.no_devices.empty() ? "" : ": ", report.no_devices);
    finding.health = wanted ? Health::kBad : Health::kSkipped;
    if (wanted) finding.next = "see what nvidia-smi says and CUDA_VISIBLE_DEVICES is; a container: --gpus all";
  } else if (wanted && report.devices.size() < config.tensor_parallel()) {
    finding.health = Health::kBad;
    finding.next = absl::StrCat("tensor_parallel is ", config.tensor_parallel(), ": let the worker see as many GPUs "
                                "(CUDA_VISIBLE_DEVICES), or lower it");
  }
  return finding;
}

Findings ClusterFindings(const v1::ClusterStatus& status) {
  Findings findings;
  int ready_prefill = 0, ready_decode = 0;
  bool any_prefill = status.workers().empty();  // decode workers can compute prompts too: a cluster may have only them
  for (const v1::ClusterWorker& worker : status.workers()) {
    findings.push_back(WorkerFinding(worker));
    any_prefill |= worker.info().role() == "prefill";
    if (worker.state() != "ready") continue;
    ready_prefill += worker.info().role() == "prefill";
    ready_decode += worker.info().role() == "decode";
  }
  Finding pools{.name = "pools", .detail = absl::StrCat(ready_prefill, " prefill and ", ready_decode, " decode ready")};
  if ((ready_prefill == 0 && any_prefill) || ready_decode == 0) {
    pools.health = Health::kBad;
    pools.next = absl::StrCat("start a ", ready_decode == 0 ? "decode" : "prefill",
                              " worker with --router set to this router's address, or use `baton up`");
  }
  findings.insert(findings.begin(), std::move(pools));
  for (const std::string& refusal : status.refused()) {
    findings.push_back({.name = "refused worker",
                        .health = Health::kBad,
                        .detail = Printable(refusal),
                        .next = "start it with the cluster's model file and settings"});
  }
  if (!status.workers().empty()) findings.push_back(Agreement(status));
  return findings;
}

Finding TransferFinding(const v1::Summary& summary) {
  Finding finding{.name = "KV hand-over"};
  const v1::KvSummary& kv = summary.kv();
  if (kv.bytes() == 0) {
    finding.health = Health::kSkipped;
    finding.detail = "the trial request needed none";
    return finding;
  }
  const double ms = summary.timings().transfer_ms();
  finding.detail =
      absl::StrCat(Printable(kv.transport()), kv.detail().empty() ? "" : " ", Printable(kv.detail()), ": ",
                   FormatBytes(kv.bytes(), 1), " in ", absl::StrFormat("%.2f ms", ms),
                   ms > 0 ? absl::StrFormat(", %.2f GB/s", static_cast<double>(kv.bytes()) / ms / 1e6) : "", ", from ",
                   Printable(summary.prefill_worker()), " to ", Printable(summary.decode_worker()));
  // Shared memory without CMA copies twice; TCP through the kernel's stack more often.
  if (kv.transport() == "ucx" && absl::StrContains(kv.detail(), "tcp")) {
    finding.health = Health::kAdvice;
    finding.next = "workers of one host: share /dev/shm and the process namespace (containers: --ipc=host --pid=host)";
  }
  return finding;
}

std::string FormatFinding(const Finding& finding, bool color) {
  static constexpr const char* kMarks[] = {"ok  ", "hint", "BAD ", "-   "};
  static constexpr const char* kColors[] = {"\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"};
  const auto health = static_cast<size_t>(finding.health);
  std::string line = absl::StrFormat("%s%s%s  %-26s %s\n", color ? kColors[health] : "", kMarks[health],
                                     color ? "\x1b[0m" : "", finding.name, Printable(finding.detail));
  if (!finding.next.empty()) absl::StrAppend(&line, "      next: ", finding.next, "\n");
  return line;
}

nlohmann::ordered_json FindingsToJson(const Findings& findings) {
  static constexpr const char* kNames[] = {"good", "advice", "bad", "skipped"};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    list.push_back({{"name", ToUtf8(f.name)},
                    {"health", kNames[static_cast<size_t>(f.health)]},
                    {"detail", ToUtf8(f.detail)},
                    {"next", ToUtf8(f.next)}});
  }
  return {{"ok", AllWell(findings)}, {"findings", std::move(list)}};
}

bool AllWell(const Findings& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.health == Health::kBad; });
}

}  // namespace baton::cli
