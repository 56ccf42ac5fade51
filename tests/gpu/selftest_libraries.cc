#include "tests/gpu/selftest_libraries.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {
namespace {

template <typename Fn>
Fn* Symbol(void* library, const char* name) {
  return reinterpret_cast<Fn*>(dlsym(library, name));
}

void* CublasLt() {
  static void* const library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// The calls that are used; the header's Init functions are inline and call the ones named so.
#define CUBLASLT_CALL(member, name) decltype(&name) member = Symbol<decltype(name)>(CublasLt(), #name)
struct CublasLtCalls {
  CUBLASLT_CALL(create, cublasLtCreate);
  CUBLASLT_CALL(destroy, cublasLtDestroy);
  CUBLASLT_CALL(desc_init, cublasLtMatmulDescInit_internal);
  CUBLASLT_CALL(desc_set, cublasLtMatmulDescSetAttribute);
  CUBLASLT_CALL(layout_init, cublasLtMatrixLayoutInit_internal);
  CUBLASLT_CALL(preference_init, cublasLtMatmulPreferenceInit_internal);
  CUBLASLT_CALL(preference_set, cublasLtMatmulPreferenceSetAttribute);
  CUBLASLT_CALL(choose, cublasLtMatmulAlgoGetHeuristic);
  CUBLASLT_CALL(multiply, cublasLtMatmul);
  CUBLASLT_CALL(status_string, cublasLtGetStatusString);
  bool complete() const {
    return create && destroy && desc_init && desc_set && layout_init && preference_init && preference_set && choose &&
           multiply && status_string;
  }
};
#undef CUBLASLT_CALL

// y[m, outputs] = x[m, inputs] * weight[outputs, inputs]^T, row-major, by what the library chooses for m.
class CublasLtMatMul {
 public:
  static constexpr size_t kWorkspaceBytes = 32 << 20;

  CublasLtMatMul(const CublasLtCalls& calls, int64_t outputs, int64_t inputs)
      : calls_(calls), outputs_(outputs), inputs_(inputs) {
    Keep(calls_.create(&handle_), "cublasLtCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Keep(calls_.desc_init(&product_, sizeof product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    Keep(calls_.desc_set(&product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
         "cublasLtMatmulDescSetAttribute");
    Keep(calls_.preference_init(&preference_, sizeof preference_), "cublasLtMatmulPreferenceInit");
    Keep(calls_.preference_set(&preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                               sizeof kWorkspaceBytes),
         "cublasLtMatmulPreferenceSetAttribute");
  }
  CublasLtMatMul(const CublasLtMatMul&) = delete;
  ~CublasLtMatMul() {
    if (handle_ != nullptr) calls_.destroy(handle_);
  }

  const std::string& failure() const { return failure_; }
  void Choose(int m) {
    // The library's matrices are column-major, so each of these is the transpose of ours.
    Keep(calls_.layout_init(&weight_, sizeof weight_, CUDA_R_16BF, inputs_, outputs_, inputs_), "cublasLtMatrixLayoutInit");
    Keep(calls_.layout_init(&x_, sizeof x_, CUDA_R_16BF, inputs_, m, inputs_), "cublasLtMatrixLayoutInit");
    Keep(calls_.layout_init(&y_, sizeof y_, CUDA_R_32F, outputs_, m, outputs_), "cublasLtMatrixLayoutInit");
    if (!failure_.empty()) return;
    int found = 0;
    Keep(calls_.choose(handle_, &product_, &weight_, &x_, &y_, &y_, &preference_, 1, &chosen_, &found),
         "cublasLtMatmulAlgoGetHeuristic");
    if (failure_.empty() && found == 0) failure_ = absl::StrCat("no algorithm for ", m, " rows");
  }
  // For the m that was chosen for.
  void Run(const void* weight, const void* x, float* y, void* workspace) {
    if (!failure_.empty()) return;
    const float one = 1, zero = 0;
    Keep(calls_.multiply(handle_, &product_, &one, weight, &weight_, x, &x_, &zero, y, &y_, y, &y_, &chosen_.algo, workspace,
                         kWorkspaceBytes, nullptr),
         "cublasLtMatmul");
  }

 private:
  void Keep(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS && failure_.empty()) failure_ = absl::StrCat(call, ": ", calls_.status_string(status));
  }
  const CublasLtCalls& calls_;
  const int64_t outputs_, inputs_;
  std::string failure_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t product_ = {};
  cublasLtMatrixLayoutOpaque_t weight_ = {}, x_ = {}, y_ = {};
  cublasLtMatmulPreferenceOpaque_t preference_ = {};
  cublasLtMatmulHeuristicResult_t chosen_ = {};
};

// bfloat16 in [-1, 1), by seed, quickly.
std::vector<uint16_t> RandomBf16(size_t n, uint64_t seed) {
  std::vector<uint16_t> values(n);
  for (uint16_t& value : values) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    const float f = static_cast<float>(static_cast<int64_t>(seed) >> 40) * 0x1p-23f;
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    value = static_cast<uint16_t>(bits >> 16);
  }
  return values;
}

void Measure(const CublasLtCalls& calls, int64_t outputs, int64_t inputs, LibraryProduct* product) {
  constexpr int kMost = 512;
  CublasLtMatMul matmul(calls, outputs, inputs);
  const std::vector<uint16_t> weights = RandomBf16(outputs * inputs, 1), rows = RandomBf16(kMost * inputs, 2);
  std::vector<DeviceMemory> arrays;
  for (const size_t bytes : {weights.size() * 2, rows.size() * 2, outputs * kMost * sizeof(float),
                             CublasLtMatMul::kWorkspaceBytes}) {
    absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(bytes);
    if (!memory.ok()) {
      product->failure = memory.status().ToString();
      return;
    }
    arrays.push_back(*std::move(memory));
  }
  float* const y = static_cast<float*>(arrays[2].data());
  absl::Status status = CopyToDevice(arrays[0].data(), weights.data(), weights.size() * 2, nullptr);
  if (status.ok()) status = CopyToDevice(arrays[1].data(), rows.data(), rows.size() * 2, nullptr);
  const auto run = [&](int m) {
    matmul.Choose(m);
    matmul.Run(arrays[0].data(), arrays[1].data(), y, arrays[3].data());
  };
  const auto row = [&](int r) {
    std::vector<float> values(outputs);
    if (status.ok()) status = CopyFromDevice(values.data(), y + r * outputs, outputs * sizeof(float), nullptr);
    return values;
  };
  run(kMost);
  std::vector<std::vector<float>> want;
  for (int r = 0; r < kMost; ++r) want.push_back(row(r));
  for (int m = 1; m < kMost && status.ok() && matmul.failure().empty(); ++m) {
    run(m);
    for (const int r : {0, m / 2, m - 1}) {
      if (std::memcmp(row(r).data(), want[r].data(), outputs * sizeof(float)) == 0) continue;
      product->different_rows.push_back(m);
      break;
    }
  }
  for (const int m : {1, 8, 64, kMost}) {
    constexpr int kCalls = 20;
    run(m);
    if (status.ok()) status = Synchronize(nullptr);
    const absl::Time start = absl::Now();
    for (int i = 0; i < kCalls; ++i) matmul.Run(arrays[0].data(), arrays[1].data(), y, arrays[3].data());
    if (status.ok()) status = Synchronize(nullptr);
    product->timings.push_back({.name = absl::StrCat("cuBLASLt BF16 ", product->name, ", ", m, " rows"),
                                .seconds = absl::ToDoubleSeconds(absl::Now() - start) / kCalls,
                                .bytes = 2.0 * static_cast<double>(outputs * inputs),
                                .flops = 2.0 * static_cast<double>(outputs * inputs) * m,
                                .tensor_cores = true});
  }
  product->failure = status.ok() ? matmul.failure() : status.ToString();
}

void* Nccl() {
  static void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// The calls that are used, with the types of nccl.h.
struct NcclCalls {
  decltype(&ncclGetUniqueId) get_unique_id = Symbol<decltype(ncclGetUniqueId)>(Nccl(), "ncclGetUniqueId");
  decltype(&ncclCommInitRank) init_rank = Symbol<decltype(ncclCommInitRank)>(Nccl(), "ncclCommInitRank");
  decltype(&ncclGroupStart) group_start = Symbol<decltype(ncclGroupStart)>(Nccl(), "ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = Symbol<decltype(ncclGroupEnd)>(Nccl(), "ncclGroupEnd");
  decltype(&ncclSend) send = Symbol<decltype(ncclSend)>(Nccl(), "ncclSend");
  decltype(&ncclRecv) recv = Symbol<decltype(ncclRecv)>(Nccl(), "ncclRecv");
  decltype(&ncclCommDestroy) destroy = Symbol<decltype(ncclCommDestroy)>(Nccl(), "ncclCommDestroy");
  decltype(&ncclGetErrorString) error_string = Symbol<decltype(ncclGetErrorString)>(Nccl(), "ncclGetErrorString");

  bool complete() const {
    return get_unique_id && init_rank && group_start && group_end && send && recv && destroy && error_string;
  }
};

std::string SendToSelf(const NcclCalls& nccl) {
  constexpr size_t kBytes = 1 << 20;
  std::vector<uint8_t> sent(kBytes);
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  absl::StatusOr<DeviceMemory> from = DeviceMemory::Allocate(kBytes), to = DeviceMemory::Allocate(kBytes);
  if (!from.ok() || !to.ok()) return (from.ok() ? to : from).status().ToString();
  if (absl::Status status = CopyToDevice(from->data(), sent.data(), kBytes, nullptr); !status.ok()) {
    return status.ToString();
  }
  std::string failure;
  const auto ok = [&](ncclResult_t result, const char* call) {
    if (result != ncclSuccess && failure.empty()) failure = absl::StrCat(call, ": ", nccl.error_string(result));
    return failure.empty();
  };
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  if (!ok(nccl.get_unique_id(&id), "ncclGetUniqueId") || !ok(nccl.init_rank(&comm, 1, id, 0), "ncclCommInitRank")) {
    return failure;
  }
  ok(nccl.group_start(), "ncclGroupStart");
  ok(nccl.send(from->data(), kBytes, ncclUint8, 0, comm, nullptr), "ncclSend");
  ok(nccl.recv(to->data(), kBytes, ncclUint8, 0, comm, nullptr), "ncclRecv");
  ok(nccl.group_end(), "ncclGroupEnd");
  std::vector<uint8_t> received(kBytes);
  const absl::Status status = CopyFromDevice(received.data(), to->data(), kBytes, nullptr);
  ok(nccl.destroy(comm), "ncclCommDestroy");
  if (!failure.empty()) return failure;
  if (!status.ok()) return status.ToString();
  return received == sent ? "" : "other bytes came than were sent";
}

}  // namespace

std::string CublasLtVersion() {
  if (CublasLt() == nullptr) return "absent";
  auto* const version = Symbol<decltype(cublasLtGetVersion)>(CublasLt(), "cublasLtGetVersion");
  return version != nullptr ? absl::StrCat(version()) : "unknown";
}

std::vector<LibraryProduct> MeasureCublasLt() {
  if (CublasLt() == nullptr) return {};
  const CublasLtCalls calls;
  std::vector<LibraryProduct> products;
  for (const auto& [outputs, inputs] : {std::pair{4096, 4096}, {28672, 4096}, {4096, 14336}}) {
    products.push_back({.name = absl::StrCat(outputs, " x ", inputs)});
    if (calls.complete()) {
      Measure(calls, outputs, inputs, &products.back());
    } else {
      products.back().failure = "the library lacks a call";
    }
  }
  return products;
}

std::string NcclVersion() {
  if (Nccl() == nullptr) return "absent";
  auto* const get = Symbol<decltype(ncclGetVersion)>(Nccl(), "ncclGetVersion");
  int version = 0;
  return get != nullptr && get(&version) == ncclSuccess ? absl::StrCat(version) : "unknown";
}

std::vector<CheckResult> CheckNccl() {
  if (Nccl() == nullptr) return {};
  const NcclCalls nccl;
  if (!nccl.complete()) return {{"nccl, one rank to itself", "the library lacks a call"}};
  return {{"nccl, one rank to itself", SendToSelf(nccl)}};
}

}  // namespace baton::kernels::cuda
