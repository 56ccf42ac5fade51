#include "cli/inspect.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"
#include "cli/quantity.h"
#include "kernels/kv_view.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"

namespace baton::cli {
namespace {

void CountTensors(const model::GgufFile& file, Inspection* out) {
  for (const model::GgufTensor& tensor : file.tensors()) {
    TensorTypeCount& count = out->tensor_types[std::string(kernels::Name(tensor.dtype))];
    ++count.tensors;
    count.elements += tensor.num_elements;  // each is bounded by the file's size, which fits many times in 64 bits
    count.bytes += tensor.num_bytes;
    ++out->num_tensors;
    out->parameters += tensor.num_elements;
  }
}

absl::Status SummarizeTokenizer(const model::GgufFile& file, Inspection* out) {
  absl::StatusOr<model::TokenizerData> data = model::LoadTokenizerData(file);
  if (!data.ok()) return data.status();
  TokenizerSummary& summary = out->tokenizer;
  summary.kind = data->model;
  summary.pre = data->pre;
  absl::StatusOr<std::unique_ptr<const model::Tokenizer>> tokenizer = model::Tokenizer::Create(*std::move(data));
  if (!tokenizer.ok()) return tokenizer.status();
  const model::Tokenizer& t = **tokenizer;
  summary.vocab_size = t.vocab_size();
  summary.bos_id = t.bos_id();
  summary.add_bos = t.add_bos();
  for (int id = 0; id < t.vocab_size(); ++id) summary.num_special += t.IsSpecial(id) ? 1 : 0;
  for (const int32_t id : t.eos_ids()) {
    summary.eos_ids.push_back(id);
    summary.eos_tokens.emplace_back(t.TokenText(id));
  }
  return absl::OkStatus();
}

void Row(absl::string_view label, absl::string_view value, std::string* out) {
  absl::StrAppend(out, absl::StrFormat("  %-15s ", label), Printable(value), "\n");
}

std::string TokenizerLine(const TokenizerSummary& t) {
  std::vector<std::string> ends;
  for (size_t i = 0; i < t.eos_ids.size(); ++i) ends.push_back(absl::StrCat(t.eos_ids[i], " ", t.eos_tokens[i]));
  return absl::StrCat(t.kind, t.pre.empty() ? "" : absl::StrCat(" (", t.pre, ")"), ", ", WithCommas(t.vocab_size),
                      " tokens, ", WithCommas(t.num_special), " special; bos ",
                      t.bos_id < 0 ? "none" : absl::StrCat(t.bos_id, t.add_bos ? " (added)" : " (not added)"),
                      "; an answer ends at ", ends.empty() ? "nothing" : absl::StrJoin(ends, ", "));
}

}  // namespace

absl::StatusOr<Inspection> InspectModel(const std::string& path) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<model::ModelConfig> config = model::ReadConfig(*file);
  if (!config.ok()) return config.status();
  if (absl::Status status = model::ValidateTensors(*config, *file); !status.ok()) return status;
  Inspection out;
  out.path = path;
  out.file_bytes = file->file_bytes();
  out.gguf_version = file->version();
  out.alignment = file->alignment();
  out.num_metadata = file->metadata().size();
  out.config = *config;
  if (const auto name = file->GetString("general.name"); name.ok()) out.name = ToUtf8(*name);
  CountTensors(*file, &out);
  if (absl::Status status = SummarizeTokenizer(*file, &out); !status.ok()) return status;
  if (const auto text = file->GetString("tokenizer.chat_template"); text.ok()) out.chat_template_bytes = text->size();
  for (const kernels::DType dtype : {kernels::DType::kF16, kernels::DType::kBF16, kernels::DType::kF32}) {
    kernels::KvLayout layout;
    layout.dtype = dtype;
    layout.num_layers = config->num_layers;
    layout.num_kv_heads = config->num_kv_heads;
    layout.head_dim = config->head_dim;
    out.kv_bytes_per_token[std::string(kernels::Name(dtype))] = layout.token_bytes();
  }
  absl::StatusOr<model::Fingerprint> fingerprint =
      model::ComputeFingerprint(*file, *config, kernels::NumericsClass::kInt);
  if (!fingerprint.ok()) return fingerprint.status();
  out.fingerprint = *std::move(fingerprint);
  return out;
}

std::string FormatInspection(const Inspection& i) {
  const model::ModelConfig& c = i.config;
  std::string out = absl::StrCat(Printable(i.path), "\n");
  Row("file",
      absl::StrCat(WithCommas(i.file_bytes), " bytes (", FormatBytes(i.file_bytes, 1), "), GGUF v", i.gguf_version,
                   ", alignment ", i.alignment, ", ", i.num_metadata, " metadata keys"),
      &out);
  Row("model",
      absl::StrCat(i.name.empty() ? "(no name)" : i.name, ", architecture ", c.architecture, ", ",
                   WithCommas(i.parameters), " parameters"),
      &out);
  Row("layers",
      absl::StrCat(c.num_layers, " of width ", c.dim, ", feed-forward ", c.ffn_dim,
                   c.tied_head ? ", head tied to the embedding" : ""),
      &out);
  Row("attention",
      absl::StrCat(c.num_heads, " heads on ", c.num_kv_heads, " KV heads of ", c.head_dim,
                   c.sliding_window > 0 ? absl::StrCat(", sliding window ", c.sliding_window) : "",
                   c.qk_norm ? ", QK norm" : "", c.qkv_bias ? ", QKV bias" : ""),
      &out);
  Row("context", absl::StrCat(WithCommas(c.context_length), " tokens"), &out);
  std::vector<std::string> kv;
  for (const auto& [dtype, bytes] : i.kv_bytes_per_token) kv.push_back(absl::StrCat(WithCommas(bytes), " in ", dtype));
  Row("KV of a token", absl::StrCat(absl::StrJoin(kv, ", "), " (bytes, all layers)"), &out);
  std::vector<std::string> types;
  for (const auto& [dtype, count] : i.tensor_types) {
    types.push_back(absl::StrCat(dtype, " ", count.tensors, " (", FormatBytes(count.bytes, 1), ")"));
  }
  Row("tensors", absl::StrCat(i.num_tensors, ": ", absl::StrJoin(types, ", ")), &out);
  Row("tokenizer", TokenizerLine(i.tokenizer), &out);
  Row("chat template",
      i.chat_template_bytes == 0 ? "none (use `complete` without --chat)"
                                 : absl::StrCat("yes, ", WithCommas(i.chat_template_bytes), " bytes"),
      &out);
  Row("fingerprint",
      absl::StrCat("weights ", i.fingerprint.weights.substr(0, 16), ", config ", i.fingerprint.config.substr(0, 16),
                   ", tokenizer ", i.fingerprint.tokenizer.substr(0, 16), " (--json has all of it)"),
      &out);
  return out;
}

nlohmann::ordered_json InspectionToJson(const Inspection& i) {
  const model::ModelConfig& c = i.config;
  nlohmann::ordered_json json;
  json["path"] = i.path;
  json["name"] = i.name;
  json["file_bytes"] = i.file_bytes;
  json["gguf_version"] = i.gguf_version;
  json["alignment"] = i.alignment;
  json["architecture"] = c.architecture;
  json["parameters"] = i.parameters;
  json["context"] = c.context_length;
  json["shape"] = {{"num_layers", c.num_layers},     {"dim", c.dim},
                   {"ffn_dim", c.ffn_dim},           {"num_heads", c.num_heads},
                   {"num_kv_heads", c.num_kv_heads}, {"head_dim", c.head_dim},
                   {"vocab_size", c.vocab_size},     {"sliding_window", c.sliding_window},
                   {"tied_head", c.tied_head},       {"qk_norm", c.qk_norm},
                   {"qkv_bias", c.qkv_bias}};
  json["num_tensors"] = i.num_tensors;
  json["tensor_types"] = nlohmann::ordered_json::object();
  for (const auto& [dtype, count] : i.tensor_types) {
    json["tensor_types"][dtype] = {{"tensors", count.tensors}, {"elements", count.elements}, {"bytes", count.bytes}};
  }
  const TokenizerSummary& t = i.tokenizer;
  std::vector<std::string> eos_tokens;
  for (const std::string& token : t.eos_tokens) eos_tokens.push_back(ToUtf8(token));
  json["tokenizer"] = {{"kind", t.kind},
                       {"pre", t.pre},
                       {"vocab_size", t.vocab_size},
                       {"num_special", t.num_special},
                       {"bos_id", t.bos_id < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(t.bos_id)},
                       {"add_bos", t.add_bos},
                       {"eos_ids", t.eos_ids},
                       {"eos_tokens", eos_tokens}};
  json["chat_template"] = i.chat_template_bytes > 0;
  json["kv_bytes_per_token"] = i.kv_bytes_per_token;
  json["fingerprint"] = {{"weights", i.fingerprint.weights},
                         {"config", i.fingerprint.config},
                         {"tokenizer", i.fingerprint.tokenizer},
                         {"numerics_class", i.fingerprint.numerics_class}};
  return json;
}

}  // namespace baton::cli
