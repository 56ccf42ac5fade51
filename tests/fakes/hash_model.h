// A model whose every answer depends on every byte of KV it should: the strongest oracle for the engine that needs no
// weights.
//
// The KV of a position is a hash of (token, position, layer) and, from the second layer on, of all earlier positions'
// KV in the layer below, read back through the block table as a real model reads it. Logits are a pseudo-random function
// of all the sequence's KV bytes. So a wrong, stale, foreign, missing or half-copied block changes the output. Misuse (a
// block id or token out of range, rows out of order, a table too short, two sequences writing one block) aborts.
#ifndef BATON_TESTS_FAKES_HASH_MODEL_H_
#define BATON_TESTS_FAKES_HASH_MODEL_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "model/model_runner.h"

namespace baton::fakes {

// Thread contract: as ModelRunner; the counters may be read from any thread.
class HashModel : public model::ModelRunner {
 public:
  struct Options {
    int vocab_size = 101;
    int max_context = 512;
    int num_layers = 2;
    int num_kv_heads = 2;
    int head_dim = 4;
    int64_t num_blocks = 0;     // of the pool, to check block ids; 0: not checked
    int64_t nan_position = -1;  // logits after this position are not finite
    kernels::DeviceSpace* device = nullptr;  // where the KV is; memory that the host can read all the same
  };
  explicit HashModel(const Options& options) : options_(options) {}

  int vocab_size() const override { return options_.vocab_size; }
  int max_context() const override { return options_.max_context; }
  kernels::KvLayout KvLayoutFor(kernels::DType dtype, int block_size) const override;
  kernels::DeviceSpace* device() const override { return options_.device; }
  void Forward(const model::ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) override;

  int64_t num_steps() const { return num_steps_; }
  int64_t num_rows() const { return num_rows_; }
  int max_rows() const { return max_rows_; }  // largest batch so far

 private:
  void CheckBatch(const model::ForwardBatch& batch, const kernels::KvView& kv) const;
  void WriteKv(int layer, int32_t token, int position, uint64_t below, std::span<const int32_t> table,
               const kernels::KvView& kv) const;
  // Folds the KV bytes of one position of one layer into a digest.
  uint64_t FoldPosition(uint64_t digest, int layer, int position, std::span<const int32_t> table,
                        const kernels::KvView& kv) const;

  const Options options_;
  std::atomic<int64_t> num_steps_{0};
  std::atomic<int64_t> num_rows_{0};
  std::atomic<int> max_rows_{0};
};

}  // namespace baton::fakes

#endif  // BATON_TESTS_FAKES_HASH_MODEL_H_
