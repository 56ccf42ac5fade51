// Backend over the CUDA kernels, in the numerics class kF32 or kBf16 (products and attention on tensor cores, the rest as
// in kF32).
//
// Every pointer of a call is memory of its DeviceSpace, KvView::base too, but for spans, which are the host's and free
// when the call returns. Calls are launched on one stream and not waited for; copies of KV blocks have a stream of
// their own, and an event for each lot. What the calls of a pass (RunPass) need of the host goes up once, before them.
//
// A pass whose sequences have one row each (a decode step) and that repeats (DeviceSpace::Pass) is launched as a graph: made
// for GraphRows of its rows, launched call by call when it is first met, which makes buffers and loads kernels, recorded the
// second time, and from then on one launch. Whenever device memory is freed, of the backend, of a weight or of the caller, all
// graphs go.
//
// Thread contract: Backend's. A failing device (or no memory left on it) ends the process with CUDA's message, as the
// results are lost; so does making one where DescribeDevice finds no device.
#ifndef BATON_KERNELS_CUDA_CUDA_BACKEND_H_
#define BATON_KERNELS_CUDA_CUDA_BACKEND_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pack_weights.h"
#include "kernels/cuda/pass_inputs.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

class CudaBackend final : public Backend, public DeviceSpace {
 public:
  // graphs: false launches each pass call by call, for its own rows; the results are the same. storage: kFp8 with kBf16 only.
  explicit CudaBackend(NumericsClass numerics = NumericsClass::kF32, bool graphs = true,
                       WeightStorage storage = WeightStorage::kOwnBits);
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  NumericsClass numerics() const override { return numerics_; }

  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) override;
  void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const override;
  void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) override;
  void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
               int64_t y_stride) override;
  void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
            const RopeTable& table) override;
  void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               std::span<const SequenceChunk> chunks, const KvView& kv) override;
  // head_dim is a multiple of 8 up to 256.
  void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks, const KvView& kv,
                 const AttentionParams& params, float* out, int64_t out_stride) override;
  void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m,
                       int dim) override;
  void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) override;

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  void CopyWithin(void* to, const void* from, size_t bytes) override;
  void Clear(void* to, size_t bytes) override;
  void Finish() override;
  absl::StatusOr<uint64_t> FreeBytes() const override { return FreeDeviceMemory(); }
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackRows(const HostTensor& tensor) override;
  uint64_t PackedBytes(const HostTensor& tensor) const override;
  uint64_t PackedRowsBytes(const HostTensor& tensor) const override;
  void ReadRows(const WeightMatrix& weight, std::span<const int32_t> rows, float scale, float* out) override;
  int PassRows(const Pass& pass) const override;
  void RunPass(const Pass& pass, absl::FunctionRef<void()> calls) override;
  CopyId StartUploads(std::span<const Copy> copies) override;
  CopyId StartDownloads(std::span<const Copy> copies) override;
  bool CopiesDone(CopyId id) override;
  void WaitCopies(CopyId id) override;
  absl::Status Pin(void* memory, size_t bytes) override;
  void Unpin(void* memory) override;
  absl::StatusOr<std::unique_ptr<DeviceLane>> CreateLane() override { return CudaLane::Create(); }
  absl::Status CheckLayout(const KvLayout& layout) const override;

  // StartUploads or StartDownloads of runs that lie apart.
  CopyId StartStridedCopies(std::span<const StridedCopy> copies, CopyDirection direction);
  Stream stream() const { return stream_.get(); }  // of the calls

 private:
  bool OnTensorCores(const KvLayout& layout) const {
    return numerics_ == NumericsClass::kBf16 && TensorCoresAttend(layout);
  }
  // What the host gives a call goes to the device from here: parts of pinned memory, used in turn.
  class Staging {
   public:
    void Send(void* to, const void* from, size_t bytes, Stream stream);

   private:
    struct Part {
      PinnedMemory memory;
      Event sent;
    };
    void Next(Stream stream);
    Part parts_[4];
    size_t part_ = 0, filled_ = 0;  // the part in use, and its bytes
  };
  struct Started {
    CopyId id;
    Event done;
  };

  // Device memory that grows. Its contents last until the next call: what that writes is launched behind what reads it.
  // While a pass is recorded it does not grow, and the recording is for nothing.
  void* Reserve(DeviceMemory* memory, size_t bytes);
  // Puts bytes of the host's there. Not while a pass is recorded.
  const void* Put(DeviceMemory* memory, std::span<const std::byte> bytes);
  bool Repeats(const Pass& pass) const { return graphs_ && pass.repeats != nullptr && OnlyDecodes(pass.chunks); }
  // Sees to it that the inputs of these chunks are on the device: the pass's, or else a call's own. Gives the number of the
  // shape, if any. False: not while recording.
  bool EnsureInputs(std::span<const SequenceChunk> chunks, const KvView& kv, const AttentionShape* shape, size_t* index);
  void PutInputs(std::span<const SequenceChunk> chunks, int block_size, int rows, int piece_bucket);
  template <typename T>
  const T* Input(size_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(inputs_memory_.data()) + offset);
  }
  void RunRepeating(const GraphKey& key, absl::FunctionRef<void()> calls);
  // None: it has to be launched call by call.
  std::optional<Graph> Record(absl::FunctionRef<void()> calls);
  // Of what was given to the stream. While a pass is recorded the end of that tells.
  void RequireGiven(const absl::Status& status) const;
  void DropStaleGraphs();
  void GiveUpGraphs(const absl::Status& why);
  // Copies from here on come after the calls so far; these are one lot.
  void BeginCopies();
  CopyId EndCopies();

  const NumericsClass numerics_;
  const WeightStorage storage_;
  const bool wgmma_ = HasWgmma();
  OwnedStream stream_, copy_stream_;  // of calls; of copies
  Event calls_;                       // behind the calls before the latest copies
  std::deque<Started> copies_;        // not known to be done, in order
  std::vector<Event> spare_events_;
  CopyId last_copy_ = 0;
  Staging staging_;
  DeviceMemory rounded_, positions_, row_ids_, records_;
  std::map<void*, DeviceMemory> allocated_;

  // The pass that runs; null: none, calls are on their own. Its PassRows and PieceBucket, as they were when it began.
  const Pass* pass_ = nullptr;
  int pass_rows_ = 0, pass_pieces_ = 0;
  std::vector<AttentionShape> shapes_;  // of all calls so far: their plans are in every pass's inputs
  PassInputs inputs_;
  DeviceMemory inputs_memory_;
  bool inputs_are_the_passs_ = false;

  bool graphs_;  // whether passes become graphs
  // How often memory was freed that a graph may name; weights, which may outlive this, count too.
  const std::shared_ptr<uint64_t> frees_ = std::make_shared<uint64_t>(0);
  uint64_t cached_at_ = 0;  // frees_ of the graphs in cache_
  bool recording_ = false, recorded_for_nothing_ = false;
  GraphCache cache_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CUDA_BACKEND_H_
