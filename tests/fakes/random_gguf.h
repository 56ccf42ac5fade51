// GGUF files with the shapes of real models and random weights, for benchmarks: speed depends on shapes and formats, not
// on values. Baton and llama.cpp both load them; the text they write is nonsense.
//
// A file is a function of its options, on every host. Matrices are written as they are made, so a file of gigabytes
// needs little memory and is limited by the disk.
#ifndef BATON_TESTS_FAKES_RANDOM_GGUF_H_
#define BATON_TESTS_FAKES_RANDOM_GGUF_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/dtype.h"

namespace baton::fakes {

struct ModelShape {
  const char* name;
  const char* pre_tokenizer;  // of tokenizer.ggml.pre
  int num_layers, dim, ffn_dim, num_heads, num_kv_heads, head_dim, vocab_size, context_length;
  float rope_theta;
  bool llama3_rope;  // with rope_freqs.weight
};

// "smollm2-135m", "smollm2-360m", "llama-3.2-1b"; "layers30", whose steps cost what 30 layers cost without arithmetic;
// "tiny". All Llama architecture with a tied head.
std::span<const ModelShape> ModelShapes();
const ModelShape* FindModelShape(absl::string_view name);  // null when unknown

struct RandomGgufOptions {
  const ModelShape* shape = nullptr;
  kernels::DType dtype = kernels::DType::kQ8_0;  // of the layers' matrices
  // As published files have it, the embedding of a 4- or 5-bit model is q6_k. Formats of 256-element blocks become q8_0
  // where rows are no multiple of 256.
  uint64_t seed = 1;
};

// The format a matrix of `cols` columns is written in.
kernels::DType MatrixDType(kernels::DType wanted, int64_t cols);
kernels::DType EmbeddingDType(kernels::DType wanted, int64_t cols);

// UNAVAILABLE when the file cannot be written; a partial file is removed.
absl::Status WriteRandomGguf(const RandomGgufOptions& options, const std::string& path);

}  // namespace baton::fakes

#endif  // BATON_TESTS_FAKES_RANDOM_GGUF_H_
