#include "engine/runtime.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/status.h"
#include "engine/available_memory.h"
#include "model/config.h"
#include "model/device_demand.h"
#include "model/fingerprint.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"

namespace baton::engine {
namespace {

constexpr int kDefaultMaxContext = 8192;

// "0-3,8" as 0, 1, 2, 3, 8. The backend checks that the cores exist.
absl::StatusOr<std::vector<int>> ParseCores(absl::string_view text) {
  constexpr int kMaxCores = 4096;
  std::vector<int> cores;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> range = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    const bool one = part.find('-') == absl::string_view::npos;
    if (!absl::SimpleAtoi(range.first, &first) || !absl::SimpleAtoi(one ? range.first : range.second, &last) ||
        first < 0 || last < first || last >= kMaxCores) {
      return absl::InvalidArgumentError(
          absl::StrCat("cores is \"", text, "\"; expected core numbers and ranges, as in 0-3,8"));
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

absl::StatusOr<kernels::WeightLayout> LayoutByName(absl::string_view name) {
  if (name.empty() || name == "auto") return kernels::WeightLayout::kDecode;  // docs/adr/0005
  if (name == "decode") return kernels::WeightLayout::kDecode;
  if (name == "prefill") return kernels::WeightLayout::kPrefill;
  if (name == "both") return kernels::WeightLayout::kBoth;
  return absl::InvalidArgumentError(
      absl::StrCat("weight_layout is \"", name, "\"; expected auto, decode, prefill or both"));
}

bool OnGpu(const v1::Config& config) { return config.isa() == "cuda"; }
// A setting of numerics, not a class of arithmetic: bf16's, with other weights.
bool WeightsInFp8(const v1::Config& config) { return config.numerics() == "fp8"; }

// Powers of two and such are the backend's to check, and what the model divides by.
absl::StatusOr<kernels::TensorParallel> SplitOf(const v1::Config& config) {
  kernels::TensorParallel split;
  if (config.has_tensor_parallel()) split.ranks = static_cast<int>(config.tensor_parallel());
  split.slices = config.has_reduction_slices() ? static_cast<int>(config.reduction_slices()) : split.ranks;
  if ((split.ranks != 1 || split.slices != 1) && !OnGpu(config)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel is ", split.ranks, " and reduction_slices ", split.slices,
                                                   ", which only GPUs have here; set isa to cuda, or leave both"));
  }
  if (split.ranks > 1 && config.kv_transport() == "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_transport is nccl and tensor_parallel ", split.ranks,
                     ": communicators of both would wait for the same GPUs in an order that nobody keeps; ",
                     "use auto, ucx or grpc"));
  }
  return split;
}

absl::StatusOr<kernels::Backend::Options> BackendOptions(const v1::Config& config) {
  kernels::Backend::Options options;
  if (WeightsInFp8(config) && !OnGpu(config)) {
    return absl::InvalidArgumentError("numerics is fp8, which only GPUs have here; set isa to cuda, or numerics to int");
  }
  options.numerics = WeightsInFp8(config)
                         ? kernels::NumericsClass::kBf16
                         : kernels::NumericsFromName(config.numerics()).value_or(kernels::NumericsClass::kInt);
  const std::optional<kernels::Isa> isa =
      kernels::IsaFromName(config.has_isa() && !OnGpu(config) ? config.isa() : "auto");
  if (!isa.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("isa is \"", config.isa(), "\"; expected auto, scalar, avx2, avx512, avx512_bf16, amx or cuda"));
  }
  options.isa = *isa;
  options.num_threads = static_cast<int>(config.threads());
  const absl::StatusOr<kernels::WeightLayout> layout = LayoutByName(config.weight_layout());
  if (!layout.ok()) return layout.status();
  options.weight_layout = *layout;
  if (config.has_cores()) {
    absl::StatusOr<std::vector<int>> cores = ParseCores(config.cores());
    if (!cores.ok()) return cores.status();
    options.cores = *std::move(cores);
  }
  return options;
}

absl::StatusOr<kernels::DType> KvDType(const v1::Config& config) {
  const std::string name = config.has_kv_dtype() ? config.kv_dtype() : config.numerics() == "f32" ? "f32" : "f16";
  const std::optional<kernels::DType> dtype = kernels::FromName(name);
  if (!dtype.has_value() ||
      (*dtype != kernels::DType::kF32 && *dtype != kernels::DType::kF16 && *dtype != kernels::DType::kBF16)) {
    return absl::InvalidArgumentError(absl::StrCat("kv_dtype is \"", name, "\"; expected f32, f16 or bf16"));
  }
  return *dtype;
}

kernels::KvLayout LayoutOf(const model::ModelConfig& config, kernels::DType dtype, int block_size) {
  kernels::KvLayout layout;
  layout.dtype = dtype;
  layout.block_size = block_size;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  return layout;
}

// Before anything is read: what the file's tensors will roughly take on the CPU. Packing keeps sizes within a few percent; the
// prefill layout holds 4-bit codes in 8 bits.
int64_t EstimateWeightBytes(const model::GgufFile& file, kernels::WeightLayout layout) {
  uint64_t bytes = 0;
  for (const model::GgufTensor& tensor : file.tensors()) {
    const bool four_bit = tensor.dtype == kernels::DType::kQ4_0 || tensor.dtype == kernels::DType::kQ4_1 ||
                          tensor.dtype == kernels::DType::kQ4_K;
    const uint64_t tiles = four_bit ? tensor.num_elements / 2 : 0;
    bytes += tensor.num_bytes + (layout == kernels::WeightLayout::kDecode ? 0 : tiles);
    if (layout == kernels::WeightLayout::kBoth && four_bit) bytes += tensor.num_bytes;
  }
  return static_cast<int64_t>(bytes);
}

v1::ModelFingerprint ToProto(const model::Fingerprint& f) {
  v1::ModelFingerprint out;
  out.set_weights(f.weights);
  out.set_config(f.config);
  out.set_tokenizer(f.tokenizer);
  out.set_numerics_class(f.numerics_class);
  return out;
}

}  // namespace

// Times every pass of the model.
class LoadedModel::TimedRunner : public model::ModelRunner {
 public:
  TimedRunner(model::ModelRunner* runner, std::function<void(const ForwardTiming&)> observer)
      : runner_(runner), observer_(std::move(observer)) {}

  int vocab_size() const override { return runner_->vocab_size(); }
  int max_context() const override { return runner_->max_context(); }
  kernels::KvLayout KvLayoutFor(kernels::DType dtype, int block_size) const override {
    return runner_->KvLayoutFor(dtype, block_size);
  }
  kernels::DeviceSpace* device() const override { return runner_->device(); }
  void Forward(const model::ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) override {
    if (!observer_) return runner_->Forward(batch, kv, logits);
    const auto begin = std::chrono::steady_clock::now();
    runner_->Forward(batch, kv, logits);
    ForwardTiming timing;
    timing.duration = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    timing.num_rows = static_cast<int>(batch.token_ids.size());
    timing.num_logit_rows = static_cast<int>(batch.logit_rows.size());
    for (const auto& chunk : batch.chunks) timing.has_prefill = timing.has_prefill || chunk.num_rows > 1;
    observer_(timing);
  }

 private:
  model::ModelRunner* const runner_;
  const std::function<void(const ForwardTiming&)> observer_;
};

LoadedModel::LoadedModel() = default;

LoadedModel::~LoadedModel() = default;

void LoadedModel::LogMemory() const {
  const auto mib = [](uint64_t bytes) { return absl::StrCat((bytes + (1 << 19)) >> 20); };
  LogInfo("memory", {{"backend", backend_name()},
                     {"weights_mib", mib(memory_.weight_bytes + memory_.embedding_bytes + memory_.vector_bytes)},
                     {"scratch_mib", mib(memory_.scratch_bytes)},
                     {"kv_mib", mib(static_cast<uint64_t>(num_blocks_) * kv_layout().block_bytes())},
                     {"kv_is_on", device_ == nullptr ? "the host" : "the device, and as much pinned on the host"}});
}

absl::Status LoadedModel::Constrain(const v1::SamplingParams& sampling, Request* request) const {
  if (!sampling.has_constraint()) return absl::OkStatus();
  if (constraints_ == nullptr) {
    return InvalidField("sampling.constraint", "the model's tokens are not known as text here, which a constraint needs");
  }
  absl::StatusOr<std::shared_ptr<constraint::TokenConstraint>> constraint = constraints_->ForRequest(sampling);
  if (constraint.ok()) request->constraint = *std::move(constraint);
  return constraint.status();
}

v1::WorkerInfo LoadedModel::Describe() const {
  v1::WorkerInfo info;
  *info.mutable_fingerprint() = fingerprint_;
  info.set_model_name(model_name());
  info.set_max_context(static_cast<uint32_t>(max_context()));
  info.set_total_blocks(static_cast<uint64_t>(num_blocks_));
  info.set_backend(backend_name());
  info.set_max_sequences(static_cast<uint32_t>(max_sequences_));
  info.set_max_batch_tokens(static_cast<uint32_t>(max_batch_tokens_));
  return info;
}

std::string ServedModelName(const v1::Config& config) {
  if (config.has_served_model_name()) return config.served_model_name();
  std::string name = config.model().substr(config.model().rfind('/') + 1);
  if (absl::EndsWith(name, ".gguf")) name.resize(name.size() - 5);
  return name;
}

int MaxContext(const v1::Config& config, int model_context) {
  const int limit = config.has_max_context() ? static_cast<int>(config.max_context()) : kDefaultMaxContext;
  return std::min(limit, model_context);
}

namespace {

// Everything that follows from the settings and the file's header, checked.
struct Plan {
  model::ModelConfig model_config;
  kernels::Backend::Options backend;
  kernels::TensorParallel split;
  EngineOptions engine;
  std::shared_ptr<const constraint::Vocabulary> vocabulary;
  int max_context = 0;
  int64_t kv_bytes = 0;
};

absl::StatusOr<Plan> MakePlan(const v1::Config& config, const model::GgufFile& file) {
  Plan plan;
  absl::StatusOr<model::ModelConfig> model_config = model::ReadConfig(file);
  if (!model_config.ok()) return model_config.status();
  plan.model_config = *std::move(model_config);
  absl::StatusOr<std::unique_ptr<const model::Tokenizer>> tokenizer = model::LoadTokenizer(file);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<kernels::DType> kv_dtype = KvDType(config);
  if (!kv_dtype.ok()) return kv_dtype.status();
  absl::StatusOr<kernels::Backend::Options> backend = BackendOptions(config);
  if (!backend.ok()) return backend.status();
  plan.backend = *backend;
  absl::StatusOr<kernels::TensorParallel> split = SplitOf(config);
  if (!split.ok()) return split.status();
  plan.split = *split;

  plan.engine.eos_token_ids = (*tokenizer)->eos_ids();
  absl::StatusOr<std::shared_ptr<const constraint::Vocabulary>> vocabulary = constraint::Vocabulary::Create(
      (*tokenizer)->vocab_size(), [&](int32_t id) {
        const absl::StatusOr<absl::string_view> bytes = (*tokenizer)->TokenBytes(id);
        return (*tokenizer)->IsSpecial(id) || !bytes.ok() ? absl::string_view() : *bytes;
      });
  if (!vocabulary.ok()) return vocabulary.status();
  plan.vocabulary = *std::move(vocabulary);
  plan.engine.kv_dtype = *kv_dtype;
  if (config.has_block_size()) plan.engine.block_size = static_cast<int>(config.block_size());
  if (config.has_max_batch_tokens()) plan.engine.max_batch_tokens = static_cast<int>(config.max_batch_tokens());
  if (config.has_mixed_batch_tokens()) plan.engine.mixed_batch_tokens = static_cast<int>(config.mixed_batch_tokens());
  if (config.itl_slo_ms() > 0) plan.engine.step_target = absl::Milliseconds(config.itl_slo_ms());
  if (config.has_max_sequences()) plan.engine.max_sequences = static_cast<int>(config.max_sequences());
  if (config.has_max_queue()) plan.engine.max_queue = static_cast<int>(config.max_queue());
  if (config.has_prefix_cache()) plan.engine.prefix_cache = config.prefix_cache();

  const int64_t block_bytes =
      static_cast<int64_t>(LayoutOf(plan.model_config, *kv_dtype, plan.engine.block_size).block_bytes());
  const int64_t kv_mib = config.has_kv_memory_mib() ? static_cast<int64_t>(config.kv_memory_mib()) : 512;
  plan.engine.num_blocks = std::min<int64_t>((kv_mib << 20) / block_bytes, INT32_MAX);
  if (plan.engine.num_blocks < 2) {
    return absl::ResourceExhaustedError(absl::StrCat("kv_memory_mib is ", kv_mib, ", which holds ",
                                                     plan.engine.num_blocks, " blocks of ", block_bytes, " bytes (",
                                                     plan.engine.block_size, " tokens); raise it or lower block_size"));
  }
  plan.kv_bytes = plan.engine.num_blocks * block_bytes;
  // A sequence longer than the pool could never run.
  plan.max_context = static_cast<int>(std::min<int64_t>(MaxContext(config, plan.model_config.context_length),
                                                        plan.engine.num_blocks * plan.engine.block_size));
  return plan;
}

// NCCL moves bytes between devices. Tags are computed on the host, from its copy.
absl::StatusOr<bool> TransfersFromDevice(const v1::Config& config, const kernels::KvLayout& layout,
                                         kernels::DeviceSpace* device) {
  if (config.kv_transport() != "nccl" || config.kv_block_tags()) return false;
  const absl::StatusOr<std::unique_ptr<kernels::DeviceLane>> lane = device->CreateLane();
  if (!lane.ok()) return lane.status();
  return *lane != nullptr && (*lane)->CanSum(layout.block_bytes());
}

// Weights are in the device's memory, KV blocks there and on the host. Of several devices all memory is counted, of which what
// is not split is taken as often as there are devices.
absl::Status CheckDeviceMemory(const model::GgufFile& file, const Plan& plan, const kernels::DeviceSpace& device) {
  const model::DeviceDemand demand = model::DeviceDemandOf(file, plan.model_config, plan.max_context, device);
  const MemoryDemand host{static_cast<int64_t>(demand.host_bytes + demand.loading_bytes), plan.kv_bytes, 0};
  if (absl::Status s = CheckMemory(host, ReadAvailableMemory()); !s.ok()) return s;
  absl::StatusOr<uint64_t> free = device.FreeBytes();
  if (!free.ok()) return free.status();
  const int ranks = plan.split.ranks;
  const int64_t scratch = static_cast<int64_t>(model::Scratch::BytesFor(plan.model_config, plan.engine.max_batch_tokens));
  return CheckMemory({static_cast<int64_t>(demand.device_bytes(ranks)), plan.kv_bytes, ranks * scratch},
                     {static_cast<int64_t>(*free), ranks == 1 ? "the device's memory" : "the devices' memory"});
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const v1::Config& config, const Options& options) {
  const auto report = [&options](absl::string_view phase, double fraction) {
    if (options.progress) options.progress(phase, std::clamp(fraction, 0.0, 1.0));
  };
  report("open", 0);
  if (!config.has_model()) {
    return absl::InvalidArgumentError("model is not set; name a GGUF file, such as --model=model.gguf");
  }
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(config.model());
  if (!file.ok()) return file.status();
  absl::StatusOr<Plan> plan = MakePlan(config, *file);
  if (!plan.ok()) return plan.status();
  const int64_t weights = OnGpu(config) ? 0 : EstimateWeightBytes(*file, plan->backend.weight_layout);
  const MemoryDemand before{weights, plan->kv_bytes, 0};
  if (absl::Status s = CheckMemory(before, ReadAvailableMemory()); !s.ok()) return s;

  std::unique_ptr<LoadedModel> loaded(new LoadedModel());
  std::string device_kind;
  if (OnGpu(config)) {
    absl::StatusOr<kernels::DeviceBackend> device =
        kernels::CreateDeviceBackend(WeightsInFp8(config) ? "cuda-fp8" : "cuda", plan->backend.numerics, plan->split);
    if (!device.ok()) return device.status();
    loaded->backend_ = std::move(device->backend);
    loaded->device_ = device->space;
    device_kind = device->kind;
    const kernels::KvLayout layout = LayoutOf(plan->model_config, plan->engine.kv_dtype, plan->engine.block_size);
    if (absl::Status s = loaded->device_->CheckLayout(layout); !s.ok()) return s;
    if (absl::Status s = CheckDeviceMemory(*file, *plan, *loaded->device_); !s.ok()) return s;
    absl::StatusOr<bool> direct = TransfersFromDevice(config, layout, loaded->device_);
    if (!direct.ok()) return direct.status();
    if (*direct) loaded->transfer_device_ = loaded->device_;
    plan->engine.exports_from_device = *direct;
  } else {
    absl::StatusOr<std::unique_ptr<kernels::Backend>> backend = kernels::Backend::CreateCpu(plan->backend);
    if (!backend.ok()) return backend.status();
    loaded->backend_ = *std::move(backend);
  }
  // The fingerprint reads the file once; the weights read it a second time and pack it.
  report("fingerprint", 0);
  absl::StatusOr<model::Fingerprint> fingerprint =
      model::ComputeFingerprint(*file, plan->model_config, plan->backend.numerics);
  if (!fingerprint.ok()) return fingerprint.status();
  loaded->fingerprint_ = ToProto(*fingerprint);
  // Products add up in another order there (docs/GPU.md): such a worker pairs with its like only.
  if (OnGpu(config)) {
    const int slices = plan->split.slices;
    loaded->fingerprint_.set_numerics_class(
        absl::StrCat("cuda-", WeightsInFp8(config) ? "fp8" : fingerprint->numerics_class, device_kind.empty() ? "" : "-",
                     device_kind, slices > 1 ? absl::StrCat("-s", slices) : ""));
  }
  model::Transformer::Options transformer_options;
  transformer_options.max_batch_rows = plan->engine.max_batch_tokens;
  transformer_options.max_context = plan->max_context;
  transformer_options.device = loaded->device_;
  transformer_options.progress = [&report](uint64_t done, uint64_t total) {
    report("weights", 0.3 + 0.7 * (total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total)));
  };
  absl::StatusOr<std::unique_ptr<model::Transformer>> transformer =
      model::Transformer::Load(*file, loaded->backend_.get(), transformer_options);
  if (!transformer.ok()) return transformer.status();
  loaded->transformer_ = *std::move(transformer);
  loaded->memory_ = loaded->transformer_->memory();
  // Each GPU has them whole, and the transformer sees one.
  loaded->memory_.vector_bytes *= static_cast<uint64_t>(plan->split.ranks);
  loaded->memory_.scratch_bytes *= static_cast<uint64_t>(plan->split.ranks);
  // Again with what is known now; weights and scratch are inside already.
  if (absl::Status s = CheckMemory({0, plan->kv_bytes, 0}, ReadAvailableMemory()); !s.ok()) return s;

  loaded->runner_ = std::make_unique<TimedRunner>(loaded->transformer_.get(), options.on_forward);
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(plan->engine, loaded->runner_.get(), options.clock != nullptr ? options.clock : Clock::Real());
  if (!engine.ok()) return engine.status();
  loaded->engine_ = *std::move(engine);
  loaded->limits_ = {loaded->transformer_->vocab_size(), plan->max_context, {ServedModelName(config)}};
  loaded->architecture_ = plan->model_config.architecture;
  loaded->num_blocks_ = plan->engine.num_blocks;
  loaded->max_sequences_ = plan->engine.max_sequences;
  loaded->max_batch_tokens_ = plan->engine.max_batch_tokens;
  loaded->eos_token_ids_ = plan->engine.eos_token_ids;
  loaded->constraints_ = std::make_unique<constraint::ConstraintCompiler>(plan->vocabulary,
                                                                          !plan->engine.eos_token_ids.empty());
  return loaded;
}

std::unique_ptr<LoadedModel> LoadedModel::Around(std::unique_ptr<Engine> engine, v1::ModelFingerprint fingerprint,
                                                 ModelLimits limits) {
  std::unique_ptr<LoadedModel> loaded(new LoadedModel());
  loaded->engine_ = std::move(engine);
  loaded->fingerprint_ = std::move(fingerprint);
  loaded->limits_ = std::move(limits);
  return loaded;
}

}  // namespace baton::engine
