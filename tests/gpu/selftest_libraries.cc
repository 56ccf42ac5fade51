#include "tests/gpu/selftest_libraries.h"

#include <dlfcn.h>
#include <nccl.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {
namespace {

template <typename Fn>
Fn* Symbol(void* library, const char* name) {
  return reinterpret_cast<Fn*>(dlsym(library, name));
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
  void* const library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "absent";
  auto* const version = Symbol<size_t()>(library, "cublasLtGetVersion");
  return version != nullptr ? absl::StrCat(version()) : "unknown";
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
