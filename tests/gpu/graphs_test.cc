// Decode steps as graphs: the same bits as call by call, padded or not, whatever memory has gone that a graph may name.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/exactness.h"

namespace baton::kernels::cuda {
namespace {

using cuda_emulator::GraphFault;
using cuda_emulator::Haste;
using model::TestKvPool;
using model::TestSequence;
using model::Transformer;

#ifdef BATON_SANITIZE
constexpr bool kWhole = false;  // all is ten times slower
#else
constexpr bool kWhole = true;
#endif

class GraphsTest : public testing::Test {
 protected:
  GraphsTest() { cuda_emulator::SetHaste(Haste::kLazy); }
  ~GraphsTest() override {
    cuda_emulator::SetHaste(Haste::kLazy);
    cuda_emulator::SetGraphFault(GraphFault::kNone);
  }
};

TEST(GraphRowsTest, EachNumberOfRowsHasTheSmallestBucketThatHoldsIt) {
  int last = 0;
  for (int rows = 1; rows <= kMaxGraphRows; ++rows) {
    const int bucket = GraphRows(rows);
    EXPECT_GE(bucket, rows);
    EXPECT_EQ(GraphRows(bucket), bucket);
    EXPECT_GE(bucket, last);
    last = bucket;
    if (rows > 16) {
      EXPECT_LE(3 * (bucket - rows), bucket) << rows;
    }
  }
  EXPECT_EQ(last, kMaxGraphRows);
  EXPECT_EQ(GraphRows(kMaxGraphRows + 1), kMaxGraphRows + 1);
}

// Passes of one call, y += x over the rows, with a count of how often the call was made by the host.
class PassTest : public GraphsTest {
 protected:
  static constexpr int kDim = 8;

  explicit PassTest(NumericsClass numerics = NumericsClass::kF32) : backend_(numerics) {}

  DeviceArray Floats(int64_t n, float value) {
    DeviceArray array = DeviceArray::Allocate(&backend_, n * sizeof(float)).value();
    const std::vector<float> values(n, value);
    backend_.Upload(array.data(), values.data(), n * sizeof(float));
    return array;
  }
  static float* At(const DeviceArray& array) { return static_cast<float*>(array.data()); }
  DeviceSpace::Pass Pass(int rows, int context_len = 3, int chunk_rows = 1) {
    chunks_.clear();
    for (int r = 0; r < rows; r += chunk_rows) chunks_.push_back({r, chunk_rows, context_len, table_});
    return {chunks_, kv_, this, 300};
  }
  void Run(const DeviceSpace::Pass& pass) {
    backend_.RunPass(pass, [&] {
      ++made_;
      backend_.Add(At(y_), kDim, At(x_), kDim, backend_.PassRows(pass), kDim);
      if (call_ != nullptr) call_();
    });
    ++passes_;
  }
  // Of a row that every pass had.
  float Y() {
    float value = 0;
    backend_.Download(&value, y_.data(), sizeof value);
    return value;
  }

  CudaBackend backend_;
  DeviceArray x_ = Floats(300 * kDim, 1), y_ = Floats(300 * kDim, 0);
  DeviceArray blocks_ = Floats(1024, 0);
  KvView kv_ = {reinterpret_cast<std::byte*>(blocks_.data()), {.num_layers = 1, .num_kv_heads = 1, .head_dim = kDim}};
  std::vector<int32_t> table_ = std::vector<int32_t>(200, 0);
  std::vector<SequenceChunk> chunks_;
  std::function<void()> call_;
  int made_ = 0, passes_ = 0;
};

TEST_F(PassTest, AStepIsCalledWhenItIsMetAndWhenItIsRecordedAndThenNoMore) {
  for (int step = 0; step < 5; ++step) Run(Pass(5 + step % 4));
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(Y(), passes_);
  for (int step = 0; step < 3; ++step) Run(Pass(5, kAttentionPiece + step));  // more pieces of keys
  EXPECT_EQ(made_, 4);
  for (int step = 0; step < 3; ++step) Run(Pass(8, 3, 2));  // prefill
  EXPECT_EQ(made_, 7);
  for (int step = 0; step < 3; ++step) Run(Pass(kMaxGraphRows + 1));
  EXPECT_EQ(made_, 10);
  DeviceSpace::Pass alone = Pass(5);
  alone.repeats = nullptr;
  for (int step = 0; step < 3; ++step) Run(alone);
  EXPECT_EQ(made_, 13);
  const DeviceArray other = Floats(1024, 0);
  kv_.base = reinterpret_cast<std::byte*>(other.data());
  for (int step = 0; step < 3; ++step) Run(Pass(5));
  EXPECT_EQ(made_, 15);
  EXPECT_EQ(Y(), passes_);
}

TEST_F(PassTest, NoPassIsMadeForMoreRowsThanThereIsRoomFor) {
  DeviceSpace::Pass pass = Pass(5);
  EXPECT_EQ(backend_.PassRows(pass), 8);
  pass.room = 7;
  EXPECT_EQ(backend_.PassRows(pass), 7);
  pass.room = 0;
  EXPECT_EQ(backend_.PassRows(pass), 5);
  for (int step = 0; step < 4; ++step) Run(pass);
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(backend_.PassRows(Pass(10, 3, 2)), 10) << "prefill";
}

TEST_F(PassTest, GraphsGoWhenMemoryIsFreedThatTheyMayName) {
  const float weights[4 * kDim] = {};
  std::unique_ptr<WeightMatrix> weight = backend_.PackWeights({DType::kF32, 4, kDim, weights}).value();
  DeviceArray other = Floats(8, 0);
  const std::pair<const char*, std::function<void()>> frees[] = {
      {"of the caller", [&] { other = {}; }},
      {"of a weight", [&] { weight.reset(); }},
      {"of the backend: inputs that grow",
       [&] {
         DeviceSpace::Pass many = Pass(200);
         many.repeats = nullptr;
         Run(many);
       }},
  };
  for (const auto& [name, free] : frees) {
    for (int step = 0; step < 4; ++step) Run(Pass(8));
    EXPECT_EQ(std::exchange(made_, 0), 2) << name;
    free();
    made_ = 0;
    for (int step = 0; step < 4; ++step) Run(Pass(8));
    EXPECT_EQ(std::exchange(made_, 0), 2) << name;
    EXPECT_EQ(Y(), passes_);
    Floats(8, 0);  // gone at once: the next one begins anew
  }
}

TEST_F(PassTest, OnlySoManyGraphsAreKept) {
  constexpr int steps = static_cast<int>(GraphCache::kMaxGraphs) + 1;
  const char callers[steps] = {};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < steps; ++i) {
      DeviceSpace::Pass pass = Pass(1);
      pass.repeats = &callers[i];
      Run(pass);
    }
  }
  EXPECT_EQ(made_, 3 * steps);  // each was gone before it came again
  for (int step = 0; step < 4; ++step) Run(Pass(1));
  EXPECT_EQ(made_, 3 * steps + 2);
  EXPECT_EQ(Y(), passes_);
}

class GraphFaultTest : public PassTest, public testing::WithParamInterface<GraphFault> {};
INSTANTIATE_TEST_SUITE_P(Faults, GraphFaultTest, testing::Values(GraphFault::kBegin, GraphFault::kEnd, GraphFault::kLaunch));

TEST_P(GraphFaultTest, ADriverThatTakesNoGraphIsToldOfOnceAndStepsGoOn) {
  cuda_emulator::SetGraphFault(GetParam());
  testing::internal::CaptureStderr();
  for (int step = 0; step < 5; ++step) Run(Pass(5));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("no graph"), std::string::npos) << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(Y(), 5);
  EXPECT_EQ(made_, GetParam() == GraphFault::kBegin ? 5 : 6);  // once more where it failed behind the recording
  EXPECT_EQ(backend_.PassRows(Pass(5)), 5);
}

TEST_F(PassTest, UploadsWhileAPassIsRecordedEndTheProcess) {
  Run(Pass(2));
  const float value = 0;
  call_ = [&] { backend_.Upload(x_.data(), &value, sizeof value); };
  EXPECT_DEATH(Run(Pass(2)), "uploads something");
}

class Bf16PassTest : public PassTest {
 protected:
  Bf16PassTest() : PassTest(NumericsClass::kBf16) {}
};

// The second time the pass needs a larger buffer than the first.
TEST_F(Bf16PassTest, ABufferThatWouldGrowInARecordingGrowsBehindIt) {
  constexpr int kCols = 4096;
  const std::vector<float> weights(4 * kCols, 0.5f);
  const std::unique_ptr<WeightMatrix> weight = backend_.PackWeights({DType::kF32, 4, kCols, weights.data()}).value();
  const DeviceArray x = Floats(8 * kCols, 1), y = Floats(8 * 4, 0);
  Run(Pass(8));
  call_ = [&] {
    const MatMulOutput output[] = {{weight.get(), nullptr, At(y), 4}};
    backend_.MatMul(At(x), kCols, 8, output);
  };
  testing::internal::CaptureStderr();
  for (int step = 0; step < 4; ++step) Run(Pass(8));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(made_, 1 + 2 + 2);  // met; recorded for nothing and called; met again, as memory went; recorded
  EXPECT_EQ(Y(), passes_);
  float product = 0;
  backend_.Download(&product, y.data(), sizeof product);
  EXPECT_EQ(product, kCols / 2);
}

// The same steps of a model with graphs and without.
class DecodeTest : public GraphsTest {
 protected:
  struct Side {
    std::unique_ptr<CudaBackend> backend;
    std::unique_ptr<Transformer> model;
    std::unique_ptr<TestKvPool> pool;
    std::vector<TestSequence> sequences;
  };

  void Load(const fakes::TinyModelOptions& options, NumericsClass numerics, int max_batch_rows, int num_sequences,
            int num_tokens) {
    file_ = std::make_unique<model::GgufFile>(
        model::GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(options), "tiny.gguf")).value());
    for (Side& side : sides_) {
      side.pool.reset();  // which end before the backend
      side.model.reset();
      side.backend = std::make_unique<CudaBackend>(numerics, &side == &sides_[0]);
      side.model = Transformer::Load(*file_, side.backend.get(),
                                     {.max_batch_rows = max_batch_rows, .device = side.backend.get()})
                       .value();
    }
    NewSequences(num_sequences, num_tokens);
  }
  void NewSequences(int num_sequences, int num_tokens, int block_size = 16) {
    num_blocks_ = num_sequences * (num_tokens / block_size + 1);
    for (Side& side : sides_) {
      side.pool.reset();
      side.pool = std::make_unique<TestKvPool>(side.model->KvLayoutFor(DType::kF16, block_size), num_blocks_,
                                               side.backend.get());
      side.sequences.clear();
      for (int i = 0; i < num_sequences; ++i) {
        side.sequences.push_back({.token_ids = model::RandomIds(num_tokens, side.model->vocab_size(), 10 + i)});
      }
    }
  }
  // A pass over the sequences [first, first + count), `rows` of each.
  void Step(int first, int count, int rows = 1) {
    for (Side& side : sides_) {
      std::vector<std::pair<TestSequence*, int>> work;
      for (int i = first; i < first + count; ++i) work.emplace_back(&side.sequences[i], rows);
      const uint64_t before = cuda_emulator::TheCounts().graphs;
      model::Step(side.model.get(), side.pool.get(), work);
      const uint64_t graphs = cuda_emulator::TheCounts().graphs - before;
      (&side == &sides_[0] ? graphs_ : other_graphs_) += static_cast<int>(graphs);
    }
  }
  void ExpectSame() {
    const auto& [with, without] = sides_;
    for (size_t i = 0; i < with.sequences.size(); ++i) {
      ASSERT_EQ(with.sequences[i].num_computed, without.sequences[i].num_computed);
      model::ExpectSameBits(without.sequences[i].logits, with.sequences[i].logits, "sequence " + std::to_string(i));
    }
    // Nothing was written but what had to be.
    std::vector<std::byte> blocks[2];
    for (int i = 0; i < 2; ++i) {
      blocks[i].resize(sides_[i].pool->view().layout.block_bytes() * num_blocks_);
      sides_[i].backend->Download(blocks[i].data(), sides_[i].pool->view().base, blocks[i].size());
    }
    EXPECT_TRUE(blocks[0] == blocks[1]);
    EXPECT_EQ(other_graphs_, 0);
  }

  std::unique_ptr<model::GgufFile> file_;
  Side sides_[2];
  int num_blocks_ = 0, graphs_ = 0, other_graphs_ = 0;
};

// Each number of rows comes twice, so that each bucket is met, recorded and launched, padded and not.
TEST_F(DecodeTest, BatchesOfOneToSeventyRowsHaveTheSameBits) {
  const std::vector<int> sizes = kWhole ? std::vector<int>() : std::vector<int>{1, 3, 9, 17};
  Load({.num_layers = 1}, NumericsClass::kF32, 70, 70, 150);
  int steps = 0;
  const auto step = [&](int n) {
    if (!sizes.empty() && std::find(sizes.begin(), sizes.end(), n) == sizes.end()) return;
    Step(n % 5 * (70 - n) / 5, n);  // whoever is in the batch
    ++steps;
  };
  for (int n = 1; n <= 70; ++n) step(n);
  for (int n = 70; n >= 1; --n) step(n);
  ExpectSame();
  EXPECT_GE(graphs_, kWhole ? steps / 2 : 1);
}

TEST_F(DecodeTest, BatchesThatChangeHaveTheSameBitsOnTensorCoresAndWithWindowsWheneverTheDeviceWorks) {
  const std::pair<fakes::TinyModelOptions, NumericsClass> models[] = {
      {{.dtype = DType::kQ4_0}, NumericsClass::kBf16},
      {{.family = fakes::TinyFamily::kGemma3, .num_layers = 6}, NumericsClass::kF32},
      {{.family = fakes::TinyFamily::kGemma3, .num_layers = 6}, NumericsClass::kBf16},
      {{.family = fakes::TinyFamily::kQwen2, .tied_head = false}, NumericsClass::kF32}};
  for (const auto& [options, numerics] : models) {
    SCOPED_TRACE(static_cast<int>(options.family) * 10 + static_cast<int>(numerics));
    cuda_emulator::SetHaste(Haste::kRandom, 7);
    const int most = kWhole ? 21 : 5;
    graphs_ = other_graphs_ = 0;
    Load(options, numerics, 30, most, 40);
    Step(0, 2, 7);  // some have a prompt
    Step(2, 1, 11);
    for (const int n : {3, 4, most, 3, 2, most, most - 1, 3, 1, most - 2, 1, 4, 1}) Step(most - n, n);
    Step(0, 3, 2);  // a prompt again
    for (const int n : {3, 4, most}) Step(0, n);
    ExpectSame();
    EXPECT_GE(graphs_, 5);
  }
}

TEST_F(DecodeTest, GraphsDoNotOutliveTheMemoryThatTheyName) {
  Load({}, NumericsClass::kBf16, 4, 6, 60);
  const auto steps = [&] {
    for (int i = 0; i < 3; ++i) Step(0, 3);
    const int before = graphs_;
    Step(0, 4);
    EXPECT_EQ(graphs_, before + 1);
  };
  steps();
  Step(0, 6, 6);  // activations and logits move
  steps();
  ExpectSame();
  NewSequences(6, 60);  // blocks that may have the old ones' place
  steps();
  ExpectSame();
  NewSequences(6, 60, 8);
  steps();
  ExpectSame();
  // Another model, which may have the old one's place.
  for (Side& side : sides_) side.model.reset();
  const model::GgufFile other =
      model::GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf({.seed = 5}), "tiny.gguf")).value();
  for (Side& side : sides_) {
    side.model = Transformer::Load(other, side.backend.get(), {.max_batch_rows = 4, .device = side.backend.get()}).value();
  }
  NewSequences(6, 60);
  steps();
  ExpectSame();
}

TEST_F(DecodeTest, ContextsThatGrowIntoAnotherPieceHaveTheSameBits) {
  if (!kWhole) GTEST_SKIP() << "a prompt of 500 rows";
  Load({.num_layers = 1, .context_length = 600}, NumericsClass::kF32, 64, 2, 540);
  for (int row = 0; row < kAttentionPiece - 4; row += 4) {
    Step(0, 1, 4);
    if (row % 100 == 0) Step(1, 1, 3);
  }
  for (int step = 0; step < 9; ++step) Step(0, 2);
  ExpectSame();
  EXPECT_GE(graphs_, 5);
}

// What a step asks of the host: once for all layers, and of a graph next to nothing.
TEST_F(DecodeTest, APasssInputsGoUpOnceWhateverTheNumberOfLayers) {
  std::vector<uint64_t> copies;
  for (const int num_layers : {1, 4}) {
    Load({.num_layers = num_layers}, NumericsClass::kF32, 16, 3, 30);
    Step(0, 3, 5);
    for (int i = 0; i < 2; ++i) {  // prefill, decode
      std::vector<std::pair<TestSequence*, int>> work;
      for (TestSequence& sequence : sides_[1].sequences) work.emplace_back(&sequence, i == 0 ? 4 : 1);
      const uint64_t before = cuda_emulator::TheCounts().copies;
      model::Step(sides_[1].model.get(), sides_[1].pool.get(), work);
      copies.push_back(cuda_emulator::TheCounts().copies - before);
    }
  }
  // Token ids, the inputs; and the logits down.
  EXPECT_EQ(copies, (std::vector<uint64_t>{3, 3, 3, 3}));

  for (int i = 0; i < 2; ++i) Step(0, 3);
  std::vector<std::pair<TestSequence*, int>> work;
  for (TestSequence& sequence : sides_[0].sequences) work.emplace_back(&sequence, 1);
  const cuda_emulator::Counts before = cuda_emulator::TheCounts();
  model::Step(sides_[0].model.get(), sides_[0].pool.get(), work);
  EXPECT_EQ(cuda_emulator::TheCounts().graphs - before.graphs, 1u);
  EXPECT_EQ(cuda_emulator::TheCounts().launches - before.launches, 4u);  // the copies, and the rows of the embedding
}

}  // namespace
}  // namespace baton::kernels::cuda
