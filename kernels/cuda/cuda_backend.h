// Backend over the CUDA kernels, in the numerics class kF32.
//
// Every pointer of a call is memory of its DeviceSpace, but for spans, which are the host's, and KvView::base, which is host
// memory that was shared with the device (ShareHost). Each call waits for its kernels.
//
// Thread contract: Backend's. A failing device (or no memory left on it) ends the process with CUDA's message, as the
// results are lost.
#ifndef BATON_KERNELS_CUDA_CUDA_BACKEND_H_
#define BATON_KERNELS_CUDA_CUDA_BACKEND_H_

#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

class CudaBackend final : public Backend, public DeviceSpace {
 public:
  std::string name() const override { return "cuda"; }
  NumericsClass numerics() const override { return NumericsClass::kF32; }

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
  absl::Status ShareHost(void* memory, size_t bytes) override;
  void Unshare(void* memory) override;
  absl::Status CheckLayout(const KvLayout& layout) const override;

 private:
  // Device memory that grows; its contents last until the next call.
  class Buffer {
   public:
    void* Reserve(size_t bytes);
    template <typename T>
    const T* Upload(std::span<const T> values) {
      return static_cast<const T*>(UploadBytes(values.data(), values.size_bytes()));
    }

   private:
    const void* UploadBytes(const void* data, size_t bytes);
    DeviceMemory memory_;
  };

  Buffer positions_, block_ids_, tables_, prefill_, decode_, records_;
  std::map<void*, DeviceMemory> allocated_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CUDA_BACKEND_H_
