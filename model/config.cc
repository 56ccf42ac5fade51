#include "model/config.h"

#include <cmath>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace baton::model {
namespace {

constexpr uint64_t kMaxDim = 1 << 20;  // of any matrix side but the vocabulary
constexpr uint64_t kMaxVocab = 1 << 24;
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxHeadDim = 1024;
constexpr uint64_t kMaxContext = 1 << 26;  // positions are int32; SinCos wants angles below 2^27

absl::Status Bad(const GgufFile& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", what, ". The file is damaged or was converted ",
                                                 "wrongly; convert or fetch it again."));
}

absl::Status Unsupported(const GgufFile& file, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(file.name(), ": ", what, ", which Baton does not compute yet. ",
                                               "Use a Llama, Mistral, SmolLM2, Qwen 2, Qwen 3 or Gemma 3 model."));
}

// Reads keys of one architecture ("llama.block_count") and remembers the first error, so that reading stays linear.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, absl::string_view architecture) : file_(file), prefix_(architecture) {}

  std::string Key(absl::string_view suffix) const { return absl::StrCat(prefix_, ".", suffix); }
  bool Has(absl::string_view suffix) const { return file_.Has(Key(suffix)); }

  // In [min, max].
  int Int(absl::string_view suffix, uint64_t min, uint64_t max) {
    auto value = file_.GetUint(Key(suffix));
    if (!value.ok()) return Fail(value.status());
    if (*value < min || *value > max) {
      return Fail(Bad(file_, absl::StrCat(Key(suffix), " is ", *value, ", expected ", min, " to ", max)));
    }
    return static_cast<int>(*value);
  }
  int IntOr(absl::string_view suffix, uint64_t min, uint64_t max, int otherwise) {
    return Has(suffix) ? Int(suffix, min, max) : otherwise;
  }
  // Finite, in (0, max]; zero too when `zero_is_fine`.
  double Float(absl::string_view suffix, double max, bool zero_is_fine = false) {
    auto value = file_.GetFloat(Key(suffix));
    if (!value.ok()) return Fail(value.status());
    if (!(*value <= max && (*value > 0 || (zero_is_fine && *value == 0)))) {
      return Fail(Bad(file_, absl::StrCat(Key(suffix), " is ", *value, ", expected more than 0 and at most ", max)));
    }
    return *value;
  }
  double FloatOr(absl::string_view suffix, double max, double otherwise, bool zero_is_fine = false) {
    return Has(suffix) ? Float(suffix, max, zero_is_fine) : otherwise;
  }

  const absl::Status& status() const { return status_; }

 private:
  int Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return 0;
  }

  const GgufFile& file_;
  const std::string prefix_;
  absl::Status status_;
};

absl::Status ReadSizes(const GgufFile& file, KeyReader& keys, ModelConfig* config) {
  config->num_layers = keys.Int("block_count", 1, kMaxLayers);
  config->dim = keys.Int("embedding_length", 1, kMaxDim);
  config->ffn_dim = keys.Int("feed_forward_length", 1, kMaxDim);
  config->num_heads = keys.Int("attention.head_count", 1, kMaxDim);
  config->num_kv_heads = keys.IntOr("attention.head_count_kv", 1, kMaxDim, config->num_heads);
  config->context_length = keys.Int("context_length", 1, kMaxContext);
  config->norm_epsilon = static_cast<float>(keys.Float("attention.layer_norm_rms_epsilon", 1));
  if (!keys.status().ok()) return keys.status();
  if (config->num_heads % config->num_kv_heads != 0) {
    return Bad(file, absl::StrCat(config->num_heads, " query heads cannot share ", config->num_kv_heads, " KV heads"));
  }
  if (keys.Has("attention.key_length")) {
    config->head_dim = keys.Int("attention.key_length", 2, kMaxHeadDim);
  } else {
    if (config->dim % config->num_heads != 0) {
      return Bad(file, absl::StrCat("width ", config->dim, " is no multiple of ", config->num_heads, " heads"));
    }
    config->head_dim = config->dim / config->num_heads;
  }
  if (keys.IntOr("attention.value_length", 1, kMaxHeadDim, config->head_dim) != config->head_dim) {
    return Unsupported(file, "keys and values of different head sizes");
  }
  config->rope_dim = keys.IntOr("rope.dimension_count", 2, kMaxHeadDim, config->head_dim);
  if (!keys.status().ok()) return keys.status();
  if (config->head_dim < 2 || config->head_dim > static_cast<int>(kMaxHeadDim) || config->head_dim % 2 != 0 ||
      config->rope_dim > config->head_dim || config->rope_dim % 2 != 0) {
    return Bad(file, absl::StrCat("head size ", config->head_dim, " with ", config->rope_dim,
                                  " rotated elements; both must be even, at most ", kMaxHeadDim));
  }
  if (uint64_t{static_cast<uint32_t>(config->num_heads)} * static_cast<uint32_t>(config->head_dim) > kMaxDim) {
    return Bad(file, absl::StrCat(config->num_heads, " heads of ", config->head_dim, " are too wide"));
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, KeyReader& keys, ModelConfig* config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2 || embedding->dims[1] > static_cast<int64_t>(kMaxVocab)) {
    return Bad(file, "tensor token_embd.weight must be a matrix with one row per token");
  }
  config->vocab_size = static_cast<int>(embedding->dims[1]);
  if (keys.IntOr("vocab_size", 1, kMaxVocab, config->vocab_size) != config->vocab_size) {
    return Bad(file,
               absl::StrCat(keys.Key("vocab_size"), " differs from the embedding's ", config->vocab_size, " rows"));
  }
  if (!keys.status().ok()) return keys.status();
  if (file.Has("tokenizer.ggml.tokens")) {
    auto tokens = file.GetStrings("tokenizer.ggml.tokens");
    if (!tokens.ok()) return tokens.status();
    if (tokens->size() > static_cast<size_t>(config->vocab_size)) {
      return Bad(file, absl::StrCat("the tokenizer has ", tokens->size(), " tokens, the embedding only ",
                                    config->vocab_size, " rows"));
    }
  }
  config->tied_head = file.FindTensor("output.weight") == nullptr;
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, KeyReader& keys, ModelConfig* config) {
  config->rope.theta = keys.FloatOr("rope.freq_base", 1e12, 10000);
  if (!keys.status().ok()) return keys.status();
  if (keys.Has("rope.scaling.type")) {
    auto type = file.GetString(keys.Key("rope.scaling.type"));
    if (!type.ok()) return type.status();
    if (*type == "linear") {
      config->rope.linear_factor = keys.Float("rope.scaling.factor", 1e6);
    } else if (*type != "none" && *type != "llama3") {
      return Unsupported(file, absl::StrCat("rope scaling \"", absl::CEscape(*type), "\""));
    }
  } else if (keys.Has("rope.scale_linear")) {
    config->rope.linear_factor = keys.Float("rope.scale_linear", 1e6);
  }
  if (!keys.status().ok()) return keys.status();
  if (config->rope.linear_factor < 1) return Bad(file, "the rope scaling factor is below 1");
  if (config->rope.theta < 1) return Bad(file, absl::StrCat(keys.Key("rope.freq_base"), " is below 1"));
  if (const GgufTensor* factors = file.FindTensor("rope_freqs.weight"); factors != nullptr) {
    if (factors->dtype != kernels::DType::kF32 || factors->dims != std::vector<int64_t>{config->rope_dim / 2}) {
      return Bad(file, absl::StrCat("tensor rope_freqs.weight must be f32 [", config->rope_dim / 2, "], found ",
                                    kernels::Name(factors->dtype), " [", absl::StrJoin(factors->dims, ", "), "]"));
    }
    config->rope.freq_factors.resize(static_cast<size_t>(config->rope_dim) / 2);
    absl::Status read = file.ReadTensor(*factors, 0, std::as_writable_bytes(std::span(config->rope.freq_factors)));
    if (!read.ok()) return read;
    for (float f : config->rope.freq_factors) {
      // Real factors are 1 and more; the bounds keep angles where SinCos is exact.
      if (!(f >= 0.5f && f <= 1e6f)) return Bad(file, absl::StrCat("rope_freqs.weight holds ", f));
    }
  }
  return absl::OkStatus();
}

// Which layers see a window only: Gemma 3 repeats five that do and one that does not.
absl::Status ReadSlidingLayers(const GgufFile& file, KeyReader& keys, int default_pattern, ModelConfig* config) {
  config->sliding_window = keys.IntOr("attention.sliding_window", 0, kMaxContext, 0);
  config->layer_slides.assign(config->num_layers, false);
  if (!keys.status().ok() || config->sliding_window == 0) return keys.status();
  const std::string key = keys.Key("attention.sliding_window_pattern");
  const GgufValue* value = file.Find(key);
  if (value != nullptr && value->type == GgufType::kArray) {
    auto slides = file.GetBools(key);
    if (!slides.ok()) return slides.status();
    if (slides->size() != config->layer_slides.size()) {
      return Bad(file, absl::StrCat(key, " has ", slides->size(), " entries for ", config->num_layers, " layers"));
    }
    config->layer_slides = *std::move(slides);
    return absl::OkStatus();
  }
  const int pattern = keys.IntOr("attention.sliding_window_pattern", 1, kMaxLayers, default_pattern);
  if (!keys.status().ok()) return keys.status();
  for (int i = 0; i < config->num_layers; ++i) {
    config->layer_slides[i] = pattern == 0 || i % pattern != pattern - 1;
  }
  return absl::OkStatus();
}

absl::Status ReadGemma3(const GgufFile& file, KeyReader& keys, ModelConfig* config) {
  config->post_norms = true;
  config->embedding_scale = std::sqrt(static_cast<float>(config->dim));
  config->activation = kernels::Activation::kGeluTanh;
  if (absl::Status s = ReadSlidingLayers(file, keys, 6, config); !s.ok()) return s;
  // Window layers turn at their own base and are never stretched.
  config->local_rope = RopeConfig();
  config->local_rope.theta = keys.FloatOr("rope.freq_base_swa", 1e12, 10000);
  if (keys.status().ok() && config->local_rope.theta < 1) {
    return Bad(file, absl::StrCat(keys.Key("rope.freq_base_swa"), " is below 1"));
  }
  config->final_softcap = static_cast<float>(keys.FloatOr("final_logit_softcapping", 1e6, 0, true));
  // The 27B model alone scales by the width of a head in the residual stream; GGUF does not say so, its depth does.
  constexpr int kLayersOf27B = 62;
  if (config->num_layers == kLayersOf27B) {
    config->attention_scale = 1 / std::sqrt(static_cast<float>(config->dim) / config->num_heads);
  }
  return keys.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file) {
  auto architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return architecture.status();
  ModelConfig config;
  config.architecture = std::string(*architecture);
  const bool is_llama = config.architecture == "llama";
  const bool is_gemma3 = config.architecture == "gemma3";
  if (!is_llama && !is_gemma3 && config.architecture != "qwen2" && config.architecture != "qwen3") {
    return Unsupported(file, absl::StrCat("architecture \"", absl::CEscape(config.architecture), "\""));
  }
  KeyReader keys(file, config.architecture);
  if (keys.IntOr("expert_count", 0, kMaxDim, 0) > 0) return Unsupported(file, "a mixture of experts");
  if (absl::Status s = ReadSizes(file, keys, &config); !s.ok()) return s;
  if (absl::Status s = ReadVocabulary(file, keys, &config); !s.ok()) return s;
  // Converters reorder Llama's query and key rows so that neighbours form a pair; the other families keep halves.
  config.rope_style = is_llama ? kernels::RopeStyle::kInterleaved : kernels::RopeStyle::kHalves;
  if (absl::Status s = ReadRope(file, keys, &config); !s.ok()) return s;
  config.qkv_bias = file.FindTensor("blk.0.attn_q.bias") != nullptr;
  config.qk_norm = file.FindTensor("blk.0.attn_q_norm.weight") != nullptr;
  config.attention_scale = 1 / std::sqrt(static_cast<float>(config.head_dim));
  config.local_rope = config.rope;
  config.layer_slides.assign(config.num_layers, false);
  if (is_gemma3) {
    if (absl::Status s = ReadGemma3(file, keys, &config); !s.ok()) return s;
  } else if (is_llama) {  // Mistral 7B v0.1: every layer slides
    if (absl::Status s = ReadSlidingLayers(file, keys, 0, &config); !s.ok()) return s;
  }
  config.attention_scale = static_cast<float>(keys.FloatOr("attention.scale", 1e6, config.attention_scale));
  if (!keys.status().ok()) return keys.status();
  if (absl::Status s = ValidateTensors(config, file); !s.ok()) return s;
  return config;
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  const int64_t dim = config.dim, ffn = config.ffn_dim, q = config.q_dim(), kv = config.kv_dim();
  std::vector<ExpectedTensor> expected;
  const auto matrix = [&](std::string name, int64_t cols, int64_t rows) {
    expected.push_back({std::move(name), {cols, rows}, false});
  };
  const auto vector = [&](std::string name, int64_t size) { expected.push_back({std::move(name), {size}, true}); };
  matrix("token_embd.weight", dim, config.vocab_size);
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string block = absl::StrCat("blk.", i, ".");
    vector(block + "attn_norm.weight", dim);
    matrix(block + "attn_q.weight", dim, q);
    matrix(block + "attn_k.weight", dim, kv);
    matrix(block + "attn_v.weight", dim, kv);
    if (config.qkv_bias) {
      vector(block + "attn_q.bias", q);
      vector(block + "attn_k.bias", kv);
      vector(block + "attn_v.bias", kv);
    }
    if (config.qk_norm) {
      vector(block + "attn_q_norm.weight", config.head_dim);
      vector(block + "attn_k_norm.weight", config.head_dim);
    }
    matrix(block + "attn_output.weight", q, dim);
    if (config.post_norms) vector(block + "post_attention_norm.weight", dim);
    vector(block + "ffn_norm.weight", dim);
    matrix(block + "ffn_gate.weight", dim, ffn);
    matrix(block + "ffn_up.weight", dim, ffn);
    matrix(block + "ffn_down.weight", ffn, dim);
    if (config.post_norms) vector(block + "post_ffw_norm.weight", dim);
  }
  vector("output_norm.weight", dim);
  if (!config.tied_head) matrix("output.weight", dim, config.vocab_size);
  return expected;
}

absl::Status ValidateTensors(const ModelConfig& config, const GgufFile& file) {
  absl::flat_hash_set<std::string> used = {"rope_freqs.weight"};
  for (ExpectedTensor& expected : ExpectedTensors(config)) {
    const GgufTensor* found = file.FindTensor(expected.name);
    if (found == nullptr) {
      return Bad(file,
                 absl::StrCat("tensor ", expected.name, " [", absl::StrJoin(expected.dims, ", "), "] is missing"));
    }
    if (found->dims != expected.dims) {
      return Bad(file, absl::StrCat("tensor ", expected.name, ": expected [", absl::StrJoin(expected.dims, ", "),
                                    "], found [", absl::StrJoin(found->dims, ", "), "]"));
    }
    used.insert(std::move(expected.name));
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!used.contains(std::string(tensor.name))) {
      return Unsupported(file, absl::StrCat("tensor ", absl::CEscape(tensor.name), " is no part of architecture ",
                                            config.architecture));
    }
  }
  return absl::OkStatus();
}

std::string CanonicalText(const ModelConfig& config) {
  std::string text;
  const auto number = [&](absl::string_view name, int64_t value) { absl::StrAppend(&text, name, "=", value, "\n"); };
  const auto real = [&](absl::string_view name, double value) {
    absl::StrAppend(&text, name, "=", absl::StrFormat("%a", value), "\n");
  };
  const auto rope = [&](absl::string_view name, const RopeConfig& r) {
    real(absl::StrCat(name, ".theta"), r.theta);
    real(absl::StrCat(name, ".linear_factor"), r.linear_factor);
    for (float f : r.freq_factors) real(absl::StrCat(name, ".freq_factor"), f);
  };
  absl::StrAppend(&text, "architecture=", config.architecture, "\n");
  number("vocab_size", config.vocab_size);
  number("num_layers", config.num_layers);
  number("dim", config.dim);
  number("ffn_dim", config.ffn_dim);
  number("num_heads", config.num_heads);
  number("num_kv_heads", config.num_kv_heads);
  number("head_dim", config.head_dim);
  number("context_length", config.context_length);
  real("norm_epsilon", config.norm_epsilon);
  number("rope_style", static_cast<int>(config.rope_style));
  number("rope_dim", config.rope_dim);
  rope("rope", config.rope);
  rope("local_rope", config.local_rope);
  number("qkv_bias", config.qkv_bias);
  number("qk_norm", config.qk_norm);
  number("post_norms", config.post_norms);
  number("tied_head", config.tied_head);
  real("embedding_scale", config.embedding_scale);
  number("activation", static_cast<int>(config.activation));
  number("sliding_window", config.sliding_window);
  for (bool slides : config.layer_slides) number("layer_slides", slides);
  real("attention_scale", config.attention_scale);
  real("attention_softcap", config.attention_softcap);
  real("final_softcap", config.final_softcap);
  return text;
}

}  // namespace baton::model
