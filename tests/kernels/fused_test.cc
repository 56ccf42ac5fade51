// The fused calls of the CPU's backend against the composition of elementary calls that defines them, bit for bit, and how
// many barriers a layer has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels {
namespace {

// Another backend's elementary calls, and the fused ones as the seam defines them.
class Composed final : public Backend {
 public:
  explicit Composed(Backend* backend) : backend_(*backend) {}
  std::string name() const override { return absl::StrCat(backend_.name(), ", composed"); }
  NumericsClass numerics() const override { return backend_.numerics(); }
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) override {
    return backend_.PackWeights(tensor);
  }
  void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const override { backend_.ReadRow(weight, row, out); }
  void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) override {
    backend_.MatMul(x, x_stride, m, outputs);
  }
  void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
               int64_t y_stride) override {
    backend_.RmsNorm(x, x_stride, m, dim, weight, epsilon, y, y_stride);
  }
  void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
            const RopeTable& table) override {
    backend_.Rope(x, x_stride, m, num_heads, head_dim, positions, table);
  }
  void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               std::span<const SequenceChunk> chunks, const KvView& kv) override {
    backend_.WriteKv(layer, k, k_stride, v, v_stride, chunks, kv);
  }
  void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks, const KvView& kv,
                 const AttentionParams& params, float* out, int64_t out_stride) override {
    backend_.Attention(layer, q, q_stride, chunks, kv, params, out, out_stride);
  }
  void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m,
                       int dim) override {
    backend_.GatedActivation(act, gate, gate_stride, up, up_stride, m, dim);
  }
  void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) override {
    backend_.Add(x, x_stride, y, y_stride, m, dim);
  }

 private:
  Backend& backend_;
};

struct Shape {
  int dim, ffn_dim, num_heads, num_kv_heads, head_dim;
  bool qk_norm = false, post_norms = false, bias = false, next = true;
  Activation activation = Activation::kSilu;
  RopeStyle rope_style = RopeStyle::kHalves;
  DType kv_dtype = DType::kF16;
  int sliding_window = 0;
  float logit_softcap = 0;

  int q_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
};

// The dtypes of the layer's matrices.
struct Formats {
  DType q, k, v, output, gate, up, down;
};
Formats All(DType dtype) { return {dtype, dtype, dtype, dtype, dtype, dtype, dtype}; }

// One layer's weights as a file has them, the rows that go in, and the blocks with what earlier passes left there.
struct Layer {
  static constexpr int kBlockSize = 16;

  Layer(const Shape& shape, const Formats& formats, int m, const std::vector<int>& chunk_rows,
        const std::vector<int>& contexts)
      : shape(shape), m(m) {
    uint32_t seed = 100;
    const auto tensor = [&](DType dtype, int rows, int cols) { tensors.push_back(RandomTensor(dtype, rows, cols, ++seed)); };
    tensor(formats.q, shape.q_dim(), shape.dim);
    tensor(formats.k, shape.kv_dim(), shape.dim);
    tensor(formats.v, shape.kv_dim(), shape.dim);
    tensor(formats.output, shape.dim, shape.q_dim());
    tensor(formats.gate, shape.ffn_dim, shape.dim);
    tensor(formats.up, shape.ffn_dim, shape.dim);
    tensor(formats.down, shape.dim, shape.ffn_dim);
    x = RandomFloats(static_cast<size_t>(m) * shape.dim, 1);
    norms = RandomFloats(4 * static_cast<size_t>(shape.dim), 2);
    head_norms = RandomFloats(2 * static_cast<size_t>(shape.head_dim), 3);
    biases = RandomFloats(static_cast<size_t>(shape.q_dim() + 2 * shape.kv_dim()), 4);
    cos = RandomFloats(static_cast<size_t>(m) * shape.head_dim, 5);
    sin = RandomFloats(static_cast<size_t>(m) * shape.head_dim, 6);
    for (int r = 0; r < m; ++r) positions.push_back((r * 7) % m);

    layout = {shape.kv_dtype, kBlockSize, 2, shape.num_kv_heads, shape.head_dim};
    const int num_chunks = static_cast<int>(chunk_rows.size());
    tables.resize(num_chunks);
    int num_blocks = 0;
    for (int c = 0, row = 0; c < num_chunks; row += chunk_rows[c++]) {
      const int blocks = (contexts[c] + chunk_rows[c] + kBlockSize - 1) / kBlockSize;
      num_blocks += blocks;
      for (int b = 1; b <= blocks; ++b) tables[c].push_back(num_blocks - b);
      chunks.push_back({row, chunk_rows[c], contexts[c], tables[c]});
    }
    const size_t elements = layout.block_bytes() * num_blocks / layout.element_bytes();
    const std::vector<float> values = RandomFloats(4096, 7);
    for (size_t i = 0; i < elements; ++i) {
      const float value = values[i * 13 % values.size()];
      if (shape.kv_dtype == DType::kF32) {
        Append(value);
      } else {
        Append(shape.kv_dtype == DType::kF16 ? FloatToHalf(value) : FloatToBf16(value));
      }
    }
  }
  template <typename T>
  void Append(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    blocks.insert(blocks.end(), bytes, bytes + sizeof value);
  }

  Shape shape;
  int m;
  std::vector<TestTensor> tensors;
  std::vector<float> x, norms, head_norms, biases, cos, sin;
  std::vector<int32_t> positions;
  KvLayout layout;
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceChunk> chunks;
  std::vector<std::byte> blocks;
};

// All that the four calls leave behind.
struct Result {
  std::vector<float> attended, x_middle, gate, x;
  std::vector<std::byte> blocks;
};

std::vector<std::unique_ptr<WeightMatrix>> Pack(Backend& backend, const Layer& layer) {
  std::vector<std::unique_ptr<WeightMatrix>> weights;
  for (const TestTensor& tensor : layer.tensors) weights.push_back(backend.PackWeights(tensor.host()).value());
  return weights;
}

Result RunLayer(Backend& backend, const Layer& layer, const std::vector<std::unique_ptr<WeightMatrix>>& weights) {
  const Shape& s = layer.shape;
  const size_t m = static_cast<size_t>(layer.m);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const int q_dim = s.q_dim(), kv_dim = s.kv_dim(), v_stride = kv_dim + 3, out_stride = q_dim + 5;
  const int gate_stride = s.ffn_dim + 7, up_stride = s.ffn_dim + 2, y_stride = s.dim + 3;
  std::vector<float> normed(m * s.dim, nan), q(m * q_dim, nan), k(m * kv_dim, nan), v(m * v_stride, nan);
  std::vector<float> y(m * y_stride, nan), up(m * up_stride, nan);
  Result result;
  result.attended.assign(m * out_stride, -7);
  result.gate.assign(m * gate_stride, -7);
  result.x = layer.x;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  const size_t room = (layer.blocks.size() + 63) / 64 * 64;
  const std::unique_ptr<std::byte, Free> blocks(static_cast<std::byte*>(std::aligned_alloc(64, room)));
  std::copy(layer.blocks.begin(), layer.blocks.end(), blocks.get());
  const auto norm = [&](int i, bool has) { return Backend::Norm{has ? layer.norms.data() + i * s.dim : nullptr, 1e-5f}; };
  const auto head_norm = [&](int i) {
    return Backend::Norm{s.qk_norm ? layer.head_norms.data() + i * s.head_dim : nullptr, 1e-6f};
  };
  const float* const bias = s.bias ? layer.biases.data() : nullptr;
  const int rope_dim = s.head_dim - 4;
  backend.SelfAttention({.m = layer.m,
                         .dim = s.dim,
                         .x = result.x.data(),
                         .norm = norm(0, true),
                         .normed = normed.data(),
                         .q = {weights[0].get(), bias, q.data(), q_dim},
                         .k = {weights[1].get(), bias == nullptr ? bias : bias + q_dim, k.data(), kv_dim},
                         .v = {weights[2].get(), bias == nullptr ? bias : bias + q_dim + kv_dim, v.data(), v_stride},
                         .q_norm = head_norm(0),
                         .k_norm = head_norm(1),
                         .positions = layer.positions,
                         .rope = {layer.cos.data(), layer.sin.data(), rope_dim, s.rope_style},
                         .layer = 1,
                         .chunks = layer.chunks,
                         .kv = {blocks.get(), layer.layout},
                         .params = {s.num_heads, 0.2f, s.sliding_window, s.logit_softcap},
                         .out = result.attended.data(),
                         .out_stride = out_stride,
                         .next = s.next ? weights[3].get() : nullptr});
  backend.ResidualMatMul({.m = layer.m,
                          .input = result.attended.data(),
                          .input_stride = out_stride,
                          .product = {weights[3].get(), nullptr, y.data(), y_stride},
                          .norm = norm(1, s.post_norms),
                          .x = result.x.data()});
  result.x_middle = result.x;
  backend.GatedMatMul({.m = layer.m,
                       .dim = s.dim,
                       .x = result.x.data(),
                       .norm = norm(2, true),
                       .normed = normed.data(),
                       .gate = {weights[4].get(), nullptr, result.gate.data(), gate_stride},
                       .up = {weights[5].get(), nullptr, up.data(), up_stride},
                       .activation = s.activation,
                       .next = s.next ? weights[6].get() : nullptr});
  backend.ResidualMatMul({.m = layer.m,
                          .input = result.gate.data(),
                          .input_stride = gate_stride,
                          .product = {weights[6].get(), nullptr, y.data(), y_stride},
                          .norm = norm(3, s.post_norms),
                          .x = result.x.data()});
  result.blocks.assign(blocks.get(), blocks.get() + layer.blocks.size());
  return result;
}

// Without arrays: but for what may go from one call to the next in another form.
void ExpectSame(const Result& want, const Result& got, const std::string& what, bool arrays = false) {
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  ASSERT_EQ(want.blocks, got.blocks) << what << ": keys and values";
  ASSERT_TRUE(!arrays || same(want.attended, got.attended)) << what << ": attention";
  ASSERT_TRUE(same(want.x_middle, got.x_middle)) << what << ": output product";
  ASSERT_TRUE(!arrays || same(want.gate, got.gate)) << what << ": gated product";
  ASSERT_TRUE(same(want.x, got.x)) << what << ": down product";
}

// m rows in chunks of uneven size, the last ones of one row, with long contexts (or all short).
Layer LayerOf(const Shape& shape, const Formats& formats, int m, bool long_contexts = true) {
  std::vector<int> chunk_rows, contexts;
  for (int left = m; left > 0;) {
    const int rows = left <= 3 ? 1 : left * 2 / 3;
    contexts.push_back(rows > 1 || !long_contexts ? left * 5 % 37 : 1100 - 530 * (left % 3));
    chunk_rows.push_back(rows);
    left -= rows;
  }
  return Layer(shape, formats, m, chunk_rows, contexts);
}

std::string Describe(const Backend& backend, NumericsClass numerics, int threads, int m) {
  return absl::StrCat(backend.name(), " ", Name(numerics), ", ", threads, " threads, ", m, " rows");
}

class FusedTest : public testing::TestWithParam<DType> {
 protected:
  bool Wide() const { return BlockElements(GetParam()) == 256; }
  Shape Llama() const {
    return Wide() ? Shape{.dim = 256, .ffn_dim = 512, .num_heads = 8, .num_kv_heads = 2, .head_dim = 32}
                  : Shape{.dim = 96, .ffn_dim = 160, .num_heads = 6, .num_kv_heads = 3, .head_dim = 32};
  }
  // Heads that end inside a group of 32, whole rows after each product.
  Shape Gemma() const {
    return {.dim = Wide() ? 256 : 160,
            .ffn_dim = Wide() ? 256 : 96,
            .num_heads = Wide() ? 16 : 4,
            .num_kv_heads = 2,
            .head_dim = Wide() ? 16 : 48,
            .qk_norm = true,
            .post_norms = true,
            .activation = Activation::kGeluTanh,
            .kv_dtype = DType::kBF16,
            .sliding_window = 45,
            .logit_softcap = 20};
  }
  // Heads that share panels.
  Shape SmallHeads() const {
    return {.dim = Wide() ? 256 : 64,
            .ffn_dim = 256,
            .num_heads = Wide() ? 32 : 8,
            .num_kv_heads = 4,
            .head_dim = 8,
            .bias = true,
            .rope_style = RopeStyle::kInterleaved,
            .kv_dtype = DType::kF32};
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, FusedTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(FusedTest, IsTheCompositionInEveryInstructionSet) {
  Shape with_bias = Llama();
  with_bias.bias = true;
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (numerics == NumericsClass::kBf16 && GetParam() != DType::kBF16) continue;  // as kInt
    for (Shape shape : {with_bias, Gemma(), SmallHeads()}) {
      for (const int m : {1, 5, 17, 70}) {
        shape.next = m == 1 || m == 70;
        const Layer layer = LayerOf(shape, All(GetParam()), m);
        const auto scalar = MakeBackend(Isa::kScalar, numerics);
        Composed composed(scalar.get());
        const Result want = RunLayer(composed, layer, Pack(composed, layer));
        for (const float value : want.x) ASSERT_TRUE(std::isfinite(value));
        for (const Isa isa : AvailableIsas()) {
          for (const int threads : {1, 2, 3}) {
            const auto backend = MakeBackend(isa, numerics, threads);
            const Result got = RunLayer(*backend, layer, Pack(*backend, layer));
            ASSERT_NO_FATAL_FAILURE(
                ExpectSame(want, got, Describe(*backend, numerics, threads, m), !shape.next));
          }
        }
      }
    }
  }
}

#ifdef BATON_SANITIZE
constexpr int kRowStep = 3;  // a case takes minutes there
#else
constexpr int kRowStep = 1;
#endif

TEST_P(FusedTest, AnyNumberOfRows) {
  struct Setup {
    std::unique_ptr<Backend> backend;
    std::vector<std::unique_ptr<WeightMatrix>> weights;
  };
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (numerics == NumericsClass::kBf16 && GetParam() != DType::kBF16) continue;
    const Layer first = LayerOf(Llama(), All(GetParam()), 1);
    std::vector<Setup> setups;
    for (const WeightLayout layout : {WeightLayout::kDecode, WeightLayout::kPrefill, WeightLayout::kBoth}) {
      auto backend = Backend::CreateCpu({.numerics = numerics, .num_threads = 2, .weight_layout = layout}).value();
      auto weights = Pack(*backend, first);
      setups.push_back({std::move(backend), std::move(weights)});
    }
    Composed composed(setups[0].backend.get());
    for (int m = 1; m <= 70; m += kRowStep) {
      const Layer layer = LayerOf(Llama(), All(GetParam()), m, false);
      const Result want = RunLayer(composed, layer, setups[0].weights);
      for (const Setup& setup : setups) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectSame(want, RunLayer(*setup.backend, layer, setup.weights), Describe(*setup.backend, numerics, 2, m)));
      }
    }
  }
}

// Formats that want their input in different forms: one product's output serves them all.
TEST(FusedFormatsTest, Mixed) {
  const Shape shape = {.dim = 256, .ffn_dim = 256, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const Formats mixed[] = {{DType::kBF16, DType::kQ8_0, DType::kF32, DType::kBF16, DType::kQ6_K, DType::kBF16, DType::kF16},
                           {DType::kQ4_0, DType::kF16, DType::kBF16, DType::kQ4_K, DType::kF32, DType::kQ5_1, DType::kBF16}};
  for (const Formats& formats : mixed) {
    for (const int m : {1, 3, 40}) {
      const Layer layer = LayerOf(shape, formats, m);
      for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
        const auto scalar = MakeBackend(Isa::kScalar, numerics);
        Composed composed(scalar.get());
        const Result want = RunLayer(composed, layer, Pack(composed, layer));
        for (const Isa isa : AvailableIsas()) {
          const auto backend = MakeBackend(isa, numerics, 3);
          const Result got = RunLayer(*backend, layer, Pack(*backend, layer));
          ASSERT_NO_FATAL_FAILURE(ExpectSame(want, got, Describe(*backend, numerics, 3, m)));
        }
      }
    }
  }
}

Shape RealLlama() { return {.dim = 768, .ffn_dim = 1536, .num_heads = 12, .num_kv_heads = 4, .head_dim = 64}; }
Shape RealGemma() {
  Shape shape = RealLlama();
  shape.qk_norm = shape.post_norms = true;
  shape.activation = Activation::kGeluTanh;
  return shape;
}

// Few rows whose products are worth sharing, and so many that they are worked on in several blocks of rows.
TEST(FusedSizesTest, RowsThatAreSharedAndBlocksOfRows) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kBF16}) {
    for (const NumericsClass numerics : {NumericsClass::kInt, NumericsClass::kBf16}) {
      if (numerics == NumericsClass::kBf16 && dtype != DType::kBF16) continue;
      for (const Shape& shape : {RealLlama(), RealGemma()}) {
        for (const int m : {1, 2, 8, 300}) {
          const Layer layer =
              m < 300 ? LayerOf(shape, All(dtype), m) : Layer(shape, All(dtype), m, {1, 297, 2}, {600, 3, 40});
          const auto alone = MakeBackend(Isa::kAuto, numerics, 1);
          Composed composed(alone.get());
          const Result want = RunLayer(composed, layer, Pack(composed, layer));
          for (const int threads : {1, 2, 3}) {
            const auto backend = MakeBackend(Isa::kAuto, numerics, threads);
            const auto weights = Pack(*backend, layer);
            for (int i = 0; i < 3; ++i) {  // threads meet in other orders
              ASSERT_NO_FATAL_FAILURE(
                  ExpectSame(want, RunLayer(*backend, layer, weights), Describe(*backend, numerics, threads, m)));
            }
          }
        }
      }
    }
  }
}

uint32_t BarriersOf(const Shape& shape, const std::vector<int>& chunk_rows, const std::vector<int>& contexts) {
  int m = 0;
  for (const int rows : chunk_rows) m += rows;
  const Layer layer(shape, All(DType::kQ8_0), m, chunk_rows, contexts);
  const auto backend = MakeBackend(Isa::kAuto, NumericsClass::kInt, 2);
  const auto weights = Pack(*backend, layer);
  const auto& counter = static_cast<const cpu::CpuBackend&>(*backend);
  const uint32_t before = counter.num_barriers();
  RunLayer(*backend, layer, weights);
  const uint32_t fused = counter.num_barriers() - before;
  Composed composed(backend.get());
  RunLayer(composed, layer, weights);
  const uint32_t elementary = counter.num_barriers() - before - fused;
  EXPECT_LT(fused, elementary);
  return fused;
}

// A row's norm is not worth a barrier: who calls does it alone. Those of many rows are shared, before each of the first
// products and, in models with norms behind the second ones, there.
TEST(FusedBarriersTest, OfALayer) {
  EXPECT_EQ(BarriersOf(RealLlama(), {1}, {700}), 4u);
  EXPECT_EQ(BarriersOf(RealGemma(), {1}, {700}), 4u);
  EXPECT_EQ(BarriersOf(RealLlama(), std::vector<int>(4, 1), {1, 100, 600, 1100}), 4u);
  EXPECT_EQ(BarriersOf(RealLlama(), {128}, {0}), 6u);
  EXPECT_EQ(BarriersOf(RealLlama(), {100, 1, 27}, {64, 1000, 0}), 6u);
  EXPECT_EQ(BarriersOf(RealGemma(), {128}, {0}), 8u);
  EXPECT_EQ(BarriersOf(RealLlama(), std::vector<int>(32, 1), std::vector<int>(32, 50)), 6u);
}

}  // namespace
}  // namespace baton::kernels
