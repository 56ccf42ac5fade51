// What must be equal on two workers for their tokens to be equal: a content hash of weights, configuration and
// tokenizer.
//
// It is computed from what the file says, not from its name or time, so copies of one model agree and a single changed
// weight byte does not. The order of tensors in the file does not matter.
//
// Thread contract: a pure function; uses its own threads inside the call.
#ifndef BATON_MODEL_FINGERPRINT_H_
#define BATON_MODEL_FINGERPRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/config.h"
#include "model/gguf.h"

namespace baton::model {

struct Fingerprint {
  std::string weights;         // hex SHA-256 over tensor names, types, shapes and bytes
  std::string config;          // hex SHA-256 over CanonicalText(config)
  std::string tokenizer;       // hex SHA-256 over the tokenizer.* metadata: vocabulary, merges, special ids, template
  std::string numerics_class;  // "f32", "int" or "bf16"
  bool operator==(const Fingerprint&) const = default;
};

// Reads the whole file once. DATA_LOSS, UNAVAILABLE, FAILED_PRECONDITION: the file could not be read, or changed.
absl::StatusOr<Fingerprint> ComputeFingerprint(const GgufFile& file, const ModelConfig& config,
                                               kernels::NumericsClass numerics);

// Fingerprint::tokenizer alone, for who reads no weights (the router).
absl::StatusOr<std::string> TokenizerFingerprint(const GgufFile& file);

}  // namespace baton::model

#endif  // BATON_MODEL_FINGERPRINT_H_
