// What a model file holds, without loading its weights.
#ifndef BATON_CLI_INSPECT_H_
#define BATON_CLI_INSPECT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"
#include "model/fingerprint.h"

namespace baton::cli {

struct TensorTypeCount {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

struct TokenizerSummary {
  std::string kind;  // "gpt2" or "llama"
  std::string pre;   // the pre-tokenizer's name, gpt2 only
  int vocab_size = 0;
  int num_special = 0;
  int bos_id = -1;
  bool add_bos = false;
  std::vector<int> eos_ids;             // what ends an answer
  std::vector<std::string> eos_tokens;  // their text
};

struct Inspection {
  std::string path;
  std::string name;  // general.name, may be empty
  uint64_t file_bytes = 0;
  uint32_t gguf_version = 0;
  uint64_t alignment = 0;
  uint64_t num_metadata = 0;
  model::ModelConfig config;
  std::map<std::string, TensorTypeCount> tensor_types;  // by dtype name
  uint64_t num_tensors = 0;
  uint64_t parameters = 0;
  TokenizerSummary tokenizer;
  uint64_t chat_template_bytes = 0;                    // 0: none
  std::map<std::string, uint64_t> kv_bytes_per_token;  // by KV dtype, all layers
  model::Fingerprint fingerprint;
};

// The loader's own errors for a damaged, hostile or unsupported file.
absl::StatusOr<Inspection> InspectModel(const std::string& path);

std::string FormatInspection(const Inspection& inspection);
nlohmann::ordered_json InspectionToJson(const Inspection& inspection);

}  // namespace baton::cli

#endif  // BATON_CLI_INSPECT_H_
