// Speed of the kernels, per format, instruction set, rows and threads. GFLOP/s counts 2 m rows cols; GB/s the packed
// weight (or the KV) once a call.
#include <benchmark/benchmark.h>

#include "kernels/backend.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels {
namespace {

// Enough copies of the weight that a call reads memory, not the cache, as decode does.
void BM_MatMul(benchmark::State& state, Isa isa, DType dtype, int64_t rows, int64_t cols, int m, int threads) {
  const auto backend = MakeBackend(isa, NumericsClass::kInt, threads);
  const TestTensor tensor = RandomTensor(dtype, rows, cols, 1);
  std::vector<std::unique_ptr<WeightMatrix>> weights;
  const size_t copies = m > 64 ? 4 : 1 + (size_t{100} << 20) / tensor.bytes.size();
  for (size_t i = 0; i < copies; ++i) weights.push_back(backend->PackWeights(tensor.host()).value());
  const std::vector<float> x = RandomFloats(m * cols, 2);
  std::vector<float> y(m * rows);
  size_t next = 0;
  for (auto _ : state) {
    const MatMulOutput output{weights[next++ % copies].get(), nullptr, y.data(), rows};
    backend->MatMul(x.data(), cols, m, {&output, 1});
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * m * rows * cols * state.iterations(), benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * weights[0]->memory_bytes() * state.iterations(), benchmark::Counter::kIsRate);
}

// Prefill: all `length` rows of one sequence. Decode: its last row.
void BM_Attention(benchmark::State& state, Isa isa, int length, bool decode, int threads) {
  const auto backend = MakeBackend(isa, NumericsClass::kInt, threads);
  const KvLayout layout{.dtype = DType::kF16, .block_size = 16, .num_layers = 1, .num_kv_heads = 3, .head_dim = 64};
  std::vector<int32_t> table((length + 15) / 16);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::vector<std::byte> pool(table.size() * layout.block_bytes());
  const std::vector<float> q = RandomFloats(length * 576, 1), kv = RandomFloats(length * 192, 2);
  std::vector<float> out(length * 576);
  const KvView view{pool.data(), layout};
  const SequenceChunk all{0, length, 0, table}, last{0, 1, length - 1, table};
  backend->WriteKv(0, kv.data(), 192, kv.data(), 192, {&all, 1}, view);
  const AttentionParams params{9, 0.125f, 0, 0};
  for (auto _ : state) {
    backend->Attention(0, q.data(), 576, {decode ? &last : &all, 1}, view, params, out.data(), 576);
    benchmark::ClobberMemory();
  }
  const double pairs = decode ? length : length * (length + 1.0) / 2;
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * pairs * 576 * state.iterations(), benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * pool.size() * state.iterations(), benchmark::Counter::kIsRate);
}

void RegisterAll() {
  struct Shape {
    const char* name;
    int64_t rows, cols;
  };
  // SmolLM2-135M's, and one of a 1B model (whose columns suit the K formats).
  const Shape shapes[] = {
      {"576x576", 576, 576}, {"1536x576", 1536, 576}, {"576x1536", 576, 1536}, {"2048x2048", 2048, 2048}};
  for (const Isa isa : AvailableIsas()) {
    for (const int threads : {1, 2}) {
      const std::string suffix = "/" + MakeBackend(isa)->name().substr(4) + "/t" + std::to_string(threads);
      for (const DType dtype : kAllDTypes) {
        for (const Shape& shape : shapes) {
          if (shape.cols % BlockElements(dtype) != 0) continue;
          for (const int m : {1, 8, 512}) {
            if (isa == Isa::kScalar && m > 8) continue;
            const std::string name =
                "MatMul/" + std::string(Name(dtype)) + "/" + shape.name + "/m" + std::to_string(m) + suffix;
            benchmark::RegisterBenchmark(name.c_str(), BM_MatMul, isa, dtype, shape.rows, shape.cols, m, threads)
                ->UseRealTime();
          }
        }
      }
      for (const int length : {512, 2048}) {
        for (const bool decode : {false, true}) {
          if (isa == Isa::kScalar && !decode) continue;
          const std::string name =
              (decode ? "AttentionDecode/" : "AttentionPrefill/") + std::to_string(length) + suffix;
          benchmark::RegisterBenchmark(name.c_str(), BM_Attention, isa, length, decode, threads)->UseRealTime();
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  baton::kernels::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
