#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::model {
namespace {

using fakes::GgufWriter;
using fakes::TinyFamily;

// A llama of dim 64, 4 heads of 16, 2 KV heads, ffn 96, 1 layer, 40 tokens; each part can be left out or replaced.
struct Parts {
  std::function<void(GgufWriter*)> metadata = [](GgufWriter*) {};
  std::string skip_key, skip_tensor;
  std::function<void(GgufWriter*)> tensors = [](GgufWriter*) {};
};

std::string SmallLlama(const Parts& parts) {
  GgufWriter writer;
  const auto number = [&](const char* key, uint32_t value) {
    if (parts.skip_key != key) writer.AddUint32(key, value);
  };
  if (parts.skip_key != "general.architecture") writer.AddString("general.architecture", "llama");
  number("llama.block_count", 1);
  number("llama.context_length", 128);
  number("llama.embedding_length", 64);
  number("llama.feed_forward_length", 96);
  number("llama.attention.head_count", 4);
  number("llama.attention.head_count_kv", 2);
  if (parts.skip_key != "llama.attention.layer_norm_rms_epsilon") {
    writer.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  }
  parts.metadata(&writer);
  const auto tensor = [&](const char* name, const std::vector<uint64_t>& dims) {
    if (parts.skip_tensor == name) return;
    uint64_t n = 1;
    for (uint64_t d : dims) n *= d;
    writer.AddTensor(name, dims, 0, std::string(n * 4, '\0'));
  };
  tensor("token_embd.weight", {64, 40});
  tensor("blk.0.attn_norm.weight", {64});
  tensor("blk.0.attn_q.weight", {64, 64});
  tensor("blk.0.attn_k.weight", {64, 32});
  tensor("blk.0.attn_v.weight", {64, 32});
  tensor("blk.0.attn_output.weight", {64, 64});
  tensor("blk.0.ffn_norm.weight", {64});
  tensor("blk.0.ffn_gate.weight", {64, 96});
  tensor("blk.0.ffn_up.weight", {64, 96});
  tensor("blk.0.ffn_down.weight", {96, 64});
  tensor("output_norm.weight", {64});
  parts.tensors(&writer);
  return writer.Finish();
}

absl::StatusOr<ModelConfig> Read(std::string bytes) {
  const auto file = GgufFile::Parse(RandomAccessFile::OfBytes(std::move(bytes), "test.gguf"));
  if (!file.ok()) return file.status();
  return ReadConfig(*file);
}

void ExpectRefused(const Parts& parts, absl::StatusCode code, const std::string& text) {
  const auto config = Read(SmallLlama(parts));
  ASSERT_FALSE(config.ok()) << "accepted, wanted: " << text;
  EXPECT_EQ(config.status().code(), code) << config.status();
  EXPECT_TRUE(absl::StrContains(config.status().message(), text)) << config.status() << "\nwanted: " << text;
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(ConfigTest, ReadsALlama) {
  const auto config = Read(SmallLlama({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 40);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope_dim, 16);
  EXPECT_EQ(config->q_dim(), 64);
  EXPECT_EQ(config->kv_dim(), 32);
  EXPECT_EQ(config->rope.theta, 10000);
  EXPECT_EQ(config->rope_style, kernels::RopeStyle::kInterleaved);
  EXPECT_TRUE(config->tied_head);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_EQ(config->attention_scale, 0.25f);
}

TEST(ConfigTest, FamiliesAreValues) {
  const auto read = [](TinyFamily family, int layers) {
    return *Read(fakes::TinyGguf({.family = family, .num_layers = layers}));
  };
  const ModelConfig qwen2 = read(TinyFamily::kQwen2, 1);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_EQ(qwen2.rope_style, kernels::RopeStyle::kHalves);
  const ModelConfig qwen3 = read(TinyFamily::kQwen3, 1);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 32);
  EXPECT_EQ(read(TinyFamily::kLlama3Rope, 1).rope.freq_factors.size(), 8u);
  const ModelConfig mistral = read(TinyFamily::kMistral, 2);
  EXPECT_EQ(mistral.layer_slides, (std::vector<bool>{true, true}));
  const ModelConfig gemma = read(TinyFamily::kGemma3, 7);
  EXPECT_TRUE(gemma.post_norms && gemma.qk_norm);
  EXPECT_EQ(gemma.layer_slides, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_EQ(gemma.embedding_scale, 8.0f);
  EXPECT_EQ(gemma.rope.theta, 1e6);
  EXPECT_EQ(gemma.local_rope.theta, 1e4);
  EXPECT_EQ(gemma.activation, kernels::Activation::kGeluTanh);
}

TEST(ConfigTest, MissingKeysAreNamed) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.context_length", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    ExpectRefused({.skip_key = key}, absl::StatusCode::kNotFound, key);
  }
}

TEST(ConfigTest, ImpossibleNumbersAreRefused) {
  const std::pair<const char*, uint32_t> bad[] = {{"llama.block_count", 0},
                                                  {"llama.block_count", 1u << 31},
                                                  {"llama.context_length", 0},
                                                  {"llama.context_length", ~0u},
                                                  {"llama.embedding_length", 0},
                                                  {"llama.embedding_length", ~0u},
                                                  {"llama.feed_forward_length", 0},
                                                  {"llama.attention.head_count", 0},
                                                  {"llama.attention.head_count", ~0u},
                                                  {"llama.attention.head_count_kv", 0},
                                                  {"llama.attention.head_count_kv", 3},
                                                  {"llama.attention.head_count", 5},
                                                  {"llama.attention.key_length", 0},
                                                  {"llama.attention.key_length", 15},
                                                  {"llama.attention.key_length", 1u << 20},
                                                  {"llama.rope.dimension_count", 0},
                                                  {"llama.rope.dimension_count", 18},
                                                  {"llama.rope.dimension_count", 5},
                                                  {"llama.vocab_size", 41},
                                                  {"llama.attention.sliding_window", ~0u}};
  for (const auto& [key, value] : bad) {
    Parts parts{.metadata = [key = key, value = value](GgufWriter* w) { w->AddUint32(key, value); }, .skip_key = key};
    const auto config = Read(SmallLlama(parts));
    EXPECT_FALSE(config.ok()) << key << " = " << value;
    EXPECT_EQ(config.status().code(), kInvalid) << config.status();
  }
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, float>>{{"llama.attention.layer_norm_rms_epsilon", 0},
                                                            {"llama.attention.layer_norm_rms_epsilon", -1},
                                                            {"llama.attention.layer_norm_rms_epsilon", NAN},
                                                            {"llama.rope.freq_base", 0.5},
                                                            {"llama.rope.freq_base", INFINITY},
                                                            {"llama.rope.scale_linear", 0.25},
                                                            {"llama.attention.scale", -1}}) {
    Parts parts{.metadata = [key = key, value = value](GgufWriter* w) { w->AddFloat(key, value); }, .skip_key = key};
    EXPECT_EQ(Read(SmallLlama(parts)).status().code(), kInvalid) << key << " = " << value;
  }
}

TEST(ConfigTest, WrongTypesAreRefused) {
  ExpectRefused(
      {.metadata = [](GgufWriter* w) { w->AddString("llama.block_count", "1"); }, .skip_key = "llama.block_count"},
      kInvalid, "llama.block_count");
  // One KV head count per layer is another architecture's.
  ExpectRefused({.metadata = [](GgufWriter* w) { w->AddInt32s("llama.attention.head_count_kv", {2}); },
                 .skip_key = "llama.attention.head_count_kv"},
                kInvalid, "array of int32");
}

TEST(ConfigTest, WhatBatonDoesNotComputeIsRefused) {
  ExpectRefused({.metadata = [](GgufWriter* w) { w->AddString("general.architecture", "mamba"); },
                 .skip_key = "general.architecture"},
                kUnimplemented, "mamba");
  ExpectRefused({.metadata = [](GgufWriter* w) { w->AddUint32("llama.expert_count", 8); }}, kUnimplemented, "experts");
  ExpectRefused({.metadata = [](GgufWriter* w) { w->AddString("llama.rope.scaling.type", "yarn"); }}, kUnimplemented,
                "yarn");
  ExpectRefused({.metadata = [](GgufWriter* w) { w->AddUint32("llama.attention.value_length", 8); }}, kUnimplemented,
                "head sizes");
  // A tensor that would be ignored means another model than ours.
  ExpectRefused(
      {.tensors = [](GgufWriter* w) { w->AddTensor("blk.0.attn_output.bias", {64}, 0, std::string(256, 0)); }},
      kUnimplemented, "blk.0.attn_output.bias");
}

TEST(ConfigTest, TensorShapesAreCheckedAndBothShown) {
  ExpectRefused({.skip_tensor = "blk.0.ffn_up.weight"}, kInvalid, "blk.0.ffn_up.weight [64, 96] is missing");
  ExpectRefused({.skip_tensor = "blk.0.ffn_up.weight",
                 .tensors =
                     [](GgufWriter* w) {
                       w->AddTensor("blk.0.ffn_up.weight", {96, 64}, 0, std::string(96 * 64 * 4, 0));
                     }},
                kInvalid, "blk.0.ffn_up.weight: expected [64, 96], found [96, 64]");
  ExpectRefused({.skip_tensor = "token_embd.weight"}, kInvalid, "token_embd.weight");
  ExpectRefused({.tensors =
                     [](GgufWriter* w) {
                       w->AddTensor("output.weight", {64, 39}, 0, std::string(64 * 39 * 4, 0));
                     }},
                kInvalid, "output.weight: expected [64, 40], found [64, 39]");
  ExpectRefused({.tensors = [](GgufWriter* w) { w->AddTensor("rope_freqs.weight", {7}, 0, std::string(28, 0)); }},
                kInvalid, "rope_freqs.weight");
  ExpectRefused({.tensors = [](GgufWriter* w) { w->AddTensor("rope_freqs.weight", {8}, 0, std::string(32, 0)); }},
                kInvalid, "rope_freqs.weight holds 0");
}

TEST(ConfigTest, MoreTokensThanEmbeddingRowsIsRefused) {
  ExpectRefused(
      {.metadata = [](GgufWriter* w) { w->AddStrings("tokenizer.ggml.tokens", std::vector<std::string>(41, "t")); }},
      kInvalid, "41 tokens");
}

TEST(ConfigTest, CanonicalTextTellsConfigurationsApart) {
  const ModelConfig config = *Read(SmallLlama({}));
  ModelConfig other = config;
  EXPECT_EQ(CanonicalText(config), CanonicalText(other));
  other.rope.theta = std::nextafter(other.rope.theta, 1e9);
  EXPECT_NE(CanonicalText(config), CanonicalText(other));
}

}  // namespace
}  // namespace baton::model
