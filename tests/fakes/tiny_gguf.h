// Small GGUF models with random weights, made from a seed: real files in every respect, a few hundred KB each.
//
// For tests of everything above the loader (engine, processes, command line) that must not need a downloaded model. The
// text they write is nonsense; it is a deterministic function of the seed on every host.
//
// The vocabulary is byte-level BPE ("gpt2"): ids 0 to 255 are the bytes, in the order of their values, then the
// specials
// "<|endoftext|>" (256; BOS, and padding), "<|im_start|>" (257), "<|im_end|>" (258; EOS), then a few merged pairs.
#ifndef BATON_TESTS_FAKES_TINY_GGUF_H_
#define BATON_TESTS_FAKES_TINY_GGUF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/dtype.h"

namespace baton::fakes {

enum class TinyFamily { kLlama, kLlama3Rope, kMistral, kQwen2, kQwen3, kGemma3 };

struct TinyModelOptions {
  TinyFamily family = TinyFamily::kLlama;
  // Of all matrices. Formats of 256-element blocks make the model wider (dim and ffn_dim 256 and 512 instead of 64,
  // 96).
  kernels::DType dtype = kernels::DType::kQ8_0;
  uint64_t seed = 1;
  int num_layers = 2;  // Gemma 3 wants 6 for a layer that sees everything
  int context_length = 512;
  int extra_vocab = 21;  // merged pairs after the specials, up to 200
  bool tied_head = true;
  float rope_linear_factor = 1;
  int num_kv_heads = 0, ffn_dim = 0;  // 0: the family's; heads are then twice as many as KV heads
  std::string chat_template;  // instead of the usual one, which knows no tools
};

// The file's bytes.
std::string TinyGguf(const TinyModelOptions& options);

// Writes them to `path` (replacing it). UNAVAILABLE when that fails.
absl::Status WriteTinyGguf(const TinyModelOptions& options, const std::string& path);

// Builds GGUF files piece by piece, damaged ones too; nothing is checked. For tests of the reader.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  void AddUint32(absl::string_view key, uint32_t value);
  void AddUint64(absl::string_view key, uint64_t value);
  void AddFloat(absl::string_view key, float value);
  void AddBool(absl::string_view key, bool value);
  void AddString(absl::string_view key, absl::string_view value);
  void AddStrings(absl::string_view key, const std::vector<std::string>& values);
  void AddInt32s(absl::string_view key, const std::vector<int32_t>& values);
  void AddFloats(absl::string_view key, const std::vector<float>& values);
  // A value given as raw bytes after its type number.
  void AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes);
  // `type` is ggml's number. The offset is where the data section ends so far, aligned; `data` is padded.
  void AddTensor(absl::string_view name, const std::vector<uint64_t>& dims, uint32_t type, absl::string_view data);
  // The same with any offset, adding no data.
  void AddTensorInfo(absl::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset);
  void set_alignment(uint64_t alignment) { alignment_ = alignment; }  // of the layout; add the key yourself

  std::string Finish() const;
  // Counts as given instead of the true ones.
  std::string Finish(uint64_t num_tensors, uint64_t num_metadata) const;

 private:
  uint32_t version_;
  uint64_t alignment_ = 32;
  uint64_t num_metadata_ = 0;
  uint64_t num_tensors_ = 0;
  std::string metadata_;
  std::string tensor_infos_;
  std::string data_;
};

// Little-endian bytes, as GGUF writes numbers and strings.
std::string GgufU32(uint32_t value);
std::string GgufU64(uint64_t value);
std::string GgufText(absl::string_view text);

// Random bytes that are valid blocks of `dtype` encoding values of about the given size. n is a multiple of the block.
std::string RandomBlocks(kernels::DType dtype, int64_t n, float scale, uint64_t* rng_state);

// The 256 tokens that stand for single bytes in a byte-level BPE vocabulary, in order of the byte.
std::vector<std::string> ByteTokens();

// ggml's number of a type.
uint32_t GgmlTypeNumber(kernels::DType dtype);

}  // namespace baton::fakes

#endif  // BATON_TESTS_FAKES_TINY_GGUF_H_
