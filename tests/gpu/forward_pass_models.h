// The small models, and how many tokens of them, that tests of the whole forward pass on the emulator run.
#ifndef BATON_TESTS_GPU_FORWARD_PASS_MODELS_H_
#define BATON_TESTS_GPU_FORWARD_PASS_MODELS_H_

#include <vector>

#include "kernels/dtype.h"
#include "model/gguf.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/tiny_reference_models.h"

namespace baton::model {

// A pass takes ten times as long under a sanitizer. More than a block of 16 and than the 8 rows that stream weights.
#ifdef BATON_SANITIZE
inline constexpr bool kSanitized = true;
inline constexpr int kPromptTokens = 18, kExactTokens = 17;
inline const std::vector<int> kChunks = {5};
#else
inline constexpr bool kSanitized = false;
inline constexpr int kPromptTokens = 40, kExactTokens = 21;
inline const std::vector<int> kChunks = {1, 5, 16};
#endif

// Of all families; under a sanitizer without the wide ones, which take most of the time and run the same kernels.
inline std::vector<fakes::TinyReferenceModel> ForwardPassModels() {
  std::vector<fakes::TinyReferenceModel> models = fakes::TinyReferenceModels();
  if (kSanitized) {
    std::erase_if(models, [](const auto& model) { return kernels::BlockElements(model.options.dtype) > 32; });
  }
  return models;
}

inline GgufFile TinyFile(const fakes::TinyModelOptions& options) {
  return GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(options), "tiny.gguf")).value();
}

}  // namespace baton::model

#endif  // BATON_TESTS_GPU_FORWARD_PASS_MODELS_H_
