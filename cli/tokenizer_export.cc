#include "cli/tokenizer_export.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/output.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;
using model::TokenType;

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // U+2581

TokenType TypeOf(const model::TokenizerData& data, size_t id) {
  return data.token_types.empty() ? TokenType::kNormal : static_cast<TokenType>(data.token_types[id]);
}

// Files hold what they hold: a token that is not UTF-8 becomes U+FFFD instead of ending the program.
std::string Text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// `object` (not empty) with one more member, given as JSON text.
std::string WithMember(const Json& object, absl::string_view name, absl::string_view value) {
  std::string text = Text(object);
  text.pop_back();
  return absl::StrCat(text, ",\"", name, "\":", value, "}");
}

// {"token": id, ...} as text: objects that keep their order look every new key up in all before it.
std::string VocabularyText(const model::TokenizerData& data) {
  std::string text = "{";
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    absl::StrAppend(&text, id == 0 ? "" : ",", Text(Json(data.tokens[id])), ":", id);
  }
  return text + "}";
}

Json Split(const std::string& regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

// The same words as model/tokenizer/pre_tokenizer.h makes, then bytes as letters.
absl::StatusOr<Json> ByteLevelPreTokenizer(const std::string& name) {
  const absl::StatusOr<std::vector<std::string>> patterns = model::PreTokenizer::Patterns(name);
  if (!patterns.ok()) return patterns.status();
  Json steps = Json::array();
  for (const std::string& pattern : *patterns) steps.push_back(Split(pattern));
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return Json{{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// SentencePiece merges the pair whose joined piece has the best score. As ranked merges: every split of every piece
// into two pieces, by that score; of one piece, the order does not matter, for they make the same.
Json MergesByScore(const model::TokenizerData& data) {
  absl::flat_hash_map<absl::string_view, int32_t> pieces;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenType type = TypeOf(data, id);
    if (type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kByte) continue;
    pieces[data.tokens[id]] = static_cast<int32_t>(id);
  }
  std::vector<int32_t> order;
  for (const auto& [piece, id] : pieces) order.push_back(id);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = data.scores[static_cast<size_t>(a)], y = data.scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  Json merges = Json::array();
  for (const int32_t id : order) {
    const absl::string_view piece = data.tokens[static_cast<size_t>(id)];
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((static_cast<unsigned char>(piece[cut]) & 0xC0) == 0x80) continue;  // inside a code point
      const absl::string_view left = piece.substr(0, cut), right = piece.substr(cut);
      if (pieces.contains(left) && pieces.contains(right)) {
        merges.push_back({std::string(left), std::string(right)});
      }
    }
  }
  return merges;
}

Json RankedMerges(const model::TokenizerData& data) {
  Json merges = Json::array();
  for (const std::string& merge : data.merges) {
    const size_t space = merge.find(' ', 1);
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

Json AddedTokens(const model::TokenizerData& data) {
  Json added = Json::array();
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenType type = TypeOf(data, id);
    if (type != TokenType::kControl && type != TokenType::kUnknown && type != TokenType::kUserDefined) continue;
    // Added tokens are looked for in the text as it comes, where a space is a space.
    const bool escaped = data.model == "llama" && type == TokenType::kUserDefined;
    added.push_back(
        {{"id", id},
         {"content", escaped ? absl::StrReplaceAll(data.tokens[id], {{kSpaceSymbol, " "}}) : data.tokens[id]},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", type != TokenType::kUserDefined}});
  }
  return added;
}

Json PostProcessor(const model::TokenizerData& data) {
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  const auto add = [&](int32_t id, Json* list, int type_id) {
    const std::string& token = data.tokens[static_cast<size_t>(id)];
    list->push_back({{"SpecialToken", {{"id", token}, {"type_id", type_id}}}});
    specials[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  for (const auto& [name, type_id] : {std::pair{"A", 0}, std::pair{"B", 1}}) {
    const Json sequence = {{"Sequence", {{"id", name}, {"type_id", type_id}}}};
    if (data.add_bos) add(data.bos_id, &pair, type_id);
    pair.push_back(sequence);
    if (data.add_eos) add(data.eos_id, &pair, type_id);
    if (type_id == 0) single = pair;
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

absl::StatusOr<Json> ByteLevelJson(const model::TokenizerData& data, Json* model) {
  const absl::StatusOr<Json> pre = ByteLevelPreTokenizer(data.pre);
  if (!pre.ok()) return pre.status();
  const absl::StatusOr<std::unique_ptr<const model::PreTokenizer>> rules = model::PreTokenizer::Create(data.pre);
  if (!rules.ok()) return rules.status();
  (*model)["ignore_merges"] = (*rules)->ignore_merges();
  (*model)["merges"] = RankedMerges(data);
  return Json{
      {"normalizer", (*rules)->nfc() ? Json{{"type", "NFC"}} : Json(nullptr)},
      {"pre_tokenizer", *pre},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}}};
}

Json SentencePieceJson(const model::TokenizerData& data, Json* model) {
  const bool has_unk = data.unk_id >= 0;
  (*model)["unk_token"] = has_unk ? Json(data.tokens[static_cast<size_t>(data.unk_id)]) : Json(nullptr);
  (*model)["fuse_unk"] = true;
  (*model)["byte_fallback"] = true;
  (*model)["merges"] = MergesByScore(data);
  Json normalizers = Json::array();
  if (data.add_space_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceSymbol}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSymbol}});
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (data.add_space_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

Json TokenizerConfig(const model::TokenizerData& data, absl::string_view chat_template, uint64_t max_context) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", data.add_bos},
                 {"add_eos_token", data.add_eos},
                 {"clean_up_tokenization_spaces", false}};
  if (max_context > 0) config["model_max_length"] = max_context;
  for (const auto& [name, id] : {std::pair{"bos_token", data.bos_id}, std::pair{"eos_token", data.eos_id},
                                 std::pair{"unk_token", data.unk_id}, std::pair{"pad_token", data.pad_id}}) {
    if (id >= 0) config[name] = data.tokens[static_cast<size_t>(id)];
  }
  if (!chat_template.empty()) config["chat_template"] = std::string(chat_template);
  return config;
}

absl::Status WriteFileWhole(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("Cannot write ", path, "."));
}

}  // namespace

absl::StatusOr<TokenizerFolder> ExportTokenizer(const model::TokenizerData& data, absl::string_view chat_template,
                                                uint64_t max_context) {
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false}};
  absl::StatusOr<Json> parts =
      data.model == "gpt2" ? ByteLevelJson(data, &model) : absl::StatusOr<Json>(SentencePieceJson(data, &model));
  if (!parts.ok()) return parts.status();
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", AddedTokens(data)}};
  json["normalizer"] = (*parts)["normalizer"];
  json["pre_tokenizer"] = (*parts)["pre_tokenizer"];
  json["post_processor"] = PostProcessor(data);
  json["decoder"] = (*parts)["decoder"];
  TokenizerFolder folder;
  folder.tokenizer_json =
      absl::StrCat(WithMember(json, "model", WithMember(model, "vocab", VocabularyText(data))), "\n");
  folder.tokenizer_config_json = absl::StrCat(Text(TokenizerConfig(data, chat_template, max_context), 2), "\n");
  folder.chat_template = std::string(chat_template);
  return folder;
}

absl::Status ExportTokenizerFolder(const std::string& gguf_path, const std::string& dir, bool force) {
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(gguf_path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<model::TokenizerData> data = model::LoadTokenizerData(*file);
  if (!data.ok()) return data.status();
  // Not only read but checked, so that no folder comes from a vocabulary that Baton itself would refuse.
  if (const auto checked = model::Tokenizer::Create(*data); !checked.ok()) return checked.status();
  const absl::StatusOr<absl::string_view> chat_template = file->GetString("tokenizer.chat_template");
  // A file with a vocabulary alone is good enough.
  const absl::StatusOr<model::ModelConfig> config = model::ReadConfig(*file);
  const absl::StatusOr<TokenizerFolder> folder = ExportTokenizer(
      *data, chat_template.ok() ? *chat_template : "", config.ok() ? static_cast<uint64_t>(config->context_length) : 0);
  if (!folder.ok()) return folder.status();
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return absl::UnavailableError(absl::StrCat("Cannot make the folder ", dir, ": ", error.message(), "."));
  const std::pair<const char*, const std::string*> files[] = {{"tokenizer.json", &folder->tokenizer_json},
                                                              {"tokenizer_config.json", &folder->tokenizer_config_json},
                                                              {"chat_template.jinja", &folder->chat_template}};
  for (const auto& [name, text] : files) {
    if (!force && std::filesystem::exists(absl::StrCat(dir, "/", name), error)) {
      return absl::AlreadyExistsError(absl::StrCat(dir, "/", name, " is there already."));
    }
  }
  for (const auto& [name, text] : files) {
    if (text->empty()) continue;
    if (absl::Status s = WriteFileWhole(absl::StrCat(dir, "/", name), *text); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace baton::cli
