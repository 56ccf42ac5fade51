// The CPU's plain f32 backend with the weights that a GPU has in FP8.
#ifndef BATON_TESTS_GPU_FP8_REFERENCE_H_
#define BATON_TESTS_GPU_FP8_REFERENCE_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/pack_weights.h"

namespace baton::kernels::cuda {

class Fp8Reference final : public Backend {
 public:
  std::string name() const override { return cpu_->name(); }
  NumericsClass numerics() const override { return cpu_->numerics(); }
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) override {
    const PackedWeights packed = PackForDevice(tensor, WeightStorage::kFp8);
    if (packed.dtype != kE4m3) return cpu_->PackWeights(tensor);
    std::vector<float> values(tensor.rows * tensor.cols);
    for (int64_t r = 0; r < tensor.rows; ++r) UnpackE4m3Row(packed, tensor.cols, r, values.data() + r * tensor.cols);
    return cpu_->PackWeights({DType::kF32, tensor.rows, tensor.cols, values.data()});
  }
  void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const override { cpu_->ReadRow(weight, row, out); }
  void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) override {
    cpu_->MatMul(x, x_stride, m, outputs);
  }
  void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
               int64_t y_stride) override {
    cpu_->RmsNorm(x, x_stride, m, dim, weight, epsilon, y, y_stride);
  }
  void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
            const RopeTable& table) override {
    cpu_->Rope(x, x_stride, m, num_heads, head_dim, positions, table);
  }
  void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               std::span<const SequenceChunk> chunks, const KvView& kv) override {
    cpu_->WriteKv(layer, k, k_stride, v, v_stride, chunks, kv);
  }
  void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks, const KvView& kv,
                 const AttentionParams& params, float* out, int64_t out_stride) override {
    cpu_->Attention(layer, q, q_stride, chunks, kv, params, out, out_stride);
  }
  void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m,
                       int dim) override {
    cpu_->GatedActivation(act, gate, gate_stride, up, up_stride, m, dim);
  }
  void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) override {
    cpu_->Add(x, x_stride, y, y_stride, m, dim);
  }

 private:
  const std::unique_ptr<Backend> cpu_ =
      Backend::CreateCpu({.isa = Isa::kScalar, .numerics = NumericsClass::kF32, .num_threads = 1}).value();
};

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_GPU_FP8_REFERENCE_H_
