#include "cli/model_file.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "cli/gpu_plan.h"
#include "common/config.h"
#include "engine/available_memory.h"
#include "engine/runtime.h"
#include "model/config.h"
#include "model/gguf.h"

namespace baton::cli {
namespace {

ModelShape ShapeOf(const model::ModelConfig& c, const std::string& name) {
  ModelShape s;
  s.name = name;
  s.architecture = c.architecture;
  s.source = "GGUF file";
  s.num_layers = static_cast<uint64_t>(c.num_layers);
  s.hidden_size = static_cast<uint64_t>(c.dim);
  s.num_heads = static_cast<uint64_t>(c.num_heads);
  s.num_kv_heads = static_cast<uint64_t>(c.num_kv_heads);
  s.head_dim = static_cast<uint64_t>(c.head_dim);
  s.intermediate_size = static_cast<uint64_t>(c.ffn_dim);
  s.vocab_size = static_cast<uint64_t>(c.vocab_size);
  s.tied_embeddings = c.tied_head;
  s.attention_bias = c.qkv_bias;
  s.qk_norm = c.qk_norm;
  s.norms_per_layer = c.post_norms ? 4 : 2;
  return s;
}

// With the environment, so that it is the plan of the worker that would start here.
absl::StatusOr<LoadedConfig> SettingsOf(const std::string& path, const ModelFileOptions& options) {
  std::vector<std::string> flags = {absl::StrCat("--model=", path), absl::StrCat("--kv-dtype=", options.kv_dtype)};
  if (options.max_context != 0) flags.push_back(absl::StrCat("--max-context=", options.max_context));
  if (options.kv_memory_mib != 0) flags.push_back(absl::StrCat("--kv-memory-mib=", options.kv_memory_mib));
  return LoadConfig(ProcessRole::kWorker, flags, BatonEnvironment());
}

}  // namespace

absl::StatusOr<ModelFile> LoadModelFile(const std::string& path, const ModelFileOptions& options) {
  const absl::StatusOr<LoadedConfig> config = SettingsOf(path, options);
  if (!config.ok()) return config.status();
  ModelFile result;
  {
    absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
    if (!file.ok()) return file.status();
    absl::StatusOr<model::ModelConfig> shape = model::ReadConfig(*file);
    if (!shape.ok()) return shape.status();
    result.shape = ShapeOf(*shape, path.substr(path.rfind('/') + 1));
  }
  engine::LoadedModel::Options load;
  load.progress = options.progress;
  const absl::StatusOr<std::unique_ptr<engine::LoadedModel>> model = engine::LoadedModel::Load(config->config, load);
  if (!model.ok()) return model.status();
  const model::MemoryLedger& ledger = (*model)->memory();
  const kernels::KvLayout layout = (*model)->kv_layout();
  result.shape.max_context = static_cast<uint64_t>((*model)->max_context());
  result.memory = WorkerMemory{.backend = (*model)->backend_name(),
                               .matrix_bytes = ledger.weight_bytes,
                               .embedding_bytes = ledger.embedding_bytes,
                               .vector_bytes = ledger.vector_bytes,
                               .scratch_bytes = ledger.scratch_bytes,
                               .kv_block_bytes = layout.block_bytes(),
                               .kv_block_tokens = static_cast<uint64_t>(layout.block_size),
                               .kv_blocks = static_cast<uint64_t>((*model)->num_blocks())};
  return result;
}

absl::StatusOr<ModelFileOnGpus> PlanModelFileOnGpus(const std::string& path, const ModelFileOptions& options,
                                                    const kernels::TensorParallel& split, bool fp8) {
  const absl::StatusOr<LoadedConfig> settings = SettingsOf(path, options);
  if (!settings.ok()) return settings.status();
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<model::ModelConfig> config = model::ReadConfig(*file);
  if (!config.ok()) return config.status();
  ModelFileOnGpus result;
  result.shape = ShapeOf(*config, path.substr(path.rfind('/') + 1));
  result.shape.max_context = static_cast<uint64_t>(engine::MaxContext(settings->config, config->context_length));
  const absl::StatusOr<GpuMemory> memory = GpuMemoryOf(*file, *config,
                                                       {.split = split,
                                                        .fp8 = fp8,
                                                        .context = result.shape.max_context,
                                                        .batch_tokens = settings->config.max_batch_tokens()});
  if (!memory.ok()) return memory.status();
  result.memory = *memory;
  result.memory.kv_pool_bytes = (options.kv_memory_mib << 20) / memory->tensor_parallel;
  return result;
}

Accelerator ThisMachine() {
  const engine::AvailableMemory available = engine::ReadAvailableMemory();
  Accelerator a;
  a.name = "this machine";
  const bool known = available.bytes != std::numeric_limits<int64_t>::max();
  a.memory_bytes = known && available.bytes > 0 ? static_cast<uint64_t>(available.bytes) : 0;
  a.detail =
      absl::StrCat("memory available now, by ", available.source, "; give --bandwidth and --flops for a roofline");
  return a;
}

}  // namespace baton::cli
