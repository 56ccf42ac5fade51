// One program to copy to a machine with a GPU: `selftest [FILE.json]` checks every kernel against the CPU's and times the
// hot ones. Needs the driver and nothing else; no network. Ends with 0 if all checks passed, 1 if not, 2 without a GPU.
#include <cstdio>
#include <fstream>

#include "kernels/cuda/device_memory.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/selftest.h"
#include "tests/gpu/selftest_libraries.h"

namespace baton::kernels::cuda {
namespace {

int Main(const char* json_file) {
  const absl::StatusOr<DeviceInfo> info = DescribeDevice();
  if (!info.ok()) {
    std::fprintf(stderr, "no GPU: %s\n", info.status().ToString().c_str());
    return 2;
  }
  nlohmann::json report = {{"device", info->name},
                           {"compute_capability", info->compute_capability},
                           {"memory_bytes", info->memory_bytes},
                           {"memory_bytes_per_second", info->memory_bytes_per_second},
                           {"tensor_flops_per_second", info->tensor_flops_per_second},
                           {"cublasLt", CublasLtVersion()},
                           {"nccl", NcclVersion()}};
  std::printf("%s\n", report.dump(2).c_str());
  int failed = 0;
  const auto take = [&](uint32_t seed, const std::vector<CheckResult>& checks) {
    for (const CheckResult& check : checks) {
      failed += !check.failure.empty();
      std::printf("%-6s %s %s\n", check.failure.empty() ? "ok" : "FAILED", check.name.c_str(), check.failure.c_str());
      report["checks"].push_back({{"name", check.name}, {"seed", seed}, {"failure", check.failure}});
    }
  };
  for (uint32_t seed = 1; seed <= 3; ++seed) take(seed, RunChecks(true, seed));
  take(0, CheckNccl());
  const absl::StatusOr<std::vector<Timing>> timings = RunTimings();
  if (!timings.ok()) std::printf("FAILED timings: %s\n", timings.status().ToString().c_str());
  std::printf("%-50s %10s %8s %8s %8s %8s\n", "", "us", "GB/s", "TFLOP/s", "% memory", "% tensor");
  const auto tell = [&](const Timing& timing) {
    const double rate = timing.bytes / timing.seconds;
    const double share = info->memory_bytes_per_second > 0 ? 100 * rate / info->memory_bytes_per_second : 0;
    const double flops = timing.flops / timing.seconds;
    const bool known = timing.tensor_cores && info->tensor_flops_per_second > 0;
    const double tensor_share = known ? 100 * flops / info->tensor_flops_per_second : 0;
    std::printf("%-50s %10.1f %8.0f %8.2f %8.1f %8.1f\n", timing.name.c_str(), timing.seconds * 1e6, rate / 1e9,
                flops / 1e12, share, tensor_share);
    report["timings"].push_back({{"name", timing.name}, {"seconds", timing.seconds}, {"bytes_per_second", rate},
                                 {"flops", flops}, {"memory_share_percent", share},
                                 {"tensor_share_percent", tensor_share}});
  };
  for (const Timing& timing : timings.ok() ? *timings : std::vector<Timing>()) tell(timing);
  // No worker uses it, so what it does not do is no failure.
  for (const LibraryProduct& product : MeasureCublasLt()) {
    const std::string& name = product.name;
    if (!product.failure.empty()) {
      std::printf("cuBLASLt %s: not measured: %s\n", name.c_str(), product.failure.c_str());
    } else if (product.different_rows.empty()) {
      std::printf("cuBLASLt %s: batch-invariant for 1 to 512 rows\n", name.c_str());
    } else {
      std::printf("cuBLASLt %s: not batch-invariant: %zu of 511 numbers of rows, from %d on, give other bits than 512 rows\n",
                  name.c_str(), product.different_rows.size(), product.different_rows.front());
    }
    report["cublasLt_products"].push_back(
        {{"name", name}, {"failure", product.failure}, {"different_rows", product.different_rows}});
    if (product.failure.empty()) {
      for (const Timing& timing : product.timings) tell(timing);
    }
  }
  if (json_file != nullptr) std::ofstream(json_file) << report.dump(2) << "\n";
  std::printf("%d checks failed\n", failed);
  return failed > 0 || !timings.ok() ? 1 : 0;
}

}  // namespace
}  // namespace baton::kernels::cuda

int main(int argc, char** argv) { return baton::kernels::cuda::Main(argc > 1 ? argv[1] : nullptr); }
