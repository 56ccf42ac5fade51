// Looks at this machine.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/doctor.h"
#include "cli/inspect.h"
#include "cli/quantity.h"
#include "common/read_file.h"
#include "cli/settings.h"
#include "engine/available_memory.h"
#include "kernels/cpu/cpu_features.h"

namespace baton::cli {
namespace {

constexpr size_t kCopyBytes = 16 << 20;

uint64_t Limit(rlim_t value) { return value == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max() : value; }

bool HasRdma() {
  std::error_code ignored;
  const auto devices = std::filesystem::directory_iterator("/sys/class/infiniband", ignored);
  return !ignored && devices != std::filesystem::directory_iterator();
}

Finding Clock() {
  Finding finding{.name = "clock"};
  timex state = {};
  const int rc = ::adjtimex(&state);
  finding.detail = absl::StrCat(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()),
                                rc == TIME_ERROR ? ", not synchronised" : ", synchronised");
  if (rc == -1) {
    finding.health = Health::kSkipped;
  } else if (rc == TIME_ERROR) {
    finding.health = Health::kAdvice;
    finding.next = "run chrony or systemd-timesyncd; leases and deadlines do not need it, logs of several hosts do";
  }
  return finding;
}

Finding Memory() {
  const engine::AvailableMemory available = engine::ReadAvailableMemory();
  Finding finding{.name = "memory"};
  if (available.bytes == std::numeric_limits<int64_t>::max()) {
    finding.health = Health::kSkipped;
    finding.detail = "not known";
    return finding;
  }
  finding.detail = absl::StrCat(FormatBytes(static_cast<uint64_t>(std::max<int64_t>(available.bytes, 0)), 1),
                                " available, by ", available.source);
  if (available.bytes < int64_t{1} << 30) {
    finding.health = Health::kAdvice;
    finding.next = "free some; `baton plan FILE.gguf` says what a worker takes";
  }
  return finding;
}

Finding Processor(const v1::Config& config) {
  Finding finding{.name = "processor"};
  finding.detail = absl::StrCat(AvailableCores(), " cores; kernels: ", kernels::cpu::AvailableIsas(),
                                "; numerics class ", config.numerics());
  if (!kernels::cpu::CpuHasAvx2()) {
    finding.health = Health::kAdvice;
    finding.next = "the scalar kernels run; a processor with AVX2 is several times as fast (the tokens are the same)";
  }
  return finding;
}

Finding ModelFinding(const v1::Config& config) {
  Finding finding{.name = "model file"};
  if (!config.has_model()) {
    finding.health = Health::kSkipped;
    finding.detail = "none was named (--model FILE.gguf)";
    return finding;
  }
  const absl::StatusOr<Inspection> inspection = InspectModel(config.model());
  if (!inspection.ok()) {
    finding.health = Health::kBad;
    finding.detail = std::string(inspection.status().message());
    finding.next = "check the path, or fetch the file again (scripts/setup gets a small model)";
    return finding;
  }
  finding.detail = absl::StrCat(config.model(), ": ", inspection->config.architecture, ", ",
                                FormatBytes(inspection->file_bytes, 1), ", ", WithCommas(inspection->parameters),
                                " parameters, weights ", inspection->fingerprint.weights.substr(0, 12));
  return finding;
}

Finding KeyFinding(const v1::Config& config) {
  Finding finding{.name = "cluster key"};
  if (!config.has_cluster_key_file()) {
    finding.detail = "none was named; `baton up` makes its own";
    finding.health = Health::kSkipped;
    return finding;
  }
  const absl::StatusOr<std::string> key = ReadSmallFile(config.cluster_key_file(), 1 << 20);
  const auto permissions = std::filesystem::status(config.cluster_key_file()).permissions();
  const bool others = (permissions & (std::filesystem::perms::group_read | std::filesystem::perms::others_read)) !=
                      std::filesystem::perms::none;
  finding.detail = key.ok() ? absl::StrCat(config.cluster_key_file(), ", ", key->size(), " bytes",
                                           others ? ", readable by others" : "")
                            : std::string(key.status().message());
  if (!key.ok() || key->size() < 32) {
    finding.health = Health::kBad;
    finding.next = "openssl rand -hex 32 > FILE; chmod 600 FILE; the same file for every worker";
  } else if (others) {
    finding.health = Health::kAdvice;
    finding.next = absl::StrCat("chmod 600 ", config.cluster_key_file());
  }
  return finding;
}

// What the child of CrossMemoryAttach does: offers the address of its bytes and waits until the parent is done.
[[noreturn]] void OfferMemory(int to_parent, int from_parent) {
  char* bytes = new char[kCopyBytes];
  std::memset(bytes, 7, kCopyBytes);
  (void)!::write(to_parent, &bytes, sizeof(bytes));
  char done;
  (void)!::read(from_parent, &done, 1);
  ::_exit(0);
}

}  // namespace

Finding CrossMemoryAttach() {
  Finding finding{.name = "memory between processes"};
  int up[2], down[2];
  if (::pipe(up) != 0) return {finding.name, Health::kSkipped, std::strerror(errno), ""};
  if (::pipe(down) != 0) {
    ::close(up[0]);
    ::close(up[1]);
    return {finding.name, Health::kSkipped, std::strerror(errno), ""};
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(up[0]);
    ::close(down[1]);
    OfferMemory(up[1], down[0]);
  }
  ::close(up[1]);
  ::close(down[0]);
  char* remote_bytes = nullptr;
  const bool offered = child > 0 && ::read(up[0], &remote_bytes, sizeof(remote_bytes)) == sizeof(remote_bytes);
  std::vector<char> local_bytes(kCopyBytes);
  const iovec local{local_bytes.data(), kCopyBytes}, remote{remote_bytes, kCopyBytes};
  ssize_t copied = -1;
  int error = 0;
  absl::Duration best = absl::InfiniteDuration();  // of several: the first meets cold pages, any one a busy processor
  for (int i = 0; i < 8 && offered; ++i) {
    const absl::Time start = absl::Now();
    copied = ::process_vm_readv(child, &local, 1, &remote, 1, 0);
    error = errno;
    if (copied < 0) break;
    best = std::min(best, absl::Now() - start);
  }
  ::close(up[0]);
  ::close(down[1]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  if (copied == static_cast<ssize_t>(kCopyBytes) && local_bytes.back() == 7) {
    finding.detail =
        absl::StrFormat("CMA works, %.1f GB/s", static_cast<double>(kCopyBytes) / absl::ToDoubleSeconds(best) / 1e9);
    return finding;
  }
  finding.health = Health::kAdvice;
  finding.detail = absl::StrCat("CMA does not work: ", copied < 0 ? std::strerror(error) : "a short copy");
  finding.next =
      "KV goes through shared memory, with one more copy; allow process_vm_readv (containers: --cap-add=SYS_PTRACE; "
      "sysctl kernel.yama.ptrace_scope=0)";
  return finding;
}

Findings MachineFindings(const v1::Config& config) {
  Findings findings;
  findings.push_back(Processor(config));
  findings.push_back(Memory());
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    findings.push_back(FileLimit(Limit(limit.rlim_cur), Limit(limit.rlim_max)));
  }
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) findings.push_back(LockedMemoryLimit(Limit(limit.rlim_cur), HasRdma()));
  struct statvfs shm;
  if (::statvfs("/dev/shm", &shm) == 0) {
    findings.push_back(SharedMemory(uint64_t{shm.f_blocks} * shm.f_frsize, uint64_t{shm.f_bavail} * shm.f_frsize));
  } else {
    findings.push_back(SharedMemory(0, 0));
  }
  std::string enabled;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), enabled);
  findings.push_back(HugePages(enabled));
  findings.push_back(UcxFinding(kvtransfer::QueryUcxMemory()));
  const absl::StatusOr<std::string> module = ReadSmallFile("/sys/module/nvidia/version", 4096);
  findings.push_back(GpuFinding(kernels::cuda::ReportDevices(),
                                module.ok() ? absl::StripAsciiWhitespace(*module) : absl::string_view(), config));
  findings.push_back(Clock());
  findings.push_back(ModelFinding(config));
  findings.push_back(KeyFinding(config));
  return findings;
}

}  // namespace baton::cli
