// Text and token ids from clients, over two small vocabularies: what is encoded decodes to the same text, ids stay in
// the vocabulary, and what a stream emits is UTF-8 whatever the ids.
#include <algorithm>
#include <memory>

#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"

using baton::model::FirstInvalidUtf8;
using baton::model::StopStrings;
using baton::model::TextStream;
using baton::model::Tokenizer;
using baton::model::TokenizerData;

namespace {

std::unique_ptr<const Tokenizer> SentencePiece() {
  TokenizerData data;
  data.model = "llama";
  data.add_space_prefix = false;
  const char* hex = "0123456789ABCDEF";
  for (int i = 0; i < 256; ++i) {
    data.tokens.push_back(std::string("<0x") + hex[i / 16] + hex[i % 16] + ">");
    data.token_types.push_back(6);
    data.scores.push_back(0);
  }
  float score = 0;
  for (const char* piece : {"a", "b", "\xC3\xA9", "\xE2\x96\x81", "ab", "ba", "aa",
                            "\xE2\x96\x81"
                            "a",
                            "abab", "aba"}) {
    data.tokens.push_back(piece);
    data.token_types.push_back(1);
    data.scores.push_back(score--);
  }
  for (const char* piece : {"</s>", "<s>"}) {
    data.tokens.push_back(piece);
    data.token_types.push_back(3);
    data.scores.push_back(0);
  }
  data.tokens.push_back("  ");
  data.token_types.push_back(4);
  data.scores.push_back(0);
  return *Tokenizer::Create(std::move(data));
}

std::unique_ptr<const Tokenizer> ByteLevel(const char* pre) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  data.tokens = {"a",
                 "b",
                 "ab",
                 "aa",
                 "aba",
                 "\xC4\xA0",
                 "\xC4\xA0"
                 "a",
                 "<s>"};
  data.token_types = {1, 1, 1, 1, 1, 1, 1, 3};
  data.merges = {"a b", "a a", "ab a", "\xC4\xA0 a"};
  return *Tokenizer::Create(std::move(data));
}

void CheckText(const Tokenizer& tokenizer, absl::string_view text, bool comes_back) {
  const auto ids = tokenizer.Encode(text);
  if (ids.ok() == FirstInvalidUtf8(text).has_value()) __builtin_trap();
  if (!ids.ok()) return;
  for (const int32_t id : *ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
  }
  const auto back = tokenizer.Decode(*ids);
  if (!back.ok() || (comes_back && *back != text)) __builtin_trap();
}

void CheckStream(const Tokenizer& tokenizer, absl::string_view bytes) {
  const size_t cut = std::min<size_t>(bytes.size(), 4);
  auto stops = StopStrings::Create({std::string(bytes.substr(0, cut)), "ab"});
  if (!stops.ok()) stops = StopStrings::Create({"ab"});
  TextStream stream(&tokenizer, *stops);
  std::string text;
  for (size_t i = cut; i < bytes.size() && !stream.stopped(); ++i) {
    const auto output = stream.Append(static_cast<uint8_t>(bytes[i]) + (i % 7 == 0 ? 256 : 0));
    if (!output.ok()) continue;  // an id outside
    text += output->text;
    if (FirstInvalidUtf8(text).has_value()) __builtin_trap();
  }
  text += stream.Finish().text;
  if (FirstInvalidUtf8(text).has_value()) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const sentence_piece = SentencePiece().release();
  static const Tokenizer* const byte_level[] = {ByteLevel("smollm").release(), ByteLevel("llama-bpe").release(),
                                                ByteLevel("qwen2").release(), ByteLevel("default").release()};
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  // U+2581 stands for a space.
  CheckText(*sentence_piece, bytes, bytes.find("\xE2\x96\x81") == absl::string_view::npos);
  for (const Tokenizer* tokenizer : byte_level) CheckText(*tokenizer, bytes, false);
  CheckStream(*sentence_piece, bytes);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {"abab  aba</s>\xC3\xA9\xE4\xB8\x96 \xF0\x9F\x98\x80<s>",
          "I'll don't 12345 \r\n\t x",
          std::string(200, 'a'),
          "  \xE2\x96\x81\xE2\x80\xA8\xE1\xA0\x8E",
          "\xF0\x9F\x98",
          std::string("\0a\0", 3)};
}
