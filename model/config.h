// What a model is, read from its GGUF metadata. Families (Llama, Qwen, Gemma 3, ...) are values of this struct, not
// subclasses: the forward pass (transformer.cc) reads these fields and never an architecture's name.
//
// Thread contract: plain values.
#ifndef BATON_MODEL_CONFIG_H_
#define BATON_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/gguf.h"

namespace baton::model {

// One rotary embedding: pair i turns by position * theta^(-2i/rope_dim) / linear_factor / freq_factors[i].
struct RopeConfig {
  double theta = 10000;
  double linear_factor = 1;
  std::vector<float> freq_factors;  // rope_dim/2, or empty; Llama 3's scaling, stored as tensor rope_freqs.weight
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3", "gemma3"; for people and for the fingerprint
  int vocab_size = 0;
  int num_layers = 0;
  int dim = 0;      // of the residual stream
  int ffn_dim = 0;  // of the gated feed-forward's inner rows
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int context_length = 0;  // positions the model was trained for
  float norm_epsilon = 0;

  kernels::RopeStyle rope_style = kernels::RopeStyle::kHalves;
  int rope_dim = 0;
  RopeConfig rope;        // of layers that see everything
  RopeConfig local_rope;  // of sliding-window layers

  bool qkv_bias = false;      // Qwen 2
  bool qk_norm = false;       // RMS norm of each query and key head before the rotation: Qwen 3, Gemma 3
  bool post_norms = false;    // norms of attention's and feed-forward's outputs too: Gemma 3
  bool tied_head = false;     // the head is the embedding
  float embedding_scale = 1;  // Gemma: sqrt(dim)
  kernels::Activation activation = kernels::Activation::kSilu;
  int sliding_window = 0;          // positions a sliding layer sees, itself included; 0: no sliding layer
  std::vector<bool> layer_slides;  // [num_layers]
  float attention_scale = 0;       // of q . k
  float attention_softcap = 0;     // 0: none
  float final_softcap = 0;         // of logits; 0: none

  int q_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
};

// One tensor the model must have.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> dims;  // as GgufTensor::dims
  bool is_vector = false;     // a norm weight or bias, kept in f32
};

// Reads and checks the configuration. NOT_FOUND: a key is missing. INVALID_ARGUMENT: values that contradict one another
// or are out of range. UNIMPLEMENTED: an architecture or feature Baton does not compute (mixture of experts, YaRN,
// ...).
absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file);

// All tensors of a model with this configuration, in order of use.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

// INVALID_ARGUMENT when a tensor is missing or has another shape (names it, with both shapes), or when the file holds a
// tensor the forward pass would not use (ignoring it would compute another model).
absl::Status ValidateTensors(const ModelConfig& config, const GgufFile& file);

// Every field, one "name=value" line each, floats in hex: equal texts mean equal computation. For the fingerprint.
std::string CanonicalText(const ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_CONFIG_H_
