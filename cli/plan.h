// The memory ledger and the roofline of a model on an accelerator: what fits, and how fast it can be at best. Pure
// arithmetic in integers, checked for overflow; printing is in plan_print.h.
//
// The model of cost: decode reads every weight once per pass, so its time is bytes / bandwidth; prefill spends
// 2 FLOP per weight and token (one multiply, one add) plus attention, so its time is FLOP / peak. Both are bounds that
// real systems approach and never beat; communication between accelerators is not counted.
#ifndef BATON_CLI_PLAN_H_
#define BATON_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

// A decoder-only transformer, as far as its size goes.
struct ModelShape {
  std::string name;
  std::string architecture;  // "llama", "qwen3", ...
  std::string source;        // where the numbers come from, for people
  uint64_t num_layers = 0;
  uint64_t hidden_size = 0;
  uint64_t num_heads = 0;
  uint64_t num_kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t intermediate_size = 0;
  uint64_t vocab_size = 0;
  uint64_t max_context = 0;
  bool tied_embeddings = false;     // the output matrix is the embedding
  bool attention_bias = false;      // on q, k and v
  bool attention_out_bias = false;  // on the output projection too
  bool qk_norm = false;             // a norm of head_dim on q and one on k
  uint64_t norms_per_layer = 2;     // of hidden_size
  // The round figure the model is known by ("405B"), when the ledger should use it as the literature does.
  std::optional<uint64_t> published_parameters;
};

struct ParameterCount {
  uint64_t total = 0;
  uint64_t matmul = 0;  // those multiplied once per token: all but the embedding table and norms
};
// OUT_OF_RANGE when the shapes overflow 64 bits; INVALID_ARGUMENT for a zero or contradictory shape.
absl::StatusOr<ParameterCount> CountParameters(const ModelShape& shape);

struct Accelerator {
  std::string name;    // "h100"
  std::string detail;  // "NVIDIA H100 SXM5", with the source of the figures
  uint64_t count = 1;
  uint64_t memory_bytes = 0;  // of one
  uint64_t bandwidth = 0;     // bytes/s of one; 0: unknown, no decode roofline
  uint64_t flops_8bit = 0;    // dense FLOP/s of one at 8 bits; 0: none
  uint64_t flops_16bit = 0;   // at 16 bits; both 0: unknown, no prefill roofline
};

// Named accelerators, figures from their makers' data sheets (dense, not "with sparsity").
const std::vector<Accelerator>& AcceleratorPresets();
// "h100", "8xh100", "8x h100". NOT_FOUND lists the names.
absl::StatusOr<Accelerator> FindAccelerator(absl::string_view text);

// What one worker of ours allocates for a model file; every figure is the allocator's own.
struct WorkerMemory {
  std::string backend;           // "cpu/avx512"
  uint64_t matrix_bytes = 0;     // read in every pass
  uint64_t embedding_bytes = 0;  // looked up, some rows a pass
  uint64_t vector_bytes = 0;     // norms, biases, rotary frequencies
  uint64_t scratch_bytes = 0;    // activations
  uint64_t kv_block_bytes = 0;
  uint64_t kv_block_tokens = 0;
  uint64_t kv_blocks = 0;  // of its pool
};

// What each GPU of a worker over tensor_parallel of them holds (gpu_plan.h, docs/GPU.md).
struct GpuMemory {
  uint64_t tensor_parallel = 1;
  uint64_t reduction_slices = 1;
  uint64_t split_bytes = 0;  // its part of the weights that are split
  // Whole on each:
  uint64_t head_bytes = 0;        // the embedding too, if tied
  uint64_t embedding_bytes = 0;   // looked up, some rows a pass
  uint64_t array_bytes = 0;       // norms, biases, rotary angles
  uint64_t activation_bytes = 0;  // of a step of batch_tokens
  uint64_t batch_tokens = 0;
  uint64_t kv_pool_bytes = 0;  // its part of kv_memory_mib; 0: none was given
};

struct PlanInput {
  ModelShape shape;
  Accelerator accelerator;
  std::string weights_dtype = "bf16";
  std::string kv_dtype = "bf16";
  uint64_t context = 0;  // tokens of one conversation; 0: the model's maximum
  bool exact = false;    // count parameters from the shapes even if a published figure is known
  // From a model file: in place of parameters times bits.
  std::optional<WorkerMemory> worker;
  // In place of both, for a worker over GPUs. The accelerators are then its own: as many as tensor_parallel.
  std::optional<GpuMemory> gpu;
};

// Bits of an element: f32 32, bf16 and f16 16, fp8 and int8 8, int4 and fp4 4. INVALID_ARGUMENT lists them.
absl::StatusOr<uint64_t> BitsOf(absl::string_view flag, absl::string_view dtype);

struct DecodeRoofline {
  uint64_t pass_ns = 0;                  // weights of one card / bandwidth of one card
  uint64_t one_user_milli_tokens_s = 0;  // at a short context: one token a pass
  uint64_t full_pass_ns = 0;             // reading one full conversation's KV as well
  uint64_t full_one_user_milli_tokens_s = 0;
  uint64_t all_users_pass_ns = 0;         // reading the KV of all conversations that fit
  uint64_t all_users_milli_tokens_s = 0;  // of all of them together
};

struct PrefillRoofline {
  uint64_t flops_per_token = 0;  // weights only: 2 * parameters
  uint64_t peak_flops = 0;       // of all cards, at the weights' dtype
  uint64_t milli_tokens_s = 0;   // at peak, short prompts
  uint64_t context_flops = 0;    // of one prompt of `context` tokens, attention included
  uint64_t context_attention_flops = 0;
  uint64_t context_ns = 0;  // TTFT of that prompt at peak
};

struct Plan {
  PlanInput input;
  uint64_t context = 0;
  ParameterCount parameters;             // counted from the shapes
  uint64_t ledger_parameters = 0;        // those the ledger uses (published or counted)
  uint64_t total_bytes = 0;              // memory of all cards
  uint64_t weights_bytes = 0;            // as the ledger counts; of a model file, or over GPUs, with a worker's scratch
  uint64_t weights_bytes_exact = 0;      // counted from the shapes, or the file's
  uint64_t weights_bytes_per_card = 0;   // rounded up
  uint64_t pass_bytes = 0;               // of weights read in one decode pass
  uint64_t worker_kv_bytes = 0;          // of a worker's KV pool
  uint64_t worker_kv_conversations = 0;  // that fit into that pool
  uint64_t kv_bytes_per_token = 0;
  uint64_t kv_bytes_per_conversation = 0;
  bool weights_fit = false;
  uint64_t left_bytes = 0;  // 0 when the weights do not fit
  uint64_t left_bytes_exact = 0;
  uint64_t missing_bytes = 0;  // when the weights do not fit
  uint64_t conversations = 0;  // whole ones
  uint64_t kv_tokens = 0;      // that fit in what is left
  uint64_t gpu_kv_bytes_per_token = 0;  // on each GPU of a worker over several
  std::optional<DecodeRoofline> decode;
  std::optional<PrefillRoofline> prefill;
  // Sequences in one batch from which decode spends longer computing than reading weights (KV reads not counted).
  std::optional<uint64_t> compute_bound_batch;
};

// INVALID_ARGUMENT for impossible input, OUT_OF_RANGE on overflow.
absl::StatusOr<Plan> ComputePlan(const PlanInput& input);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_H_
