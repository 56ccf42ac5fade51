// One model over several GPUs of a process: a Backend and DeviceSpace whose calls go to a CudaBackend for each. Rank r is
// device r, and has some heads and some of the feed-forward's width: the division of Megatron-LM (arXiv:1909.08053, section 3),
// in which a layer has two sums over all ranks.
//
// Weights, by HostTensor::split:
//   kNone     whole on each rank
//   kRows     rank r has output features [r, r + 1) * rows / ranks, computes those columns of y, and leaves the others
//   kColumns  cut into `slices` of the inputs, of which rank r has [r, r + 1) * slices / ranks. Its products with them, and
//             their sums over 2, 4, ... neighbours, are the rank's own; then all ranks get each other's sums (Collectives) and
//             go on with the same tree (SumTree). So every y is the same balanced tree over the slices, whatever the number
//             of ranks: bits depend on `slices` alone, and workers with as many slices pair, whatever their ranks.
//
// Memory. An address from Allocate stands for one array on each rank. Uploads, sums and norms keep all ranks' equal; what kRows
// products write, and Rope, WriteKv, Attention and GatedActivation read, is equal in the rank's own columns only, and norms of
// single heads are computed for those of other ranks as well, for nobody. Download gives rank 0's. Blocks (AllocateBlocks) have
// the rank's own KV heads on each, in KvLayout's order; on the host, where transports see them, all heads. Copies of blocks put
// them together and take them apart: in KvLayout a rank's heads of a layer are one run of bytes for keys and one for values.
//
// One thread gives all ranks their work, in turn and without waiting. Passes of more than one rank are not recorded as graphs:
// it would take one for each device with the gathers between them, and whether NCCL takes part in that when one thread
// captures for several devices could not be tried. With one rank they are.
//
// What it takes and refuses by shapes alone is tensor_split.h's.
//
// Thread contract: Backend's. A device or a communicator that fails ends the process, as in CudaBackend.
#ifndef BATON_KERNELS_CUDA_TENSOR_PARALLEL_H_
#define BATON_KERNELS_CUDA_TENSOR_PARALLEL_H_

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"
#include "kernels/cuda/collectives.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

class TensorParallelBackend final : public Backend, public DeviceSpace {
 public:
  // INVALID_ARGUMENT for numbers that are not TensorParallel's, or more than kMaxTreeParts slices. FAILED_PRECONDITION: fewer
  // devices than ranks, or unlike ones. UNAVAILABLE: no device, or NCCL's message. The rest as CudaBackend's.
  static absl::StatusOr<std::unique_ptr<TensorParallelBackend>> Create(NumericsClass numerics, const TensorParallel& split,
                                                                       WeightStorage storage = WeightStorage::kOwnBits);
  ~TensorParallelBackend() override;

  std::string name() const override;  // "cuda", or "cuda/tp4"
  NumericsClass numerics() const override { return ranks_[0]->numerics(); }

  // FAILED_PRECONDITION: rows are no multiple of the ranks, or inputs none of 32 for each slice.
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) override;
  void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const override;  // of kNone
  // A product with a kColumns weight is alone, and has no bias.
  void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) override;
  void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
               int64_t y_stride) override;
  void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
            const RopeTable& table) override;
  void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               std::span<const SequenceChunk> chunks, const KvView& kv) override;
  void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks, const KvView& kv,
                 const AttentionParams& params, float* out, int64_t out_stride) override;
  void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m,
                       int dim) override;
  void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) override;

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::StatusOr<void*> AllocateBlocks(const KvLayout& layout, int64_t num_blocks) override;
  void Free(void* memory) override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  void CopyWithin(void* to, const void* from, size_t bytes) override;
  void Clear(void* to, size_t bytes) override;
  void Finish() override;
  // Of all ranks, each having no more than the one with the least; what PackedBytes tells is that of all, too.
  absl::StatusOr<uint64_t> FreeBytes() const override;
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackRows(const HostTensor& tensor) override;  // as kNone
  uint64_t PackedBytes(const HostTensor& tensor) const override;
  uint64_t PackedRowsBytes(const HostTensor& tensor) const override;
  void ReadRows(const WeightMatrix& weight, std::span<const int32_t> rows, float scale, float* out) override;  // of kNone
  int PassRows(const Pass& pass) const override;
  void RunPass(const Pass& pass, absl::FunctionRef<void()> calls) override;
  CopyId StartUploads(std::span<const Copy> copies) override { return StartCopies(copies, CopyDirection::kToDevice); }
  CopyId StartDownloads(std::span<const Copy> copies) override { return StartCopies(copies, CopyDirection::kFromDevice); }
  bool CopiesDone(CopyId id) override;
  void WaitCopies(CopyId id) override;
  absl::Status Pin(void* memory, size_t bytes) override;
  void Unpin(void* memory) override;
  // Null with several ranks: blocks have no one address then.
  absl::StatusOr<std::unique_ptr<DeviceLane>> CreateLane() override;
  // FAILED_PRECONDITION also when KV heads are no multiple of the ranks.
  absl::Status CheckLayout(const KvLayout& layout) const override;

 private:
  static void RequireThat(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "tensor parallelism: %s\n", what);
    std::abort();
  }
  // Memory behind one address.
  struct Region {
    size_t bytes = 0;  // of addresses
    std::vector<std::byte*> at;  // [rank]
    bool blocks = false;
    KvLayout layout;  // of blocks, with all heads
  };

  TensorParallelBackend(const TensorParallel& split, WeightStorage storage) : split_(split), storage_(storage) {}
  int num_ranks() const { return split_.ranks; }
  // call(rank), the thread's device being the rank's.
  template <typename Call>
  void OnDevices(Call call) const;
  // The same with the rank's backend: call(rank, backend).
  template <typename Call>
  void OnRanks(Call call) const;
  // The region that an address lies in, and how far from its begin on each rank that is. Ends the process if it is none of this
  // space's, or inside a block.
  const Region& RegionOf(const void* pointer, size_t* offset) const;
  // What the address stands for on a rank. Null for null.
  template <typename T>
  T* At(T* pointer, int rank) const;
  KvLayout LayoutOf(const KvLayout& layout) const;  // of a rank
  KvView ViewOf(const KvView& kv, int rank) const;
  absl::StatusOr<std::vector<std::byte*>> AllocateOnRanks(size_t bytes);
  void FreeOnRanks(const std::vector<std::byte*>& memory);
  void MultiplySlices(const float* x, int64_t x_stride, int m, const MatMulOutput& output);
  void RunPassFrom(int rank, const Pass& pass, absl::FunctionRef<void()> calls);
  CopyId StartCopies(std::span<const Copy> copies, CopyDirection direction);
  // How the rank's part of blocks, at `offset` on each rank, is copied from or to the host, where they are whole.
  StridedCopy BlocksOf(int rank, const Region& region, size_t offset, const void* host, size_t bytes,
                       CopyDirection direction) const;
  // How many bytes on each rank so many at the address are.
  size_t BytesOf(const void* pointer, size_t bytes) const;

  const TensorParallel split_;
  const WeightStorage storage_;
  std::vector<std::unique_ptr<CudaBackend>> ranks_;
  std::unique_ptr<Collectives> collectives_;  // null: one rank
  std::map<const std::byte*, Region> regions_;
  // Of kColumns products: on each rank its slices' results, then what is gathered.
  std::vector<std::byte*> parts_;
  size_t parts_floats_ = 0;
};

// With one rank the thread's device is left alone: it is that of all else in the process.
template <typename Call>
void TensorParallelBackend::OnDevices(Call call) const {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (num_ranks() > 1) RequireOk(UseDevice(rank));
    call(rank);
  }
  if (num_ranks() > 1) RequireOk(UseDevice(0));
}

template <typename Call>
void TensorParallelBackend::OnRanks(Call call) const {
  OnDevices([&](int rank) { call(rank, *ranks_[rank]); });
}

template <typename T>
T* TensorParallelBackend::At(T* pointer, int rank) const {
  if (pointer == nullptr || num_ranks() == 1) return pointer;
  size_t offset = 0;
  const Region& region = RegionOf(pointer, &offset);
  return reinterpret_cast<T*>(region.at[rank] + offset);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_TENSOR_PARALLEL_H_
