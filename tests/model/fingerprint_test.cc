#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/tiny_gguf.h"

namespace baton::model {
namespace {

using kernels::NumericsClass;

Fingerprint Of(std::string bytes, NumericsClass numerics = NumericsClass::kInt) {
  const auto file = GgufFile::Parse(RandomAccessFile::OfBytes(std::move(bytes), "tiny.gguf"));
  if (!file.ok()) return {.weights = file.status().ToString()};
  const auto config = ReadConfig(*file);
  if (!config.ok()) return {.weights = config.status().ToString()};
  const auto fingerprint = ComputeFingerprint(*file, *config, numerics);
  return fingerprint.ok() ? *fingerprint : Fingerprint{.weights = fingerprint.status().ToString()};
}

// Replaces the first occurrence.
std::string Replaced(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return bytes.replace(at, from.size(), to);
}

TEST(FingerprintTest, IsHexOfContentAlone) {
  const std::string bytes = fakes::TinyGguf({});
  const Fingerprint a = Of(bytes);
  for (const std::string& hex : {a.weights, a.config, a.tokenizer}) {
    EXPECT_EQ(hex.size(), 64u) << hex;
    EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos) << hex;
  }
  EXPECT_EQ(a.numerics_class, "int");
  EXPECT_EQ(a, Of(bytes));
  // A model's name, and bytes after the last tensor, change nothing.
  EXPECT_EQ(a, Of(Replaced(bytes, "tiny llama", "tall llama")));
  EXPECT_EQ(a, Of(bytes + std::string(32, 'x')));
}

TEST(FingerprintTest, EachPartSeesItsOwnChanges) {
  const std::string bytes = fakes::TinyGguf({});
  const Fingerprint a = Of(bytes);
  std::string one_bit = bytes;
  one_bit[one_bit.size() - 33] ^= 1;  // in the last tensor, a norm
  Fingerprint b = Of(one_bit);
  EXPECT_NE(a.weights, b.weights);
  b.weights = a.weights;
  EXPECT_EQ(a, b);

  b = Of(Replaced(bytes, "<|im_start|>", "<|im_sturt|>"));
  EXPECT_NE(a.tokenizer, b.tokenizer);
  b.tokenizer = a.tokenizer;
  EXPECT_EQ(a, b);

  b = Of(fakes::TinyGguf({.context_length = 511}));
  EXPECT_NE(a.config, b.config);
  b.config = a.config;
  EXPECT_EQ(a, b);

  b = Of(bytes, NumericsClass::kF32);
  EXPECT_EQ(b.numerics_class, "f32");
  b.numerics_class = a.numerics_class;
  EXPECT_EQ(a, b);
}

TEST(FingerprintTest, SwappedTensorNamesDiffer) {
  const std::string bytes = fakes::TinyGguf({});
  EXPECT_NE(Of(bytes).weights,
            Of(Replaced(Replaced(Replaced(bytes, "attn_k.weight", "attn_x.weight"), "attn_v.weight", "attn_k.weight"),
                        "attn_x.weight", "attn_v.weight"))
                .weights);
}

TEST(FingerprintTest, FieldsDoNotRunTogether) {
  const auto with_tokens = [](const std::vector<std::string>& tokens) {
    fakes::GgufWriter writer;
    writer.AddStrings("tokenizer.ggml.tokens", tokens);
    const auto file = GgufFile::Parse(RandomAccessFile::OfBytes(writer.Finish(), "t.gguf"));
    return ComputeFingerprint(*file, ModelConfig(), NumericsClass::kInt)->tokenizer;
  };
  EXPECT_NE(with_tokens({"ab", "c"}), with_tokens({"a", "bc"}));
  EXPECT_NE(with_tokens({"ab"}), with_tokens({"ab", ""}));
}

}  // namespace
}  // namespace baton::model
