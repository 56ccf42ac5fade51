// Backend over the CUDA kernels, in the numerics class kF32 or kBf16 (products and attention on tensor cores, the rest as
// in kF32).
//
// Every pointer of a call is memory of its DeviceSpace, KvView::base too, but for spans, which are the host's and free
// when the call returns. Calls are launched on one stream and not waited for; copies of KV blocks have a stream of
// their own, and an event for each lot.
//
// Thread contract: Backend's. A failing device (or no memory left on it) ends the process with CUDA's message, as the
// results are lost; so does making one where DescribeDevice finds no device.
#ifndef BATON_KERNELS_CUDA_CUDA_BACKEND_H_
#define BATON_KERNELS_CUDA_CUDA_BACKEND_H_

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

class CudaBackend final : public Backend, public DeviceSpace {
 public:
  explicit CudaBackend(NumericsClass numerics = NumericsClass::kF32);
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
  CopyId StartUploads(std::span<const Copy> copies) override;
  CopyId StartDownloads(std::span<const Copy> copies) override;
  bool CopiesDone(CopyId id) override;
  void WaitCopies(CopyId id) override;
  absl::Status Pin(void* memory, size_t bytes) override;
  void Unpin(void* memory) override;
  absl::Status CheckLayout(const KvLayout& layout) const override;

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
  static void* Reserve(DeviceMemory* memory, size_t bytes);
  template <typename T>
  const T* Put(DeviceMemory* memory, std::span<const T> values) {
    void* const to = Reserve(memory, values.size_bytes());
    staging_.Send(to, values.data(), values.size_bytes(), stream_.get());
    return static_cast<const T*>(to);
  }
  // Copies from here on come after the calls so far; these are one lot.
  void BeginCopies();
  CopyId EndCopies();

  const NumericsClass numerics_;
  const bool wgmma_ = HasWgmma();
  OwnedStream stream_, copy_stream_;  // of calls; of copies
  Event calls_;                       // behind the calls before the latest copies
  std::deque<Started> copies_;        // not known to be done, in order
  std::vector<Event> spare_events_;
  CopyId last_copy_ = 0;
  Staging staging_;
  DeviceMemory rounded_, positions_, block_ids_, tables_, prefill_, decode_, records_;
  std::map<void*, DeviceMemory> allocated_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CUDA_BACKEND_H_
