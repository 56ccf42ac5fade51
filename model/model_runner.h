// The seam between the engine and a model: one forward pass over a batch of rows.
#ifndef BATON_MODEL_MODEL_RUNNER_H_
#define BATON_MODEL_MODEL_RUNNER_H_

#include <cstdint>
#include <span>

#include "kernels/kv_view.h"

namespace baton::kernels {
class DeviceSpace;
}

namespace baton::model {

// Rows of all sequences of one engine step, each sequence's rows consecutive.
struct ForwardBatch {
  std::span<const int32_t> token_ids;                 // [num_rows]
  std::span<const int32_t> positions;                 // [num_rows]
  std::span<const kernels::SequenceChunk> chunks;     // cover the rows in order
  std::span<const int32_t> logit_rows;                // ascending row indices whose next-token logits are wanted
};

// Thread contract: one caller at a time.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual int vocab_size() const = 0;
  virtual int max_context() const = 0;  // positions one sequence may have
  // Everything but dtype and block_size is the model's; the engine's owner chooses those two.
  virtual kernels::KvLayout KvLayoutFor(kernels::DType dtype, int block_size) const = 0;

  // Whose memory Forward wants the KV in; null: the host's. Outlives every Forward.
  virtual kernels::DeviceSpace* device() const { return nullptr; }

  // Computes the rows, writes their KV into `kv`, and fills logits[logit_rows.size(), vocab_size()].
  // A row's logits are a pure function of the tokens of its sequence up to it (within a numerics class).
  virtual void Forward(const ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_RUNNER_H_
