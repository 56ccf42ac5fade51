#include "model/transformer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "model/exact_math.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/exactness.h"

namespace baton::model {
namespace {

using fakes::TinyFamily;
using kernels::DType;
using kernels::Isa;
using kernels::NumericsClass;
using kernels::WeightLayout;

absl::StatusOr<GgufFile> Tiny(const fakes::TinyModelOptions& options) {
  return GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(options), "tiny.gguf"));
}

struct Case {
  const char* name;
  fakes::TinyModelOptions options;
  NumericsClass numerics;
  DType kv_dtype;
};

class TransformerExactnessTest : public testing::TestWithParam<Case> {};

TEST_P(TransformerExactnessTest, BatchChunkAndPhaseDoNotMatter) {
  const auto file = Tiny(GetParam().options);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto model = LoadTestModel(*file, {.numerics = GetParam().numerics, .num_threads = 2}, 8);
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectExact(model->transformer.get(), GetParam().kv_dtype, 75, {1, 2, 5, 16, 33, 64});
}

TEST_P(TransformerExactnessTest, ThreadsInstructionSetAndLayoutDoNotMatter) {
  const auto file = Tiny(GetParam().options);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto first = LoadTestModel(*file, {.isa = Isa::kScalar, .numerics = GetParam().numerics, .num_threads = 1});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::vector<int32_t> ids = RandomIds(70, first->transformer->vocab_size(), 1);
  const Logits want = WholePrompt(first->transformer.get(), ids, GetParam().kv_dtype);
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    for (const auto& [threads, layout] : {std::pair(1, WeightLayout::kDecode), std::pair(2, WeightLayout::kDecode),
                                          std::pair(3, WeightLayout::kPrefill), std::pair(1, WeightLayout::kBoth)}) {
      const auto other = LoadTestModel(
          *file, {.isa = isa, .numerics = GetParam().numerics, .num_threads = threads, .weight_layout = layout});
      if (!other.ok()) break;  // this CPU lacks the instruction set
      ExpectSameBits(
          want, WholePrompt(other->transformer.get(), ids, GetParam().kv_dtype),
          absl::StrCat(other->backend->name(), " with ", threads, " threads, layout ", static_cast<int>(layout)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TransformerExactnessTest,
    testing::Values(
        Case{"llama_q4_1_int", {.dtype = DType::kQ4_1}, NumericsClass::kInt, DType::kF16},
        Case{"llama_q8_0_f32", {.dtype = DType::kQ8_0}, NumericsClass::kF32, DType::kF32},
        Case{"llama_q4_k_int", {.dtype = DType::kQ4_K}, NumericsClass::kInt, DType::kF16},
        Case{"mistral_q5_0_int",
             {.family = TinyFamily::kMistral, .dtype = DType::kQ5_0},
             NumericsClass::kInt,
             DType::kBF16},
        Case{"qwen2_f16_int", {.family = TinyFamily::kQwen2, .dtype = DType::kF16}, NumericsClass::kInt, DType::kF16},
        Case{"qwen3_q6_k_int", {.family = TinyFamily::kQwen3, .dtype = DType::kQ6_K}, NumericsClass::kInt, DType::kF16},
        Case{"llama_bf16_bf16", {.dtype = DType::kBF16}, NumericsClass::kBf16, DType::kBF16},
        Case{"gemma3_q5_1_int",
             {.family = TinyFamily::kGemma3, .dtype = DType::kQ5_1, .num_layers = 6},
             NumericsClass::kInt,
             DType::kF16},
        Case{"gemma3_bf16_f32",
             {.family = TinyFamily::kGemma3, .dtype = DType::kBF16, .num_layers = 6},
             NumericsClass::kF32,
             DType::kF32}),
    [](const auto& info) { return std::string(info.param.name); });

// The largest chunk and the largest batch that are promised (64 rows of decode also are tiles where there are any).
TEST(TransformerTest, ChunksOf512AndBatchesOf64DoNotMatter) {
  for (const NumericsClass numerics : {NumericsClass::kInt, NumericsClass::kBf16}) {
    const auto file =
        Tiny({.dtype = numerics == NumericsClass::kInt ? DType::kQ8_0 : DType::kBF16, .context_length = 1024});
    ASSERT_TRUE(file.ok()) << file.status();
    const auto loaded = LoadTestModel(*file, {.numerics = numerics, .num_threads = 2}, 64);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    Transformer* const model = loaded->transformer.get();
    constexpr int kTokens = 530, kSequences = 64, kSteps = 20;
    TestSequence long_one{.token_ids = RandomIds(kTokens, model->vocab_size(), 1)};
    TestKvPool long_pool(model->KvLayoutFor(DType::kF16, 16), kTokens / 16 + 1);
    while (long_one.num_computed < kTokens) {
      Step(model, &long_pool, {{&long_one, std::min(512, kTokens - long_one.num_computed)}});
    }
    TestKvPool single_pool(model->KvLayoutFor(DType::kF16, 16), kTokens / 16 + 1);
    TestSequence by_one{.token_ids = long_one.token_ids};
    while (by_one.num_computed < kTokens) Step(model, &single_pool, {{&by_one, 1}});
    ExpectSameBits(long_one.logits, by_one.logits, "a chunk of 512, and one position at a time");

    TestKvPool pool(model->KvLayoutFor(DType::kF16, 16), kSequences * (kSteps / 16 + 1));
    std::vector<TestSequence> sequences(kSequences);
    std::vector<std::pair<TestSequence*, int>> work;
    for (int i = 0; i < kSequences; ++i) {
      sequences[i].token_ids = RandomIds(kSteps, model->vocab_size(), static_cast<uint64_t>(i) + 2);
      work.emplace_back(&sequences[i], 1);
    }
    for (int step = 0; step < kSteps; ++step) Step(model, &pool, work);
    for (const TestSequence& sequence : sequences) {
      ExpectSameBits(WholePrompt(model, sequence.token_ids, DType::kF16), sequence.logits, "one of 64 sequences");
    }
  }
}

TEST(TransformerTest, LedgerIsExact) {
  const auto file = Tiny({.tied_head = false});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto model = LoadTestModel(*file, {.num_threads = 1}, 32);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = model->transformer->config();
  const MemoryLedger ledger = model->transformer->memory();
  EXPECT_EQ(ledger.embedding_bytes, file->FindTensor("token_embd.weight")->num_bytes);
  // Two layers of two norms, the last norm, and two rotary tables of 8 double frequencies.
  EXPECT_EQ(ledger.vector_bytes, (2 * 2 + 1) * 64 * sizeof(float) + 2 * 8 * sizeof(double));
  EXPECT_EQ(ledger.scratch_bytes, Scratch::BytesFor(config, 32));
  // 32 rows of 3 dim + 2 q + 2 kv + 2 ffn + rotary cos and sin of 8 each + one index; each a multiple of 64 bytes.
  EXPECT_EQ(ledger.scratch_bytes, 32u * 4 * (3 * 64 + 2 * 64 + 2 * 32 + 2 * 96 + 2 * 8 + 1));
  EXPECT_GT(ledger.weight_bytes, 0u);
  EXPECT_EQ(ledger.total(), ledger.weight_bytes + ledger.embedding_bytes + ledger.vector_bytes + ledger.scratch_bytes);
  // Spec row S7: layers x (K and V) x KV heads x head size x bytes.
  EXPECT_EQ(model->transformer->KvLayoutFor(DType::kF16, 16).token_bytes(), 2u * 2 * 2 * 16 * 2);
}

TEST(TransformerTest, ScratchGrowsOnceForALargerBatch) {
  const auto file = Tiny({});
  ASSERT_TRUE(file.ok());
  const auto model = LoadTestModel(*file, {.num_threads = 1}, 4);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto bytes = [&] { return model->transformer->memory().scratch_bytes; };
  const uint64_t at_load = bytes();
  const std::vector<int32_t> ids = RandomIds(40, 280, 5);
  WholePrompt(model->transformer.get(), ids, DType::kF32);
  const uint64_t grown = bytes();
  EXPECT_EQ(grown, Scratch::BytesFor(model->transformer->config(), 40));
  EXPECT_GT(grown, at_load);
  WholePrompt(model->transformer.get(), RandomIds(3, 280, 5), DType::kF32);
  EXPECT_EQ(bytes(), grown);
}

TEST(TransformerTest, OnlyWantedRowsGetLogits) {
  const auto file = Tiny({});
  ASSERT_TRUE(file.ok());
  const auto model = LoadTestModel(*file, {.num_threads = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> ids = RandomIds(20, 280, 5);
  const Logits all = WholePrompt(model->transformer.get(), ids, DType::kF32);
  for (const std::vector<int>& wanted : {std::vector<int>{}, {19}, {0, 7, 19}}) {
    TestKvPool pool(model->transformer->KvLayoutFor(DType::kF32, 16), 2);
    Logits got, want;
    for (int p : wanted) want.push_back(all[static_cast<size_t>(p)]);
    Prefill(
        model->transformer.get(), &pool, ids, 20,
        [&](int p) { return std::count(wanted.begin(), wanted.end(), p) > 0; },
        [&](int, std::span<const float> logits) { got.emplace_back(logits.begin(), logits.end()); });
    ExpectSameBits(want, got, absl::StrCat(wanted.size(), " rows"));
  }
}

TEST(TransformerTest, LoadRefusesBadOptions) {
  const auto file = Tiny({.context_length = 100});
  ASSERT_TRUE(file.ok());
  auto backend = kernels::Backend::CreateCpu({.num_threads = 1});
  ASSERT_TRUE(backend.ok());
  const auto load = [&](Transformer::Options options) { return Transformer::Load(*file, backend->get(), options); };
  const absl::Status too_long = load({.max_context = 101}).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(too_long.message(), "101")) << too_long;
  EXPECT_TRUE(absl::StrContains(too_long.message(), "100")) << too_long;
  EXPECT_EQ(load({.max_context = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load({.max_batch_rows = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load({.max_batch_rows = 1 << 20}).status().code(), absl::StatusCode::kInvalidArgument);
  const auto whole = load({});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)->max_context(), 100);
  EXPECT_EQ((*load({.max_context = 50}))->max_context(), 50);
}

TEST(TransformerTest, ProgressReachesTheTotal) {
  const auto file = Tiny({});
  ASSERT_TRUE(file.ok());
  auto backend = kernels::Backend::CreateCpu({.num_threads = 1});
  ASSERT_TRUE(backend.ok());
  uint64_t last = 0, total = 0;
  int calls = 0;
  const auto model = Transformer::Load(*file, backend->get(), {.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
    ++calls;
  }});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(last, total);
  EXPECT_EQ(calls, static_cast<int>(file->tensors().size()));
}

TEST(TransformerTest, NormsThatAreNotFiniteAreRefused) {
  std::string bytes = fakes::TinyGguf({});
  const auto clean = GgufFile::Parse(RandomAccessFile::OfBytes(bytes, "tiny.gguf"));
  ASSERT_TRUE(clean.ok());
  const uint64_t at = clean->FindTensor("blk.1.ffn_norm.weight")->file_offset;
  const float nan = NAN;
  std::memcpy(bytes.data() + at + 8, &nan, sizeof(nan));
  const auto file = GgufFile::Parse(RandomAccessFile::OfBytes(bytes, "tiny.gguf"));
  ASSERT_TRUE(file.ok());
  const absl::Status status = LoadTestModel(*file, {.num_threads = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "blk.1.ffn_norm.weight")) << status;
}

// The file disappears under a running model.
TEST(TransformerTest, FileTruncatedAfterLoadDoesNotMatter) {
  const std::string path = absl::StrCat(testing::TempDir(), "/transformer_test.", getpid());
  ASSERT_TRUE(fakes::WriteTinyGguf({}, path).ok());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto model = LoadTestModel(*file, {.num_threads = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> ids = RandomIds(20, 280, 5);
  const Logits want = WholePrompt(model->transformer.get(), ids, DType::kF32);
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  ExpectSameBits(want, WholePrompt(model->transformer.get(), ids, DType::kF32), "after truncation");
  // And a load that meets the truncated file ends in an error.
  EXPECT_EQ(LoadTestModel(*file, {.num_threads = 1}).status().code(), absl::StatusCode::kDataLoss);
  std::remove(path.c_str());
}

using TransformerDeathTest = testing::Test;

TEST(TransformerDeathTest, ABatchThatContradictsItselfStopsTheProcess) {
  const auto file = Tiny({});
  ASSERT_TRUE(file.ok());
  const auto model = LoadTestModel(*file, {.num_threads = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  TestKvPool pool(model->transformer->KvLayoutFor(DType::kF32, 16), 1);
  const std::vector<int32_t> table = {0};
  const auto forward = [&](int32_t id, int32_t position, int context_len) {
    std::vector<float> logits(280);
    const std::vector<int32_t> ids = {id}, positions = {position}, rows = {0};
    const kernels::SequenceChunk chunks[] = {{0, 1, context_len, table}};
    model->transformer->Forward({ids, positions, chunks, rows}, pool.view(), logits);
  };
  forward(279, 0, 0);
  EXPECT_DEATH(forward(280, 0, 0), "out of the vocabulary");
  EXPECT_DEATH(forward(-1, 0, 0), "out of the vocabulary");
  EXPECT_DEATH(forward(1, 1, 0), "context_len");
  EXPECT_DEATH(forward(1, 16, 16), "block table is too short");
}

}  // namespace
}  // namespace baton::model
