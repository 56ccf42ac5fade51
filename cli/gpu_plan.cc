#include "cli/gpu_plan.h"

#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/tensor_split.h"
#include "model/device_demand.h"
#include "model/scratch.h"

namespace baton::cli {
namespace {

using kernels::DType;
using kernels::cuda::WeightStorage;

absl::StatusOr<GpuMemory> MemoryOf(std::span<const model::GgufTensor> tensors, const model::ModelConfig& config,
                                   const GpuPlanOptions& options) {
  constexpr uint64_t kMost = std::numeric_limits<int>::max();
  if (options.context > kMost || options.batch_tokens > kMost) {
    return absl::OutOfRangeError("the context, or the tokens of a step, are more than a worker takes");
  }
  const kernels::TensorParallel& split = options.split;
  if (absl::Status s = kernels::cuda::CheckSplit(split); !s.ok()) return s;
  if (absl::Status s = kernels::cuda::CheckKvHeads(config.num_kv_heads, split); !s.ok()) return s;
  for (const model::GgufTensor& tensor : tensors) {
    if (tensor.dims.size() < 2) continue;
    if (absl::Status s = kernels::cuda::CheckSplit(model::ShapeOf(tensor), split); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("tensor ", tensor.name, ": ", s.message()));
    }
  }
  const WeightStorage storage = options.fp8 ? WeightStorage::kFp8 : WeightStorage::kOwnBits;
  const model::DeviceDemand demand = model::DeviceDemandOf(
      tensors, config, static_cast<int>(options.context),
      [&](const kernels::HostTensor& matrix) { return kernels::cuda::PackedBytes(matrix, split, storage); },
      [&](const kernels::HostTensor& matrix) { return kernels::cuda::PackedRowsBytes(matrix, split); });
  const auto ranks = static_cast<uint64_t>(split.ranks);
  return GpuMemory{.tensor_parallel = ranks,
                   .reduction_slices = static_cast<uint64_t>(split.slices),
                   .split_bytes = demand.split_bytes / ranks,
                   .head_bytes = demand.head_bytes / ranks,
                   .embedding_bytes = demand.embedding_bytes / ranks,
                   .array_bytes = demand.array_bytes,
                   .activation_bytes = model::Scratch::BytesFor(config, static_cast<int>(options.batch_tokens)),
                   .batch_tokens = options.batch_tokens};
}

// As the GPU's kernels have them; nullopt: they have none.
std::optional<DType> FormatOf(absl::string_view dtype) {
  static constexpr std::pair<const char*, DType> kFormats[] = {
      {"f32", DType::kF32},   {"f16", DType::kF16},   {"fp16", DType::kF16}, {"bf16", DType::kBF16},
      {"fp8", DType::kBF16},  {"int8", DType::kQ8_0}, {"int4", DType::kQ4_0}};
  for (const auto& [name, format] : kFormats) {
    if (dtype == name) return format;
  }
  return std::nullopt;
}

absl::StatusOr<model::ModelConfig> ConfigOf(const ModelShape& s) {
  // Far beyond any model: what follows then fits in 64 bits.
  constexpr uint64_t kMostLayers = 10000, kMostWide = 1 << 20, kMostIds = 1 << 24;
  if (s.num_layers > kMostLayers || s.hidden_size > kMostWide || s.intermediate_size > kMostWide || s.num_heads > kMostWide ||
      s.head_dim > kMostWide || s.num_heads * s.head_dim > kMostWide || s.num_kv_heads > s.num_heads ||
      s.vocab_size > kMostIds) {
    return absl::OutOfRangeError(absl::StrCat(s.name, ": no model has such shapes. Check the numbers in its file."));
  }
  model::ModelConfig config;
  config.architecture = s.architecture;
  config.vocab_size = static_cast<int>(s.vocab_size);
  config.num_layers = static_cast<int>(s.num_layers);
  config.dim = static_cast<int>(s.hidden_size);
  config.ffn_dim = static_cast<int>(s.intermediate_size);
  config.num_heads = static_cast<int>(s.num_heads);
  config.num_kv_heads = static_cast<int>(s.num_kv_heads);
  config.head_dim = config.rope_dim = static_cast<int>(s.head_dim);
  config.qkv_bias = s.attention_bias;
  config.qk_norm = s.qk_norm;
  config.post_norms = s.norms_per_layer > 2;
  config.tied_head = s.tied_embeddings;
  return config;
}

}  // namespace

absl::StatusOr<GpuMemory> GpuMemoryOf(const model::GgufFile& file, const model::ModelConfig& config,
                                      const GpuPlanOptions& options) {
  return MemoryOf(file.tensors(), config, options);
}

absl::StatusOr<GpuMemory> GpuMemoryOf(const ModelShape& shape, absl::string_view weights_dtype, GpuPlanOptions options) {
  const std::optional<DType> format = FormatOf(weights_dtype);
  if (!format.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--weights-dtype \"", weights_dtype.substr(0, 40),
                                                   "\" is nothing that our GPU kernels have. Use f32, bf16, f16, fp8, int8 "
                                                   "(Q8_0) or int4 (Q4_0)."));
  }
  if (weights_dtype == "fp8") options.fp8 = true;
  const absl::StatusOr<model::ModelConfig> config = ConfigOf(shape);
  if (!config.ok()) return config.status();
  const std::vector<model::ExpectedTensor> expected = model::ExpectedTensors(*config);
  std::vector<model::GgufTensor> tensors;
  for (const model::ExpectedTensor& one : expected) {
    model::GgufTensor tensor;
    tensor.name = one.name;
    tensor.dtype = one.is_vector ? DType::kF32 : *format;
    tensor.dims = one.dims;
    tensor.num_elements = 1;
    for (const int64_t n : one.dims) tensor.num_elements *= static_cast<uint64_t>(n);
    tensors.push_back(std::move(tensor));
  }
  return MemoryOf(tensors, *config, options);
}

}  // namespace baton::cli
