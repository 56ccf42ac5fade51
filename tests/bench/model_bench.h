// One model in this process, driven phase by phase: prefill of n tokens, and decode of a batch from a given context.
//
// Thread contract: one caller at a time; the backend has its own threads.
#ifndef BATON_TESTS_BENCH_MODEL_BENCH_H_
#define BATON_TESTS_BENCH_MODEL_BENCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kvcache/block_pool.h"
#include "model/gguf.h"
#include "model/transformer.h"
#include "tests/bench/bench_clock.h"

namespace baton::bench {

// What a forward pass must do at least, from the file.
struct ModelCost {
  int64_t layer_weights = 0;   // elements of all layers' matrices
  int64_t head_weights = 0;
  int64_t layer_bytes = 0;     // of the same in the file's format
  int64_t head_bytes = 0;
  int64_t kv_token_bytes = 0;  // f16
};

class ModelBench {
 public:
  struct Options {
    std::string path;
    int threads = 1;
    kernels::Isa isa = kernels::Isa::kAuto;
    kernels::NumericsClass numerics = kernels::NumericsClass::kInt;
    int max_tokens = 0;  // positions of all sequences together that a measurement may need
    ClockKind clock = ClockKind::kWall;
  };
  static absl::StatusOr<std::unique_ptr<ModelBench>> Load(const Options& options);

  // Tokens a second of a prompt of n tokens, in chunks of 512 as the engine makes them; logits of the last one only.
  double Prefill(int n);
  // Tokens a second of `batch` sequences together, `steps` steps from `context` positions each (their KV is random).
  double Decode(int batch, int context, int steps);

  const ModelCost& cost() const { return cost_; }
  double load_seconds() const { return load_seconds_; }
  kernels::Backend& backend() { return *backend_; }
  const model::GgufFile& file() const { return *file_; }
  const model::ModelConfig& config() const { return model_->config(); }

 private:
  ModelBench() = default;
  void CountCost();
  // Block tables for `batch` sequences of `tokens` positions, in one shuffled pool as after some time of serving.
  std::vector<std::vector<int32_t>> Tables(int batch, int tokens) const;

  ClockKind clock_ = ClockKind::kWall;
  std::unique_ptr<model::GgufFile> file_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Transformer> model_;
  ModelCost cost_;
  double load_seconds_ = 0;
  std::shared_ptr<kvcache::BlockPool> pool_;
  int num_blocks_ = 0;
  std::vector<float> logits_;
};

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_MODEL_BENCH_H_
