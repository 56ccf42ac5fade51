// The decoder-only transformer, once for all families: ModelConfig says what differs.
//
// Ownership: the Transformer owns its weights (in the backend's layout) and its scratch; the backend is borrowed and
// must outlive it. Nothing of the file is needed after Load: every byte that is kept was copied, so a file that is
// truncated or replaced later cannot hurt.
//
// Thread contract: one caller at a time (ModelRunner's).
#ifndef BATON_MODEL_TRANSFORMER_H_
#define BATON_MODEL_TRANSFORMER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_space.h"
#include "model/config.h"
#include "model/device_angles.h"
#include "model/gguf.h"
#include "model/model_runner.h"
#include "model/rope.h"
#include "model/scratch.h"

namespace baton::model {

// Bytes a loaded model occupies, to the byte (spec row S7, S8); KV is KvLayoutFor(...).token_bytes() a token.
struct MemoryLedger {
  uint64_t weight_bytes = 0;     // matrices in the backend's layout, the head among them
  uint64_t embedding_bytes = 0;  // rows looked up per token, in the file's format; 0 if tied: the head's
  uint64_t vector_bytes = 0;     // norms, biases, rotary frequencies and, on a device, angles
  uint64_t scratch_bytes = 0;    // activations of max_batch_rows rows
  uint64_t total() const { return weight_bytes + embedding_bytes + vector_bytes + scratch_bytes; }
};

class Transformer : public ModelRunner {
 public:
  struct Options {
    int max_batch_rows = 512;  // rows that scratch is allocated for at Load; a larger batch makes it grow
    int max_context = 0;       // positions of one sequence; 0: the model's. More than the model's is refused.
    // Of a backend whose kernels cannot read the host's memory; null: they can. Activations, norms, biases and KV lie
    // there; the host sees token ids going in and logits coming out (and, of a format that the kernels do not read,
    // embeddings that are not the head's going in).
    kernels::DeviceSpace* device = nullptr;
    // Called during Load with bytes of tensors read so far and in all; may be empty.
    std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  };

  // Validates and copies. Errors: ReadConfig's; DATA_LOSS or FAILED_PRECONDITION when the file changes meanwhile;
  // INVALID_ARGUMENT for options out of range or norms and biases that are not finite; RESOURCE_EXHAUSTED: weights or
  // scratch.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const GgufFile& file, kernels::Backend* backend,
                                                           const Options& options);

  int vocab_size() const override { return config_.vocab_size; }
  int max_context() const override { return max_context_; }
  kernels::KvLayout KvLayoutFor(kernels::DType dtype, int block_size) const override;
  kernels::DeviceSpace* device() const override { return device_; }
  void Forward(const ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) override;

  const ModelConfig& config() const { return config_; }
  MemoryLedger memory() const;

 private:
  // A norm or a bias, where the kernels read it.
  class Vector {
   public:
    Vector() = default;
    explicit Vector(std::vector<float> host) : host_(std::move(host)), size_(host_.size()) {}
    Vector(kernels::DeviceArray device, size_t size) : device_(std::move(device)), size_(size) {}
    const float* data() const { return host_.empty() ? static_cast<const float*>(device_.data()) : host_.data(); }
    bool empty() const { return size_ == 0; }
    size_t size() const { return size_; }

   private:
    std::vector<float> host_;
    kernels::DeviceArray device_;
    size_t size_ = 0;
  };
  struct Layer {
    Vector attn_norm, ffn_norm;
    Vector q_norm, k_norm;                      // empty without QK norm
    Vector post_attention_norm, post_ffw_norm;  // empty without post norms
    Vector q_bias, k_bias, v_bias;              // empty without biases
    std::unique_ptr<kernels::WeightMatrix> q, k, v, attn_output, gate, up, down;
  };
  class Loader;

  Transformer(ModelConfig config, kernels::Backend* backend, kernels::DeviceSpace* device, int max_context);

  // None, of an empty vector.
  kernels::Backend::Norm NormOf(const Vector& v) const {
    return {v.empty() ? nullptr : v.data(), config_.norm_epsilon};
  }
  static uint64_t Bytes(const Vector& v) { return v.size() * sizeof(float); }
  // What the host wrote goes to the device, if there is one.
  void ToDevice(float* to, const float* from, int rows, int width) const;
  void Embed(std::span<const int32_t> token_ids);
  void FillRopeTables(const ForwardBatch& batch);
  // rows: of the pass, perhaps more than the batch's.
  void AttentionBlock(int layer_idx, int rows, const ForwardBatch& batch, const kernels::KvView& kv);
  void FeedForwardBlock(const Layer& layer, int rows);
  // Where logits of so many rows are computed.
  float* ReserveLogits(int rows, std::span<float> logits);
  // Logits of the first `rows` rows, or of those that are listed.
  void Head(int rows, std::span<const int32_t> listed, float* logits);

  const ModelConfig config_;
  kernels::Backend* const backend_;
  kernels::DeviceSpace* const device_;  // null: none
  const int max_context_;
  const RopeAngles rope_;
  const RopeAngles local_rope_;

  kernels::DType embedding_dtype_ = kernels::DType::kF32;
  std::vector<std::byte> embedding_;  // [vocab_size] rows in embedding_dtype_; empty if the head is tied, or it is the next
  std::unique_ptr<kernels::WeightMatrix> embedding_rows_;  // on the device; null: not there
  DeviceAngles device_angles_, device_local_angles_;       // empty without a device, or without layers that slide
  std::vector<Layer> layers_;
  Vector output_norm_;
  std::unique_ptr<kernels::WeightMatrix> head_;
  Scratch scratch_;
  kernels::DeviceArray device_logits_;
  size_t device_logits_floats_ = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TRANSFORMER_H_
