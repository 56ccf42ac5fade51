#include "tests/fakes/tiny_gguf.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "model/exact_math.h"

namespace baton::fakes {
namespace {

using kernels::DType;

uint64_t NextRandom(uint64_t* state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Uniform in [-1, 1).
float NextSigned(uint64_t* state) { return static_cast<float>(NextRandom(state) >> 40) / (1 << 23) - 1; }

void AppendHalf(float value, std::string* out) {
  const uint16_t h = kernels::FloatToHalf(value);
  out->push_back(static_cast<char>(h & 0xff));
  out->push_back(static_cast<char>(h >> 8));
}

void AppendRandom(int n, uint64_t* state, std::string* out) {
  for (int i = 0; i < n; ++i) out->push_back(static_cast<char>(NextRandom(state) >> 56));
}

// One block whose values spread by about `scale`: codes are uniform, and the divisors are their standard deviations.
void AppendQuantizedBlock(DType dtype, float scale, uint64_t* state, std::string* out) {
  constexpr float kSpread4 = 4.6f, kSpread5 = 9.2f, kSpread8 = 73.6f, kSubScale = 32;
  switch (dtype) {
    case DType::kQ4_0:
      AppendHalf(scale / kSpread4, out);
      AppendRandom(16, state, out);
      return;
    case DType::kQ4_1:
      AppendHalf(scale / kSpread4, out);
      AppendHalf(-7.5f * scale / kSpread4, out);
      AppendRandom(16, state, out);
      return;
    case DType::kQ5_0:
      AppendHalf(scale / kSpread5, out);
      AppendRandom(4 + 16, state, out);
      return;
    case DType::kQ5_1:
      AppendHalf(scale / kSpread5, out);
      AppendHalf(-15.5f * scale / kSpread5, out);
      AppendRandom(4 + 16, state, out);
      return;
    case DType::kQ8_0:
      AppendHalf(scale / kSpread8, out);
      AppendRandom(32, state, out);
      return;
    case DType::kQ4_K:
      AppendHalf(scale / (kSubScale * kSpread4), out);
      AppendHalf(7.5f * scale / (kSubScale * kSpread4), out);
      AppendRandom(12 + 128, state, out);
      return;
    case DType::kQ5_K:
      AppendHalf(scale / (kSubScale * kSpread5), out);
      AppendHalf(15.5f * scale / (kSubScale * kSpread5), out);
      AppendRandom(12 + 32 + 128, state, out);
      return;
    case DType::kQ6_K:
      AppendRandom(128 + 64 + 16, state, out);
      AppendHalf(scale / (kSpread8 * 18.5f), out);
      return;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;  // not block formats
  }
}

std::string F32Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::string Utf8(uint32_t code_point) {  // below U+0800, enough here
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The printable stand-in for a byte that byte-level BPE vocabularies use.
std::string ByteToken(int byte) {
  const auto is_itself = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (is_itself(byte)) return Utf8(static_cast<uint32_t>(byte));
  uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += !is_itself(b);
  return Utf8(next);
}

}  // namespace

std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.push_back(ByteToken(b));
  return tokens;
}

namespace {

void AddTokenizer(const TinyModelOptions& options, GgufWriter* writer) {
  const int extra_vocab = options.extra_vocab;
  constexpr int32_t kNormal = 1, kControl = 3;
  std::vector<std::string> tokens = ByteTokens(), merges;
  std::vector<int32_t> types;
  types.assign(256, kNormal);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.push_back(special);
    types.push_back(kControl);
  }
  for (int i = 0; i < extra_vocab; ++i) {  // "ea", "eb", ..., then "ta", ...
    const std::string left(1, "etaoinsr"[i / 26]), right(1, static_cast<char>('a' + i % 26));
    tokens.push_back(left + right);
    merges.push_back(absl::StrCat(left, " ", right));
    types.push_back(kNormal);
  }
  writer->AddString("tokenizer.ggml.model", "gpt2");
  writer->AddString("tokenizer.ggml.pre", "smollm");
  writer->AddStrings("tokenizer.ggml.tokens", tokens);
  writer->AddInt32s("tokenizer.ggml.token_type", types);
  writer->AddStrings("tokenizer.ggml.merges", merges);
  writer->AddUint32("tokenizer.ggml.bos_token_id", 256);
  writer->AddUint32("tokenizer.ggml.eos_token_id", 258);
  writer->AddUint32("tokenizer.ggml.padding_token_id", 256);
  writer->AddBool("tokenizer.ggml.add_bos_token", false);
  writer->AddBool("tokenizer.ggml.add_space_prefix", false);
  if (!options.chat_template.empty()) return writer->AddString("tokenizer.chat_template", options.chat_template);
  writer->AddString("tokenizer.chat_template",
                    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                    "{% endif %}");
}

struct Shape {
  const char* architecture;
  int dim, ffn_dim, num_heads, num_kv_heads, head_dim, vocab_size;
};

Shape ShapeOf(const TinyModelOptions& options) {
  const bool wide = kernels::BlockElements(options.dtype) == 256;
  Shape s{.architecture = "llama",
          .dim = wide ? 256 : 64,
          .ffn_dim = wide ? 512 : 96,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = wide ? 64 : 16,
          .vocab_size = 259 + options.extra_vocab};
  switch (options.family) {
    case TinyFamily::kLlama:
    case TinyFamily::kLlama3Rope:
    case TinyFamily::kMistral:
      break;
    case TinyFamily::kQwen2:
      s.architecture = "qwen2";
      break;
    case TinyFamily::kQwen3:
      s.architecture = "qwen3";
      s.head_dim *= 2;  // heads wider than dim / num_heads, as in the real ones
      break;
    case TinyFamily::kGemma3:
      s.architecture = "gemma3";
      s.head_dim *= 2;
      s.num_kv_heads = 1;
      break;
  }
  if (options.num_kv_heads > 0) {
    s.num_kv_heads = options.num_kv_heads;
    s.num_heads = 2 * options.num_kv_heads;
  }
  if (options.ffn_dim > 0) s.ffn_dim = options.ffn_dim;
  return s;
}

void AddConfig(const TinyModelOptions& options, const Shape& s, GgufWriter* writer) {
  const auto key = [&](absl::string_view suffix) { return absl::StrCat(s.architecture, ".", suffix); };
  writer->AddString("general.architecture", s.architecture);
  writer->AddString("general.name", absl::StrCat("tiny ", s.architecture));
  writer->AddUint32(key("block_count"), static_cast<uint32_t>(options.num_layers));
  writer->AddUint32(key("context_length"), static_cast<uint32_t>(options.context_length));
  writer->AddUint32(key("embedding_length"), static_cast<uint32_t>(s.dim));
  writer->AddUint32(key("feed_forward_length"), static_cast<uint32_t>(s.ffn_dim));
  writer->AddUint32(key("attention.head_count"), static_cast<uint32_t>(s.num_heads));
  writer->AddUint32(key("attention.head_count_kv"), static_cast<uint32_t>(s.num_kv_heads));
  writer->AddFloat(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  const bool is_gemma3 = options.family == TinyFamily::kGemma3;
  writer->AddFloat(key("rope.freq_base"), is_gemma3 ? 1e6f : 10000.0f);
  if (s.head_dim != s.dim / s.num_heads) {
    writer->AddUint32(key("attention.key_length"), static_cast<uint32_t>(s.head_dim));
    writer->AddUint32(key("attention.value_length"), static_cast<uint32_t>(s.head_dim));
  }
  if (is_gemma3 || options.family == TinyFamily::kMistral) writer->AddUint32(key("attention.sliding_window"), 24);
  if (options.rope_linear_factor != 1) {
    writer->AddString(key("rope.scaling.type"), "linear");
    writer->AddFloat(key("rope.scaling.factor"), options.rope_linear_factor);
  }
}

// Llama 3.1's scaling with factor 8, low 1, high 4 and an original context of 64, as converters store it.
std::vector<float> Llama3Factors(int head_dim) {
  std::vector<float> factors;
  const double ratio = model::Root(10000, head_dim / 2);
  double power = 1;
  for (int i = 0; i < head_dim / 2; ++i, power *= ratio) {
    const double wavelength = 2 * 3.14159265358979323846 * power;
    if (wavelength > 64) {
      factors.push_back(8);
    } else if (wavelength < 16) {
      factors.push_back(1);
    } else {
      const double smooth = (64 / wavelength - 1) / 3;
      factors.push_back(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)));
    }
  }
  return factors;
}

class WeightAdder {
 public:
  WeightAdder(const TinyModelOptions& options, GgufWriter* writer)
      : dtype_(options.dtype), state_(options.seed), writer_(writer) {}

  void Matrix(absl::string_view name, int cols, int rows, float scale) {
    writer_->AddTensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}, GgmlTypeNumber(dtype_),
                       RandomBlocks(dtype_, int64_t{cols} * rows, scale, &state_));
  }
  void Vector(absl::string_view name, int n, float center) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = center + 0.2f * NextSigned(&state_);
    writer_->AddTensor(name, {static_cast<uint64_t>(n)}, GgmlTypeNumber(DType::kF32), F32Bytes(values));
  }

 private:
  const DType dtype_;
  uint64_t state_;
  GgufWriter* const writer_;
};

void AddLayer(const TinyModelOptions& options, const Shape& s, int i, WeightAdder* weights) {
  const auto name = [i](absl::string_view suffix) { return absl::StrCat("blk.", i, ".", suffix); };
  const bool is_gemma3 = options.family == TinyFamily::kGemma3;
  const int q_dim = s.num_heads * s.head_dim, kv_dim = s.num_kv_heads * s.head_dim;
  const float in_scale = 1 / std::sqrt(static_cast<float>(s.dim));
  weights->Vector(name("attn_norm.weight"), s.dim, 1);
  weights->Matrix(name("attn_q.weight"), s.dim, q_dim, 2 * in_scale);
  weights->Matrix(name("attn_k.weight"), s.dim, kv_dim, 2 * in_scale);
  weights->Matrix(name("attn_v.weight"), s.dim, kv_dim, in_scale);
  if (options.family == TinyFamily::kQwen2) {
    weights->Vector(name("attn_q.bias"), q_dim, 0);
    weights->Vector(name("attn_k.bias"), kv_dim, 0);
    weights->Vector(name("attn_v.bias"), kv_dim, 0);
  }
  if (is_gemma3 || options.family == TinyFamily::kQwen3) {
    weights->Vector(name("attn_q_norm.weight"), s.head_dim, 1);
    weights->Vector(name("attn_k_norm.weight"), s.head_dim, 1);
  }
  weights->Matrix(name("attn_output.weight"), q_dim, s.dim, 1 / std::sqrt(static_cast<float>(q_dim)));
  if (is_gemma3) weights->Vector(name("post_attention_norm.weight"), s.dim, 1);
  weights->Vector(name("ffn_norm.weight"), s.dim, 1);
  weights->Matrix(name("ffn_gate.weight"), s.dim, s.ffn_dim, in_scale);
  weights->Matrix(name("ffn_up.weight"), s.dim, s.ffn_dim, in_scale);
  weights->Matrix(name("ffn_down.weight"), s.ffn_dim, s.dim, 1 / std::sqrt(static_cast<float>(s.ffn_dim)));
  if (is_gemma3) weights->Vector(name("post_ffw_norm.weight"), s.dim, 1);
}

}  // namespace

std::string RandomBlocks(DType dtype, int64_t n, float scale, uint64_t* rng_state) {
  std::string out;
  if (kernels::BlockElements(dtype) > 1) {
    for (int64_t i = 0; i < n; i += kernels::BlockElements(dtype)) {
      AppendQuantizedBlock(dtype, scale, rng_state, &out);
    }
    return out;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float value = scale * 1.7f * NextSigned(rng_state);
    if (dtype == DType::kF32) {
      out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else if (dtype == DType::kF16) {
      AppendHalf(value, &out);
    } else {
      const uint16_t b = kernels::FloatToBf16(value);
      out.append(reinterpret_cast<const char*>(&b), sizeof(b));
    }
  }
  return out;
}

uint32_t GgmlTypeNumber(DType dtype) {
  for (uint32_t type = 0; type < 64; ++type) {
    if (kernels::FromGgmlType(type) == dtype) return type;
  }
  return ~0u;
}

std::string TinyGguf(const TinyModelOptions& options) {
  const Shape s = ShapeOf(options);
  GgufWriter writer;
  AddConfig(options, s, &writer);
  AddTokenizer(options, &writer);
  WeightAdder weights(options, &writer);
  // Logits spread by about 1.5: distributions are neither flat nor one-hot.
  const float head_scale = 1.5f / std::sqrt(static_cast<float>(s.dim));
  weights.Matrix("token_embd.weight", s.dim, s.vocab_size, options.tied_head ? head_scale : 1);
  if (options.family == TinyFamily::kLlama3Rope) {
    const std::vector<float> factors = Llama3Factors(s.head_dim);
    writer.AddTensor("rope_freqs.weight", {factors.size()}, GgmlTypeNumber(DType::kF32), F32Bytes(factors));
  }
  for (int i = 0; i < options.num_layers; ++i) AddLayer(options, s, i, &weights);
  weights.Vector("output_norm.weight", s.dim, 1);
  if (!options.tied_head) weights.Matrix("output.weight", s.dim, s.vocab_size, head_scale);
  return writer.Finish();
}

absl::Status WriteTinyGguf(const TinyModelOptions& options, const std::string& path) {
  const std::string bytes = TinyGguf(options);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), &std::fclose);
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() ||
      std::fflush(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace baton::fakes
