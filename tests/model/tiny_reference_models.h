// The tiny models that tests/reference/logits_tiny_*.json were made from: one per thing that a family does differently.
#ifndef BATON_TESTS_MODEL_TINY_REFERENCE_MODELS_H_
#define BATON_TESTS_MODEL_TINY_REFERENCE_MODELS_H_

#include <vector>

#include "tests/fakes/tiny_gguf.h"

namespace baton::fakes {

struct TinyReferenceModel {
  const char* name;  // of the golden: logits_NAME.json
  TinyModelOptions options;
};

inline std::vector<TinyReferenceModel> TinyReferenceModels() {
  using kernels::DType;
  return {
      {"tiny_llama_untied", {.family = TinyFamily::kLlama, .dtype = DType::kF32, .seed = 11, .tied_head = false}},
      {"tiny_llama3_rope", {.family = TinyFamily::kLlama3Rope, .dtype = DType::kQ5_K, .seed = 12}},
      {"tiny_llama_linear_rope",
       {.family = TinyFamily::kLlama, .dtype = DType::kQ4_0, .seed = 13, .rope_linear_factor = 4}},
      {"tiny_mistral_window", {.family = TinyFamily::kMistral, .dtype = DType::kQ5_1, .seed = 14}},
      {"tiny_qwen2", {.family = TinyFamily::kQwen2, .dtype = DType::kF16, .seed = 15}},
      {"tiny_qwen3", {.family = TinyFamily::kQwen3, .dtype = DType::kQ4_K, .seed = 16}},
      {"tiny_gemma3", {.family = TinyFamily::kGemma3, .dtype = DType::kBF16, .seed = 17, .num_layers = 7}},
  };
}

}  // namespace baton::fakes

#endif  // BATON_TESTS_MODEL_TINY_REFERENCE_MODELS_H_
