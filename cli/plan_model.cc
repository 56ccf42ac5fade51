#include "cli/plan_model.h"

#include <array>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

// Shapes as in the models' published config.json files.
std::vector<PlanModel> Known() {
  auto llama = [](const char* name, uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t ffn) {
    PlanModel m;
    m.shape = ModelShape{.name = name,
                         .architecture = "llama",
                         .source = "built-in table, from the published config.json",
                         .num_layers = layers,
                         .hidden_size = hidden,
                         .num_heads = heads,
                         .num_kv_heads = 8,
                         .head_dim = 128,
                         .intermediate_size = ffn,
                         .vocab_size = 128256,
                         .max_context = 131072};
    m.weights_dtype = "bf16";
    return m;
  };
  PlanModel llama405 = llama("llama-3.1-405b", 126, 16384, 128, 53248);
  llama405.shape.published_parameters = 405000000000;
  llama405.weights_dtype = "fp8";
  PlanModel smol;
  smol.shape = ModelShape{.name = "smollm2-135m",
                          .architecture = "llama",
                          .source = "built-in table, from the published config.json",
                          .num_layers = 30,
                          .hidden_size = 576,
                          .num_heads = 9,
                          .num_kv_heads = 3,
                          .head_dim = 64,
                          .intermediate_size = 1536,
                          .vocab_size = 49152,
                          .max_context = 8192,
                          .tied_embeddings = true};
  smol.weights_dtype = "bf16";
  return {llama405, llama("llama-3.1-70b", 80, 8192, 64, 28672), llama("llama-3.1-8b", 32, 4096, 32, 14336), smol};
}

// Reads fields and keeps the first error.
class Fields {
 public:
  Fields(const Json& object, absl::string_view name) : object_(object), name_(name) {}

  uint64_t Required(const char* key) {
    const std::optional<uint64_t> value = Read(key);
    if (!value.has_value()) Fail(key, "is missing");
    return value.value_or(0);
  }
  uint64_t Or(const char* key, uint64_t fallback) { return Read(key).value_or(fallback); }
  bool Flag(const char* key, bool fallback) {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_boolean() ? it->get<bool>() : fallback;
  }
  std::string Text(const char* key) {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_string() ? it->get<std::string>() : std::string();
  }
  const absl::Status& status() const { return status_; }

 private:
  std::optional<uint64_t> Read(const char* key) {
    const auto it = object_.find(key);
    if (it == object_.end() || it->is_null()) return std::nullopt;
    if (it->is_number_unsigned()) return it->get<uint64_t>();
    Fail(key, "is not a whole number of zero or more");
    return 0;
  }
  void Fail(const char* key, absl::string_view why) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(name_, ": \"", key, "\" ", why,
                                                      ". `baton plan` reads a Hugging Face config.json of a "
                                                      "decoder-only model."));
  }

  const Json& object_;
  const std::string name_;
  absl::Status status_;
};

absl::Status CheckSupported(const Json& config, absl::string_view name) {
  static constexpr std::array<const char*, 5> kExperts = {"num_local_experts", "num_experts", "n_routed_experts",
                                                          "moe_intermediate_size", "num_experts_per_tok"};
  for (const char* key : kExperts) {
    if (config.contains(key) && !config[key].is_null()) {
      return absl::UnimplementedError(absl::StrCat(name, " is a mixture of experts (\"", key,
                                                   "\"), whose memory and FLOP follow other rules. `baton plan` "
                                                   "counts dense models only."));
    }
  }
  if (config.contains("kv_lora_rank") && !config["kv_lora_rank"].is_null()) {
    return absl::UnimplementedError(absl::StrCat(name,
                                                 " uses latent attention (\"kv_lora_rank\"), whose KV cache "
                                                 "follows other rules. `baton plan` counts grouped-query "
                                                 "attention only."));
  }
  return absl::OkStatus();
}

// What a family adds to the common shape.
void ApplyFamily(const std::string& type, PlanModel* model) {
  ModelShape& s = model->shape;
  if (type == "qwen2") {
    s.attention_bias = true;
  } else if (type == "qwen3") {
    s.qk_norm = true;
  } else if (type == "gemma3_text" || type == "gemma3") {
    s.qk_norm = true;
    s.norms_per_layer = 4;
  } else if (type != "llama" && type != "mistral") {
    model->remarks.push_back(absl::StrCat("the architecture \"", type.empty() ? "?" : type,
                                          "\" is counted as a Llama; norms and biases may differ slightly"));
  }
}

}  // namespace

std::optional<PlanModel> NamedModel(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const PlanModel& model : Known()) {
    if (model.shape.name == lower) return model;
  }
  return std::nullopt;
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const PlanModel& model : Known()) names.push_back(model.shape.name);
  return names;
}

absl::StatusOr<PlanModel> ParseHfConfig(absl::string_view json, absl::string_view name) {
  const Json root = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name,
                                                   " is not a JSON object. `baton plan` takes a .gguf file, a "
                                                   "Hugging Face config.json, or a name it knows."));
  }
  // Multimodal models keep the language model's shape one level down.
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  const Json& config = nested ? root["text_config"] : root;
  if (absl::Status status = CheckSupported(config, name); !status.ok()) return status;

  Fields fields(config, name);
  PlanModel model;
  ModelShape& s = model.shape;
  s.name = std::string(name);
  s.source = "config.json";
  s.architecture = fields.Text("model_type");
  s.num_layers = fields.Required("num_hidden_layers");
  s.hidden_size = fields.Required("hidden_size");
  s.num_heads = fields.Required("num_attention_heads");
  s.num_kv_heads = fields.Or("num_key_value_heads", s.num_heads);
  s.head_dim = fields.Or("head_dim", s.num_heads != 0 ? s.hidden_size / s.num_heads : 0);
  s.intermediate_size = fields.Required("intermediate_size");
  s.vocab_size = fields.Required("vocab_size");
  s.max_context = fields.Or("max_position_embeddings", 0);
  const bool gemma = s.architecture.rfind("gemma", 0) == 0;
  s.tied_embeddings = fields.Flag("tie_word_embeddings", gemma);
  s.attention_bias = fields.Flag("attention_bias", false);
  s.attention_out_bias = s.attention_bias;
  if (!fields.status().ok()) return fields.status();
  ApplyFamily(s.architecture, &model);
  if (nested) model.remarks.push_back("only the language model (\"text_config\") is counted");

  std::string dtype = fields.Text("torch_dtype");
  if (dtype.empty()) dtype = fields.Text("dtype");
  if (dtype.empty() && root.contains("torch_dtype") && root["torch_dtype"].is_string()) {
    dtype = root["torch_dtype"].get<std::string>();
  }
  model.weights_dtype = dtype == "float32" ? "f32" : dtype == "float16" ? "f16" : "bf16";
  if (root.contains("quantization_config") && root["quantization_config"].is_object()) {
    Fields quantization(root["quantization_config"], name);
    if (quantization.Text("quant_method") == "fp8") model.weights_dtype = "fp8";
  }
  return model;
}

}  // namespace baton::cli
