// collectives.h on emulated devices. As with NCCL, a rank's stream stands at a gather until all have come to it: the first that
// is run there brings the others there, and then all bytes move at once.
#include "kernels/cuda/collectives.h"

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/emulator/host_memory.h"
#include "kernels/cuda/emulator/streams.h"

namespace baton::kernels::cuda {
namespace {

struct Gather {
  std::vector<float*> parts;
  size_t floats = 0;
  std::vector<cuda_emulator::Mark> marks;  // of each rank, before it
  bool done = false;

  void Run() {
    if (done) return;
    done = true;  // of the ranks that are brought here none comes to it
    for (size_t r = 0; r < marks.size(); ++r) cuda_emulator::RunTo(marks[r]);
    cuda_emulator::OpenAllMemory();
    for (size_t from = 0; from < parts.size(); ++from) {
      for (size_t to = 0; to < parts.size(); ++to) {
        if (to != from) std::memcpy(parts[to] + from * floats, parts[from] + from * floats, floats * sizeof(float));
      }
    }
    cuda_emulator::CloseAllMemory();
  }
};

class EmulatedCollectives final : public Collectives {
 public:
  absl::Status AllGather(std::span<float* const> parts, size_t floats, std::span<const Stream> streams) override {
    const auto gather = std::make_shared<Gather>();
    gather->parts.assign(parts.begin(), parts.end());
    gather->floats = floats;
    for (const Stream stream : streams) gather->marks.push_back(cuda_emulator::MarkOf(stream));
    const int device = cuda_emulator::CurrentDevice();
    for (size_t r = 0; r < streams.size(); ++r) {
      cuda_emulator::SetDevice(static_cast<int>(r));
      if (!KernelsMayUse(parts[r])) return absl::InternalError("a gather was given memory of another device");
      cuda_emulator::Enqueue(streams[r], [gather] { gather->Run(); });
    }
    cuda_emulator::SetDevice(device);
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(int num_ranks) {
  return std::make_unique<EmulatedCollectives>();
}

}  // namespace baton::kernels::cuda
