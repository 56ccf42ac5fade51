#include "model/tokenizer/gguf_tokenizer.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::model {
namespace {

std::string Key(absl::string_view name) { return absl::StrCat("tokenizer.ggml.", name); }

absl::Status LoadId(const GgufFile& file, absl::string_view name, int32_t* id) {
  const std::string key = Key(name);
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<int64_t> value = file.GetInt(key);
  if (!value.ok()) return value.status();
  // Converters write "none" as -1, which an unsigned field turns into 2^32 - 1.
  if (*value == -1 || *value == std::numeric_limits<uint32_t>::max()) return absl::OkStatus();
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", key, " is ", *value, ", which is no token id"));
  }
  *id = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

absl::Status LoadBool(const GgufFile& file, absl::string_view name, bool* out) {
  const std::string key = Key(name);
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<bool> value = file.GetBool(key);
  if (value.ok()) *out = *value;
  return value.status();
}

absl::Status LoadStrings(const GgufFile& file, absl::string_view name, std::vector<std::string>* out) {
  auto values = file.GetStrings(Key(name));
  if (!values.ok()) return values.status();
  out->reserve(values->size());
  for (const absl::string_view value : *values) out->emplace_back(value);
  return absl::OkStatus();
}

absl::Status LoadTypes(const GgufFile& file, std::vector<int32_t>* out) {
  const std::string key = Key("token_type");
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<std::vector<int64_t>> values = file.GetInts(key);
  if (!values.ok()) return values.status();
  out->reserve(values->size());
  for (const int64_t value : *values) {
    // A type of a later version of the format is treated as plain text.
    out->push_back(value >= 0 && value <= 6 ? static_cast<int32_t>(value) : static_cast<int32_t>(TokenType::kNormal));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerData> LoadTokenizerData(const GgufFile& file) {
  TokenizerData data;
  absl::StatusOr<absl::string_view> model = file.GetString(Key("model"));
  if (!model.ok()) return model.status();
  data.model = std::string(*model);
  data.pre = "default";
  if (file.Has(Key("pre"))) {
    absl::StatusOr<absl::string_view> pre = file.GetString(Key("pre"));
    if (!pre.ok()) return pre.status();
    data.pre = std::string(*pre);
  }
  const bool byte_level = data.model == "gpt2";
  data.add_bos = !byte_level;  // what the format says for an absent key
  absl::Status status = LoadStrings(file, "tokens", &data.tokens);
  if (status.ok()) status = LoadTypes(file, &data.token_types);
  if (status.ok() && byte_level) status = LoadStrings(file, "merges", &data.merges);
  if (status.ok() && data.model == "llama") {
    absl::StatusOr<std::vector<float>> scores = file.GetFloats(Key("scores"));
    if (!scores.ok()) return scores.status();
    data.scores = *std::move(scores);
  }
  const std::pair<const char*, int32_t*> ids[] = {
      {"bos_token_id", &data.bos_id}, {"eos_token_id", &data.eos_id},     {"eot_token_id", &data.eot_id},
      {"eom_token_id", &data.eom_id}, {"unknown_token_id", &data.unk_id}, {"padding_token_id", &data.pad_id},
  };
  for (const auto& [name, id] : ids) {
    if (status.ok()) status = LoadId(file, name, id);
  }
  if (status.ok()) status = LoadBool(file, "add_bos_token", &data.add_bos);
  if (status.ok()) status = LoadBool(file, "add_eos_token", &data.add_eos);
  if (status.ok()) status = LoadBool(file, "add_space_prefix", &data.add_space_prefix);
  if (!status.ok()) return status;
  if (!file.Has(Key("add_bos_token")) && data.bos_id < 0) data.add_bos = false;
  return data;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const GgufFile& file) {
  absl::StatusOr<TokenizerData> data = LoadTokenizerData(file);
  if (!data.ok()) return data.status();
  return Tokenizer::Create(*std::move(data));
}

}  // namespace baton::model
