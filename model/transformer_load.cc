// Transformer::Load: from the file's tensors to the backend's weights.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/device_demand.h"
#include "model/transformer.h"

namespace baton::model {
// Reads one tensor after the other through one buffer, so that the file's bytes and the backend's copy of the whole
// model are never in memory together. Remembers the first error.
class Transformer::Loader {
 public:
  Loader(const GgufFile& file, kernels::Backend* backend, const Options& options)
      : file_(file), backend_(backend), options_(options) {
    for (const GgufTensor& tensor : file.tensors()) total_bytes_ += tensor.num_bytes;
  }

  std::unique_ptr<kernels::WeightMatrix> Matrix(absl::string_view name) {
    const GgufTensor* tensor = Read(name);
    if (tensor == nullptr) return nullptr;
    return Pack(*tensor, buffer_);
  }

  // [size] values in f32, where the kernels read them.
  Transformer::Vector Vector(absl::string_view name) {
    std::vector<float> values = Values(name);
    if (options_.device == nullptr || values.empty()) return Transformer::Vector(std::move(values));
    auto memory = kernels::DeviceArray::Allocate(options_.device, values.size() * sizeof(float));
    if (!memory.ok()) {
      Fail(absl::Status(memory.status().code(), absl::StrCat(file_.name(), ": tensor ", name, ": ", memory.status().message())));
      return {};
    }
    options_.device->Upload(memory->data(), values.data(), values.size() * sizeof(float));
    return {*std::move(memory), values.size()};
  }

  std::vector<float> Values(absl::string_view name) {
    const GgufTensor* tensor = Read(name);
    if (tensor == nullptr) return {};
    std::vector<float> values(tensor->num_elements);
    kernels::DequantizeRow(tensor->dtype, buffer_.data(), values.data(), static_cast<int64_t>(values.size()));
    for (float value : values) {
      if (!std::isfinite(value)) {
        Fail(absl::InvalidArgumentError(
            absl::StrCat(file_.name(), ": tensor ", name, " holds ", value, ". The file is damaged; fetch it again.")));
        return {};
      }
    }
    return values;
  }

  void Embedding(Transformer* model) {
    const GgufTensor* tensor = Read("token_embd.weight");
    if (tensor == nullptr) return;
    model->embedding_dtype_ = tensor->dtype;
    if (model->config_.tied_head) {  // rows are then read from the head
      model->head_ = Pack(*tensor, buffer_);
    } else if (options_.device == nullptr) {
      model->embedding_ = std::move(buffer_);
    } else {
      model->embedding_rows_ =
          Checked(*tensor, options_.device->PackRows(
                               {.dtype = tensor->dtype, .rows = tensor->dims[1], .cols = tensor->dims[0], .data = buffer_.data()}));
      if (model->embedding_rows_ == nullptr) model->embedding_ = std::move(buffer_);
    }
    buffer_ = {};
  }

  void LayerWeights(const ModelConfig& config, int i, Layer* layer) {
    const auto name = [i](absl::string_view suffix) { return absl::StrCat("blk.", i, ".", suffix); };
    layer->attn_norm = Vector(name("attn_norm.weight"));
    layer->q = Matrix(name("attn_q.weight"));
    layer->k = Matrix(name("attn_k.weight"));
    layer->v = Matrix(name("attn_v.weight"));
    if (config.qkv_bias) {
      layer->q_bias = Vector(name("attn_q.bias"));
      layer->k_bias = Vector(name("attn_k.bias"));
      layer->v_bias = Vector(name("attn_v.bias"));
    }
    if (config.qk_norm) {
      layer->q_norm = Vector(name("attn_q_norm.weight"));
      layer->k_norm = Vector(name("attn_k_norm.weight"));
    }
    layer->attn_output = Matrix(name("attn_output.weight"));
    if (config.post_norms) layer->post_attention_norm = Vector(name("post_attention_norm.weight"));
    layer->ffn_norm = Vector(name("ffn_norm.weight"));
    layer->gate = Matrix(name("ffn_gate.weight"));
    layer->up = Matrix(name("ffn_up.weight"));
    layer->down = Matrix(name("ffn_down.weight"));
    if (config.post_norms) layer->post_ffw_norm = Vector(name("post_ffw_norm.weight"));
  }

  const absl::Status& status() const { return status_; }

 private:
  // Reads a tensor into buffer_; null after an error, also an earlier one.
  const GgufTensor* Read(absl::string_view name) {
    if (!status_.ok()) return nullptr;
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {  // ValidateTensors saw it
      Fail(absl::InternalError(absl::StrCat(file_.name(), ": tensor ", name, " is missing")));
      return nullptr;
    }
    buffer_.resize(tensor->num_bytes);
    if (absl::Status read = file_.ReadTensor(*tensor, 0, buffer_); !read.ok()) {
      Fail(std::move(read));
      return nullptr;
    }
    done_bytes_ += tensor->num_bytes;
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
    return tensor;
  }

  std::unique_ptr<kernels::WeightMatrix> Pack(const GgufTensor& tensor, const std::vector<std::byte>& bytes) {
    kernels::HostTensor matrix = ShapeOf(tensor);
    matrix.data = bytes.data();
    return Checked(tensor, backend_->PackWeights(matrix));
  }

  std::unique_ptr<kernels::WeightMatrix> Checked(const GgufTensor& tensor,
                                                 absl::StatusOr<std::unique_ptr<kernels::WeightMatrix>> packed) {
    if (!packed.ok()) {
      Fail(absl::Status(packed.status().code(),
                        absl::StrCat(file_.name(), ": tensor ", tensor.name, ": ", packed.status().message())));
      return nullptr;
    }
    return *std::move(packed);
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const GgufFile& file_;
  kernels::Backend* const backend_;
  const Options& options_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  std::vector<std::byte> buffer_;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(const GgufFile& file, kernels::Backend* backend,
                                                               const Options& options) {
  auto config = ReadConfig(file);
  if (!config.ok()) return config.status();
  constexpr int kMaxBatchRows = 1 << 16;
  if (options.max_batch_rows < 1 || options.max_batch_rows > kMaxBatchRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch_rows is ", options.max_batch_rows, "; give 1 to ", kMaxBatchRows));
  }
  if (options.max_context < 0 || options.max_context > config->context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max_context is ", options.max_context, "; ", file.name(),
                                                   " was trained for ", config->context_length,
                                                   ". Give 1 to that, or 0 for the model's own."));
  }
  const int max_context = options.max_context == 0 ? config->context_length : options.max_context;
  std::unique_ptr<Transformer> model(new Transformer(*std::move(config), backend, options.device, max_context));
  Loader loader(file, backend, options);
  loader.Embedding(model.get());
  model->layers_.resize(static_cast<size_t>(model->config_.num_layers));
  for (int i = 0; i < model->config_.num_layers; ++i) {
    loader.LayerWeights(model->config_, i, &model->layers_[i]);
    if (!loader.status().ok()) return loader.status();
  }
  model->output_norm_ = loader.Vector("output_norm.weight");
  if (!model->config_.tied_head) model->head_ = loader.Matrix("output.weight");
  if (!loader.status().ok()) return loader.status();
  if (absl::Status unchanged = file.CheckUnchanged(); !unchanged.ok()) return unchanged;
  if (options.device != nullptr) {
    for (const auto& [angles, table, needed] :
         {std::tuple{&model->rope_, &model->device_angles_, true},
          {&model->local_rope_, &model->device_local_angles_, model->config_.sliding_window > 0}}) {
      if (!needed) continue;
      absl::StatusOr<DeviceAngles> made = DeviceAngles::Create(angles, options.device, max_context);
      if (!made.ok()) return made.status();
      *table = *std::move(made);
    }
  }
  if (!model->scratch_.Reserve(model->config_, options.max_batch_rows, options.device)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file.name(), ": no memory for the activations of ", options.max_batch_rows, " rows, ",
                     Scratch::BytesFor(model->config_, options.max_batch_rows), " bytes. Lower max_batch_rows."));
  }
  return model;
}

}  // namespace baton::model
