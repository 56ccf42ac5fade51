// A model ready to serve: file, CPU backend, transformer and engine, put together as the settings say. Prefill workers,
// decode workers and the one-process path all start here.
#ifndef BATON_ENGINE_RUNTIME_H_
#define BATON_ENGINE_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/validate_request.h"
#include "constraint/compile.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "kernels/device_space.h"
#include "model/transformer.h"
#include "proto/cluster.pb.h"
#include "proto/config.pb.h"
#include "proto/kv.pb.h"

namespace baton {
class Clock;
}

namespace baton::engine {

// Told after every forward pass, on the engine's thread. Must be quick.
struct ForwardTiming {
  absl::Duration duration;
  int num_rows = 0;
  int num_logit_rows = 0;
  bool has_prefill = false;  // some sequence had more than one row
};

// Thread contract: immutable after Load, except what engine() itself allows.
class LoadedModel {
 public:
  struct Options {
    // Phases "open", "fingerprint", "weights"; fraction in [0, 1] of all work. On the calling thread.
    std::function<void(absl::string_view phase, double fraction)> progress;
    std::function<void(const ForwardTiming&)> on_forward;
    Clock* clock = nullptr;  // null: the real one
  };

  // Errors: INVALID_ARGUMENT or NOT_FOUND for settings and files, each naming the setting; RESOURCE_EXHAUSTED with the
  // arithmetic when weights, KV and scratch exceed the memory there is, or one sequence would not fit in the KV.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const v1::Config& config, const Options& options);
  // Around an engine of the caller's making, for simulations: no weights, no backend.
  static std::unique_ptr<LoadedModel> Around(std::unique_ptr<Engine> engine, v1::ModelFingerprint fingerprint,
                                             ModelLimits limits);
  ~LoadedModel();  // stops the engine first

  Engine* engine() { return engine_.get(); }
  const v1::ModelFingerprint& fingerprint() const { return fingerprint_; }
  const ModelLimits& limits() const { return limits_; }  // vocabulary, context, served name
  const std::string& model_name() const { return limits_.model_names[0]; }
  const std::string& architecture() const { return architecture_; }
  int max_context() const { return limits_.max_context; }
  int64_t num_blocks() const { return num_blocks_; }
  kernels::KvLayout kv_layout() const { return engine_->kv_layout(); }
  // Whose memory KV goes from and to without the host's; null: by the host's.
  kernels::DeviceSpace* transfer_device() const { return transfer_device_; }
  std::string backend_name() const { return backend_->name(); }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  const model::MemoryLedger& memory() const { return memory_; }
  // Gives `request` what `sampling` asks of its text. INVALID_ARGUMENT naming the field, also where the model
  // cannot be constrained. Thread-safe, and not for the engine's thread: compiling takes milliseconds.
  absl::Status Constrain(const v1::SamplingParams& sampling, Request* request) const;
  // Logs what the model occupies, as a worker does when it has loaded.
  void LogMemory() const;
  // What a worker tells the router of its model: fingerprint, name, context, blocks, backend.
  v1::WorkerInfo Describe() const;

 private:
  class TimedRunner;
  LoadedModel();

  std::unique_ptr<kernels::Backend> backend_;
  kernels::DeviceSpace* device_ = nullptr;  // the backend's, if it has one
  kernels::DeviceSpace* transfer_device_ = nullptr;
  std::unique_ptr<model::Transformer> transformer_;
  std::unique_ptr<TimedRunner> runner_;
  std::unique_ptr<Engine> engine_;
  v1::ModelFingerprint fingerprint_;
  ModelLimits limits_;
  std::string architecture_;
  int64_t num_blocks_ = 0;
  int max_sequences_ = 0;
  int max_batch_tokens_ = 0;
  std::vector<int32_t> eos_token_ids_;
  model::MemoryLedger memory_;
  std::unique_ptr<constraint::ConstraintCompiler> constraints_;  // null: no vocabulary
};

// The name clients use: served_model_name, else the file's name without .gguf.
std::string ServedModelName(const v1::Config& config);
// Positions one sequence may have by the settings and the model: the smaller of both; without a setting at most 8192.
int MaxContext(const v1::Config& config, int model_context);

}  // namespace baton::engine

#endif  // BATON_ENGINE_RUNTIME_H_
