#include "tests/fakes/random_gguf.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::fakes {
namespace {

using kernels::DType;

constexpr ModelShape kShapes[] = {
    {"smollm2-135m", "smollm", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000, false},
    {"smollm2-360m", "smollm", 32, 960, 2560, 15, 5, 64, 49152, 8192, 100000, false},
    {"llama-3.2-1b", "llama-bpe", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000, true},
    {"layers30", "smollm", 30, 64, 64, 1, 1, 64, 512, 4096, 10000, false},  // next to no arithmetic
    {"tiny", "smollm", 3, 256, 512, 4, 2, 64, 512, 4096, 10000, false},
};

constexpr int64_t kBufferElements = 256 * 1024;  // a multiple of every block

uint64_t NextRandom(uint64_t* state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

struct Tensor {
  std::string name;
  DType dtype;
  int64_t cols, rows;  // rows 0: a vector
  float scale;         // spread of a matrix's values; a vector's are near 1

  int64_t num_elements() const { return cols * std::max<int64_t>(rows, 1); }
  int64_t num_bytes() const { return num_elements() / kernels::BlockElements(dtype) * kernels::BlockBytes(dtype); }
};

void PutHalf(float value, uint8_t* at) {
  const uint16_t h = kernels::FloatToHalf(value);
  std::memcpy(at, &h, sizeof h);
}

// The scales of a block whose codes are random already, so that values spread by about `scale`.
void PutScales(DType dtype, float scale, uint8_t* block) {
  constexpr float kSpread4 = 4.6f, kSpread5 = 9.2f, kSpread8 = 73.6f, kSubScale = 32;
  switch (dtype) {
    case DType::kQ4_0:
      return PutHalf(scale / kSpread4, block);
    case DType::kQ5_0:
      return PutHalf(scale / kSpread5, block);
    case DType::kQ8_0:
      return PutHalf(scale / kSpread8, block);
    case DType::kQ4_1:
      PutHalf(scale / kSpread4, block);
      return PutHalf(-7.5f * scale / kSpread4, block + 2);
    case DType::kQ5_1:
      PutHalf(scale / kSpread5, block);
      return PutHalf(-15.5f * scale / kSpread5, block + 2);
    case DType::kQ4_K:
      PutHalf(scale / (kSubScale * kSpread4), block);
      return PutHalf(7.5f * scale / (kSubScale * kSpread4), block + 2);
    case DType::kQ5_K:
      PutHalf(scale / (kSubScale * kSpread5), block);
      return PutHalf(15.5f * scale / (kSubScale * kSpread5), block + 2);
    case DType::kQ6_K:
      return PutHalf(scale / (kSpread8 * 18.5f), block + 208);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;  // not block formats
  }
}

// Floats are drawn from a table of evenly spaced values, four from each random word.
class FloatTable {
 public:
  FloatTable(DType dtype, float scale) : bytes_(dtype == DType::kF32 ? 4 : 2), table_(kSize * bytes_) {
    for (int i = 0; i < kSize; ++i) {
      const float value = 1.7f * scale * (static_cast<float>(2 * i + 1) / kSize - 1);
      const uint16_t half = dtype == DType::kF16 ? kernels::FloatToHalf(value) : kernels::FloatToBf16(value);
      std::memcpy(table_.data() + i * bytes_, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half, bytes_);
    }
  }
  void Fill(int64_t n, uint64_t* state, uint8_t* out) const {
    uint64_t word = 0;
    for (int64_t i = 0; i < n; ++i, word >>= 16) {
      if (i % 4 == 0) word = NextRandom(state);
      std::memcpy(out + i * bytes_, table_.data() + word % kSize * bytes_, bytes_);
    }
  }

 private:
  static constexpr int kSize = 4096;
  const int bytes_;
  std::vector<uint8_t> table_;
};

void FillMatrix(const Tensor& tensor, int64_t n, const FloatTable& floats, uint64_t* state, std::vector<uint8_t>* out) {
  const int64_t block = kernels::BlockElements(tensor.dtype), block_bytes = kernels::BlockBytes(tensor.dtype);
  out->resize(static_cast<size_t>(n / block * block_bytes + 8));
  if (block == 1) {
    floats.Fill(n, state, out->data());
  } else {
    for (size_t i = 0; i + 8 <= out->size(); i += 8) {
      const uint64_t word = NextRandom(state);
      std::memcpy(out->data() + i, &word, sizeof word);
    }
    for (int64_t i = 0; i < n / block; ++i) PutScales(tensor.dtype, tensor.scale, out->data() + i * block_bytes);
  }
  out->resize(out->size() - 8);
}

// Distinct strings: bytes, three specials, then all words of two, three and four letters, each made by one merge.
void AddTokenizer(const ModelShape& shape, GgufWriter* writer) {
  std::vector<std::string> tokens = ByteTokens(), merges;
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.push_back(special);
    types.push_back(3);
  }
  std::vector<std::string> shorter;
  for (char c = 'a'; c <= 'z'; ++c) shorter.emplace_back(1, c);
  const size_t vocab_size = static_cast<size_t>(shape.vocab_size);
  while (tokens.size() < vocab_size) {
    std::vector<std::string> words;
    for (const std::string& word : shorter) {
      for (char c = 'a'; c <= 'z' && tokens.size() < vocab_size; ++c) {
        merges.push_back(absl::StrCat(word, " ", std::string(1, c)));
        words.push_back(absl::StrCat(word, std::string(1, c)));
        tokens.push_back(words.back());
        types.push_back(1);
      }
    }
    shorter = std::move(words);
  }
  writer->AddString("tokenizer.ggml.model", "gpt2");
  writer->AddString("tokenizer.ggml.pre", shape.pre_tokenizer);
  writer->AddStrings("tokenizer.ggml.tokens", tokens);
  writer->AddInt32s("tokenizer.ggml.token_type", types);
  writer->AddStrings("tokenizer.ggml.merges", merges);
  writer->AddUint32("tokenizer.ggml.bos_token_id", 256);
  writer->AddUint32("tokenizer.ggml.eos_token_id", 258);
  writer->AddBool("tokenizer.ggml.add_bos_token", false);
}

void AddConfig(const RandomGgufOptions& options, GgufWriter* writer) {
  const ModelShape& shape = *options.shape;
  const auto number = [&](absl::string_view key, int value) {
    writer->AddUint32(absl::StrCat("llama.", key), static_cast<uint32_t>(value));
  };
  writer->AddString("general.architecture", "llama");
  writer->AddString("general.name", absl::StrCat("random ", shape.name, " ", kernels::Name(options.dtype)));
  writer->AddUint32("general.quantization_version", 2);
  number("block_count", shape.num_layers);
  number("context_length", shape.context_length);
  number("embedding_length", shape.dim);
  number("feed_forward_length", shape.ffn_dim);
  number("attention.head_count", shape.num_heads);
  number("attention.head_count_kv", shape.num_kv_heads);
  number("attention.key_length", shape.head_dim);
  number("attention.value_length", shape.head_dim);
  number("rope.dimension_count", shape.head_dim);
  number("vocab_size", shape.vocab_size);
  writer->AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer->AddFloat("llama.rope.freq_base", shape.rope_theta);
}

std::vector<Tensor> Tensors(const RandomGgufOptions& options) {
  const ModelShape& s = *options.shape;
  std::vector<Tensor> tensors;
  const auto matrix = [&](const std::string& name, int cols, int rows, float gain) {
    tensors.push_back({name, MatrixDType(options.dtype, cols), cols, rows, gain / std::sqrt(static_cast<float>(cols))});
  };
  const auto vector = [&](const std::string& name, int n) { tensors.push_back({name, DType::kF32, n, 0, 0}); };
  const int q_dim = s.num_heads * s.head_dim, kv_dim = s.num_kv_heads * s.head_dim;
  tensors.push_back({"token_embd.weight", EmbeddingDType(options.dtype, s.dim), s.dim, s.vocab_size,
                     1.5f / std::sqrt(static_cast<float>(s.dim))});
  if (s.llama3_rope) vector("rope_freqs.weight", s.head_dim / 2);
  for (int i = 0; i < s.num_layers; ++i) {
    const std::string prefix = absl::StrCat("blk.", i, ".");
    vector(prefix + "attn_norm.weight", s.dim);
    matrix(prefix + "attn_q.weight", s.dim, q_dim, 2);
    matrix(prefix + "attn_k.weight", s.dim, kv_dim, 2);
    matrix(prefix + "attn_v.weight", s.dim, kv_dim, 1);
    matrix(prefix + "attn_output.weight", q_dim, s.dim, 1);
    vector(prefix + "ffn_norm.weight", s.dim);
    matrix(prefix + "ffn_gate.weight", s.dim, s.ffn_dim, 1);
    matrix(prefix + "ffn_up.weight", s.dim, s.ffn_dim, 1);
    matrix(prefix + "ffn_down.weight", s.ffn_dim, s.dim, 1);
  }
  vector("output_norm.weight", s.dim);
  return tensors;
}

bool WriteAll(const void* bytes, size_t n, std::FILE* file) { return std::fwrite(bytes, 1, n, file) == n; }

bool WriteTensor(const Tensor& tensor, uint64_t seed, std::FILE* file) {
  uint64_t state = seed;
  for (char c : tensor.name) state = state * 1099511628211u + static_cast<uint8_t>(c);
  if (tensor.rows == 0) {
    std::vector<float> values(static_cast<size_t>(tensor.cols));
    // Rotary factors are divisors of at least 1, norms are near 1: both near enough.
    for (float& v : values) v = 1 + static_cast<float>(NextRandom(&state) >> 40) / (1 << 26);
    return WriteAll(values.data(), values.size() * sizeof(float), file);
  }
  const FloatTable floats(tensor.dtype, tensor.scale);
  std::vector<uint8_t> buffer;
  for (int64_t done = 0; done < tensor.num_elements(); done += kBufferElements) {
    FillMatrix(tensor, std::min(kBufferElements, tensor.num_elements() - done), floats, &state, &buffer);
    if (!WriteAll(buffer.data(), buffer.size(), file)) return false;
  }
  return true;
}

}  // namespace

std::span<const ModelShape> ModelShapes() { return kShapes; }

const ModelShape* FindModelShape(absl::string_view name) {
  for (const ModelShape& shape : kShapes) {
    if (name == shape.name) return &shape;
  }
  return nullptr;
}

DType MatrixDType(DType wanted, int64_t cols) {
  return cols % kernels::BlockElements(wanted) == 0 ? wanted : DType::kQ8_0;
}

DType EmbeddingDType(DType wanted, int64_t cols) {
  const bool few_bits = kernels::BlockElements(wanted) > 1 && wanted != DType::kQ8_0;
  return MatrixDType(few_bits ? DType::kQ6_K : wanted, cols);
}

absl::Status WriteRandomGguf(const RandomGgufOptions& options, const std::string& path) {
  constexpr uint64_t kAlignment = 32;
  GgufWriter writer;
  AddConfig(options, &writer);
  AddTokenizer(*options.shape, &writer);
  const std::vector<Tensor> tensors = Tensors(options);
  const auto padded = [](uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    std::vector<uint64_t> dims = {static_cast<uint64_t>(tensor.cols)};
    if (tensor.rows > 0) dims.push_back(static_cast<uint64_t>(tensor.rows));
    writer.AddTensorInfo(tensor.name, dims, GgmlTypeNumber(tensor.dtype), offset);
    offset += padded(static_cast<uint64_t>(tensor.num_bytes()));
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), &std::fclose);
  const auto failed = [&] {
    const std::string why = std::strerror(errno);
    if (file != nullptr) std::remove(path.c_str());
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", why));
  };
  if (file == nullptr) return failed();
  const std::string header = writer.Finish();
  if (!WriteAll(header.data(), header.size(), file.get())) return failed();
  for (const Tensor& tensor : tensors) {
    if (!WriteTensor(tensor, options.seed, file.get())) return failed();
    const uint64_t bytes = static_cast<uint64_t>(tensor.num_bytes());
    const char zeros[kAlignment] = {};
    if (!WriteAll(zeros, padded(bytes) - bytes, file.get())) return failed();
  }
  if (std::fflush(file.get()) != 0) return failed();
  return absl::OkStatus();
}

}  // namespace baton::fakes
