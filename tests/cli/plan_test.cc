// Every figure that `baton plan` prints for the example of the literature, and the limits of the arithmetic.
#include "cli/plan.h"

#include <gtest/gtest.h>

#include "cli/gpu_plan.h"
#include "cli/plan_model.h"
#include "cli/plan_print.h"

namespace baton::cli {
namespace {

PlanInput Llama405On8H100() {
  PlanInput input;
  const std::optional<PlanModel> model = NamedModel("llama-3.1-405b");
  EXPECT_TRUE(model.has_value());
  input.shape = model->shape;
  input.weights_dtype = model->weights_dtype;
  input.accelerator = FindAccelerator("8xh100").value();
  input.context = 131072;
  return input;
}

TEST(PlanTest, MemoryLedgerOfLlama405B) {
  const Plan plan = ComputePlan(Llama405On8H100()).value();
  EXPECT_EQ(plan.kv_bytes_per_token, 516096u);
  EXPECT_EQ(plan.kv_bytes_per_conversation, 67645734912u);
  EXPECT_EQ(plan.total_bytes, 640000000000u);
  EXPECT_EQ(plan.weights_bytes, 405000000000u);
  EXPECT_EQ(plan.weights_bytes_exact, 405853388800u);
  EXPECT_EQ(plan.left_bytes, 235000000000u);
  EXPECT_EQ(plan.left_bytes_exact, 640000000000u - 405853388800u);
  EXPECT_EQ(plan.conversations, 3u);
  EXPECT_EQ(plan.kv_tokens, 234146611200u / 516096u);
  EXPECT_EQ(plan.weights_bytes_per_card, 50625000000u);
  EXPECT_TRUE(plan.weights_fit);
}

TEST(PlanTest, RooflineOfLlama405B) {
  const Plan plan = ComputePlan(Llama405On8H100()).value();
  ASSERT_TRUE(plan.decode.has_value());
  EXPECT_EQ(plan.decode->pass_ns, 15111940u);               // 50.625 GB / 3.35 TB/s
  EXPECT_EQ(plan.decode->one_user_milli_tokens_s, 66172u);  // its inverse
  EXPECT_EQ(plan.decode->full_pass_ns, 17636034u);          // (405 + 67.65) GB / 26.8 TB/s
  EXPECT_EQ(plan.decode->full_one_user_milli_tokens_s, 56702u);
  EXPECT_EQ(plan.decode->all_users_pass_ns, 22684224u);  // (405 + 3 x 67.65) GB / 26.8 TB/s
  EXPECT_EQ(plan.decode->all_users_milli_tokens_s, 132250u);
  ASSERT_TRUE(plan.prefill.has_value());
  EXPECT_EQ(plan.prefill->flops_per_token, 810000000000u);
  EXPECT_EQ(plan.prefill->peak_flops, 15832000000000000u);
  EXPECT_EQ(plan.prefill->milli_tokens_s, 19545679u);
  // 4 x 126 layers x 128 heads x 128 x (131072 x 131073 / 2) pairs
  EXPECT_EQ(plan.prefill->context_attention_flops, 4ull * 126 * 128 * 128 * (131072ull * 131073 / 2));
  EXPECT_EQ(plan.prefill->context_flops, 810000000000ull * 131072 + plan.prefill->context_attention_flops);
  EXPECT_EQ(plan.prefill->context_ns, 11186240228u);
  // 1 byte a weight: peak / (2 x bandwidth) = 1979 / 6.7 = 295.4
  EXPECT_EQ(plan.compute_bound_batch.value(), 296u);
}

TEST(PlanTest, PrintsTheFiguresOfTheChapter) {
  const std::string text = FormatPlan(ComputePlan(Llama405On8H100()).value(), {});
  for (const char* figure :
       {"516,096 bytes", "68 GB", "640 GB", "405 GB", "235 GB", "50.6 GB", "about 15.1 ms", "66.2 tokens/s",
        "batch 296", "19,546 tokens/s", "405,853,388,800", "11.2 s", "3.35 TB/s"}) {
    EXPECT_NE(text.find(figure), std::string::npos) << figure << " missing in:\n" << text;
  }
  EXPECT_NE(text.find("conversations at once                      3 "), std::string::npos) << text;
}

TEST(PlanTest, ExactCountsFromTheShapes) {
  PlanInput input = Llama405On8H100();
  input.exact = true;
  const Plan plan = ComputePlan(input).value();
  EXPECT_EQ(plan.weights_bytes, 405853388800u);
  EXPECT_EQ(plan.left_bytes, 234146611200u);
  EXPECT_EQ(plan.conversations, 3u);
}

// Totals as their publishers state them.
TEST(PlanTest, CountsParametersOfNamedModels) {
  EXPECT_EQ(CountParameters(NamedModel("llama-3.1-405b")->shape)->total, 405853388800u);
  EXPECT_EQ(CountParameters(NamedModel("llama-3.1-70b")->shape)->total, 70553706496u);
  EXPECT_EQ(CountParameters(NamedModel("LLAMA-3.1-8B")->shape)->total, 8030261248u);
  EXPECT_EQ(CountParameters(NamedModel("smollm2-135m")->shape)->total, 134515008u);
  EXPECT_FALSE(NamedModel("llama-9").has_value());
}

TEST(PlanTest, WeightsThatDoNotFitAreSaidSo) {
  PlanInput input = Llama405On8H100();
  input.accelerator.count = 4;
  const Plan plan = ComputePlan(input).value();
  EXPECT_FALSE(plan.weights_fit);
  EXPECT_EQ(plan.conversations, 0u);
  EXPECT_EQ(plan.missing_bytes, 405853388800u - 320000000000u);
  const std::string text = FormatPlan(plan, {});
  EXPECT_NE(text.find("Does not fit: 85,853,388,800 bytes are missing"), std::string::npos) << text;
}

TEST(PlanTest, FloorOfConversationsAtTheBoundary) {
  PlanInput input = Llama405On8H100();
  input.exact = true;
  input.accelerator.count = 1;
  input.accelerator.memory_bytes = 405853388800u + 2 * 67645734912u;
  EXPECT_EQ(ComputePlan(input)->conversations, 2u);
  --input.accelerator.memory_bytes;
  EXPECT_EQ(ComputePlan(input)->conversations, 1u);
}

TEST(PlanTest, OverflowIsAnErrorNotANumber) {
  PlanInput input = Llama405On8H100();
  input.context = UINT64_MAX / 2;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kOutOfRange);
  input = Llama405On8H100();
  input.shape.hidden_size = uint64_t{1} << 62;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kOutOfRange);
  input = Llama405On8H100();
  input.accelerator.count = UINT64_MAX;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(PlanTest, ImpossibleInputIsRefused) {
  PlanInput input = Llama405On8H100();
  input.shape.num_kv_heads = 7;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = Llama405On8H100();
  input.shape.num_layers = 0;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = Llama405On8H100();
  input.kv_dtype = "q3";
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = Llama405On8H100();
  input.context = 0;
  input.shape.max_context = 0;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanTest, RooflineIsLeftOutWhereTheHardwareIsUnknown) {
  PlanInput input = Llama405On8H100();
  input.accelerator.bandwidth = 0;
  input.accelerator.flops_8bit = input.accelerator.flops_16bit = 0;
  const Plan plan = ComputePlan(input).value();
  EXPECT_FALSE(plan.decode.has_value());
  EXPECT_FALSE(plan.prefill.has_value());
  EXPECT_FALSE(plan.compute_bound_batch.has_value());
  EXPECT_TRUE(PlanToJson(plan, {})["decode"].is_null());
  EXPECT_NE(FormatPlan(plan, {}).find("--bandwidth"), std::string::npos);
}

TEST(PlanTest, EightBitWeightsOnACardWithoutEightBitUnits) {
  PlanInput input = Llama405On8H100();
  input.accelerator = FindAccelerator("8 x a100").value();
  EXPECT_EQ(ComputePlan(input)->prefill->peak_flops, 8u * 312000000000000u);
}

GpuMemory Llama405OnGpus(const kernels::TensorParallel& split) {
  const absl::StatusOr<GpuMemory> memory =
      GpuMemoryOf(NamedModel("llama-3.1-405b")->shape, "fp8", {.split = split, .context = 131072});
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.value_or(GpuMemory());
}

// A scale of four bytes for each row; of a matrix whose inputs are cut, for each row of each slice.
TEST(GpuPlanTest, EachOfEightGpusHoldsItsPartAndTheHeadTheEmbeddingAndActivationsWhole) {
  constexpr uint64_t kDim = 16384, kKv = 1024, kFfn = 53248, kVocabulary = 128256, kLayers = 126;
  const auto rows = [](uint64_t rows, uint64_t cols) { return rows / 8 * (cols + 4); };
  const auto columns = [](uint64_t rows, uint64_t cols) { return rows * (cols / 8 + 4); };
  const GpuMemory memory = Llama405OnGpus({.ranks = 8, .slices = 8});
  EXPECT_EQ(memory.split_bytes, kLayers * (rows(kDim, kDim) + 2 * rows(kKv, kDim) + columns(kDim, kDim) +
                                           2 * rows(kFfn, kDim) + columns(kDim, kFfn)));
  EXPECT_EQ(memory.head_bytes, kVocabulary * (kDim + 4));
  EXPECT_EQ(memory.embedding_bytes, kVocabulary * kDim * 2);  // as in the file: bf16
  EXPECT_EQ(memory.array_bytes, (2 * kLayers + 1) * kDim * 4 + 2 * 131072 * 64 * 4);
  EXPECT_GT(memory.activation_bytes, 512 * (5 * kDim + 2 * kKv + 2 * kFfn) * 4);
  EXPECT_EQ(memory.batch_tokens, 512u);

  PlanInput input = Llama405On8H100();
  input.gpu = memory;
  const Plan plan = ComputePlan(input).value();
  const uint64_t each = memory.split_bytes + memory.head_bytes + memory.embedding_bytes + memory.array_bytes +
                        memory.activation_bytes;
  EXPECT_EQ(plan.weights_bytes_per_card, each);
  EXPECT_EQ(plan.weights_bytes, 8 * each);
  EXPECT_EQ(plan.pass_bytes, 8 * (memory.split_bytes + memory.head_bytes));
  EXPECT_EQ(plan.gpu_kv_bytes_per_token, 516096u / 8);
  EXPECT_EQ(plan.prefill->peak_flops, 8u * 989000000000000u);  // FP8 is in memory only
  EXPECT_EQ(plan.conversations, (80000000000u - each) * 8 / 67645734912u);
  const std::string text = FormatPlan(plan, {});
  for (const char* words : {"Each of the 8 GPUs", "tensor_parallel 8, reduction_slices 8", "1 of 8 KV heads", "64,512 bytes",
                            "counted 8 times"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " missing in:\n" << text;
  }
  EXPECT_EQ(PlanToJson(plan, {})["gpu"]["total_bytes"], each);
  input.accelerator.count = 4;
  EXPECT_EQ(ComputePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GpuPlanTest, SlicesCostScalesAndNothingElse) {
  const GpuMemory one = Llama405OnGpus({.ranks = 1, .slices = 1}), sliced = Llama405OnGpus({.ranks = 1, .slices = 4});
  EXPECT_EQ(sliced.split_bytes - one.split_bytes, 126u * 2 * 16384 * 4 * 3);
  EXPECT_EQ(sliced.head_bytes, one.head_bytes);
  EXPECT_EQ(sliced.array_bytes, one.array_bytes);
}

TEST(GpuPlanTest, WhatAWorkerWouldRefuseIsRefused) {
  const ModelShape llama = NamedModel("llama-3.1-8b")->shape, smol = NamedModel("smollm2-135m")->shape;
  const auto status = [](const ModelShape& shape, int ranks, int slices, const char* dtype = "bf16") {
    return GpuMemoryOf(shape, dtype, {.split = {.ranks = ranks, .slices = slices}, .context = 8192}).status();
  };
  EXPECT_TRUE(status(llama, 8, 8).ok());
  EXPECT_TRUE(status(llama, 1, 32).ok());
  EXPECT_EQ(status(llama, 3, 3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(llama, 4, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(llama, 1, 1, "fp4").code(), absl::StatusCode::kInvalidArgument);
  const absl::Status heads = status(llama, 16, 16);
  EXPECT_EQ(heads.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(heads.message().find("8 KV heads"), absl::string_view::npos) << heads;
  const absl::Status inputs = status(smol, 1, 4);  // 576 = 4 x 144
  EXPECT_EQ(inputs.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(inputs.message().find("blk.0.attn_output.weight: its 576 inputs"), absl::string_view::npos) << inputs;
  ModelShape huge = llama;
  huge.hidden_size = uint64_t{1} << 40;
  EXPECT_EQ(status(huge, 2, 2).code(), absl::StatusCode::kOutOfRange);
}

TEST(AcceleratorTest, NamesAndCounts) {
  EXPECT_EQ(FindAccelerator("H100")->count, 1u);
  EXPECT_EQ(FindAccelerator("8x h100")->count, 8u);
  EXPECT_EQ(FindAccelerator("16xmi300x")->memory_bytes, 192000000000u);
  EXPECT_EQ(FindAccelerator("mi300x")->count, 1u);
  EXPECT_EQ(FindAccelerator("0xh100").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status unknown = FindAccelerator("8xh900").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(unknown.message().find("h200"), absl::string_view::npos);
}

constexpr char kQwen3[] = R"({"model_type":"qwen3","hidden_size":1024,"num_hidden_layers":28,"num_attention_heads":16,
  "num_key_value_heads":8,"head_dim":128,"intermediate_size":3072,"vocab_size":151936,"tie_word_embeddings":true,
  "max_position_embeddings":40960,"torch_dtype":"bfloat16","attention_bias":false})";

TEST(HfConfigTest, Qwen3HasQkNorms) {
  const PlanModel model = ParseHfConfig(kQwen3, "config.json").value();
  EXPECT_EQ(CountParameters(model.shape)->total, 596049920u);  // as published for Qwen3-0.6B
  EXPECT_EQ(model.weights_dtype, "bf16");
  EXPECT_TRUE(model.remarks.empty());
}

TEST(HfConfigTest, Qwen2HasBiases) {
  const PlanModel model = ParseHfConfig(R"({"model_type":"qwen2","hidden_size":896,"num_hidden_layers":24,
    "num_attention_heads":14,"num_key_value_heads":2,"intermediate_size":4864,"vocab_size":151936,
    "tie_word_embeddings":true,"max_position_embeddings":32768})",
                                        "config.json")
                              .value();
  EXPECT_EQ(CountParameters(model.shape)->total, 494032768u);  // as published for Qwen2.5-0.5B
}

TEST(HfConfigTest, BadFilesAreTypedErrors) {
  EXPECT_EQ(ParseHfConfig("[1, 2", "c").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHfConfig("[]", "c").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status missing = ParseHfConfig(R"({"hidden_size":8})", "c").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(missing.message().find("num_hidden_layers"), absl::string_view::npos);
  const absl::Status negative = ParseHfConfig(R"({"num_hidden_layers":-3})", "c").status();
  EXPECT_EQ(negative.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHfConfig(R"({"num_local_experts":8})", "c").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ParseHfConfig(R"({"kv_lora_rank":512})", "c").status().code(), absl::StatusCode::kUnimplemented);
  // Zero heads must not divide by zero.
  const auto zero = ParseHfConfig(R"({"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":0,
    "intermediate_size":8,"vocab_size":8})",
                                  "c");
  ASSERT_TRUE(zero.ok());
  EXPECT_EQ(CountParameters(zero->shape).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanJsonTest, FieldsAndTypes) {
  const auto json = PlanToJson(ComputePlan(Llama405On8H100()).value(), {"a remark"});
  EXPECT_EQ(json["memory"]["kv_bytes_per_token"], 516096);
  EXPECT_EQ(json["memory"]["conversations"], 3);
  EXPECT_EQ(json["memory"]["left_bytes"], 235000000000);
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_DOUBLE_EQ(json["decode"]["pass_ms"].get<double>(), 15.11194);
  EXPECT_DOUBLE_EQ(json["decode"]["one_user_tokens_per_s"].get<double>(), 66.172);
  EXPECT_EQ(json["compute_bound_batch"], 296);
  EXPECT_EQ(json["remarks"][0], "a remark");
}

}  // namespace
}  // namespace baton::cli
