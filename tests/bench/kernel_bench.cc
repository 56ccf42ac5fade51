#include "tests/bench/kernel_bench.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

namespace baton::bench {
namespace {

using kernels::DType;

// Runs until a tenth of a second has passed, three times; the best rate of calls a second.
double CallsPerSecond(ClockKind clock, const std::function<void()>& call) {
  double best = 0;
  call();
  for (int i = 0; i < 3; ++i) {
    const double start = Seconds(clock);
    int calls = 0;
    double elapsed = 0;
    do {
      call();
      ++calls;
      elapsed = Seconds(clock) - start;
    } while (elapsed < 0.1);
    best = std::max(best, calls / elapsed);
  }
  return best;
}

std::vector<float> SomeFloats(size_t n) {
  std::vector<float> values(n);
  uint32_t state = 1;
  for (float& v : values) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(state >> 8) / (1 << 23) - 1;
  }
  return values;
}

// The tensor of every layer, so that calls one after another read memory as in a forward pass.
void MeasureMatrix(ModelBench& bench, const std::string& suffix, const Peaks& peaks, bool integer, ClockKind clock,
                   std::vector<KernelResult>* results) {
  std::vector<std::unique_ptr<kernels::WeightMatrix>> weights;
  int64_t file_bytes = 0;
  for (const model::GgufTensor& tensor : bench.file().tensors()) {
    if (tensor.name.size() < suffix.size() || tensor.name.substr(tensor.name.size() - suffix.size()) != suffix.c_str()) {
      continue;
    }
    std::vector<std::byte> bytes(tensor.num_bytes);
    if (!bench.file().ReadTensor(tensor, 0, bytes).ok()) return;
    weights.push_back(bench.backend().PackWeights({tensor.dtype, tensor.dims[1], tensor.dims[0], bytes.data()}).value());
    file_bytes = static_cast<int64_t>(tensor.num_bytes);
  }
  if (weights.empty()) return;
  const int64_t rows = weights[0]->rows(), cols = weights[0]->cols();
  for (int m : {1, 4, 8, 16, 32, 128, 512}) {
    if (m > 32 && rows > 40000) continue;  // the head never sees so many
    const std::vector<float> x = SomeFloats(static_cast<size_t>(m * cols));
    std::vector<float> y(static_cast<size_t>(m * rows));
    size_t next = 0;
    const double calls = CallsPerSecond(clock, [&] {
      const kernels::MatMulOutput output{weights[next++ % weights.size()].get(), nullptr, y.data(), rows};
      bench.backend().MatMul(x.data(), cols, m, {&output, 1});
    });
    KernelResult result;
    result.name = absl::StrCat(suffix.substr(0, suffix.find('.')), " ", rows, "x", cols, " rows ", m);
    result.gops = 2e-9 * calls * static_cast<double>(m * rows * cols);
    result.gbps = 1e-9 * calls * static_cast<double>(file_bytes);
    const double peak = integer ? peaks.int8_gops : peaks.bf16_gflops > 0 ? peaks.bf16_gflops : peaks.f32_gflops;
    const double compute = peak > 0 ? result.gops / peak : 0;
    const double read = peaks.read_gbps > 0 ? result.gbps / peaks.read_gbps : 0;
    result.share = std::max(compute, read);
    result.limit = read > compute ? "read" : integer ? "int8" : peaks.bf16_gflops > 0 ? "bf16" : "f32";
    results->push_back(result);
  }
}

void MeasureAttention(ModelBench& bench, const Peaks& peaks, ClockKind clock, std::vector<KernelResult>* results) {
  const model::ModelConfig& config = bench.config();
  const kernels::KvLayout layout{.dtype = DType::kF16,
                                 .block_size = 16,
                                 .num_layers = 1,
                                 .num_kv_heads = config.num_kv_heads,
                                 .head_dim = config.head_dim};
  constexpr int kCopies = 64, kLength = 2048;  // sequences in turn, so that decode reads memory
  std::vector<int32_t> tables[kCopies];
  for (int copy = 0; copy < kCopies; ++copy) {
    for (int i = 0; i < kLength / 16; ++i) tables[copy].push_back(copy * (kLength / 16) + i);
  }
  const auto pool = kvcache::BlockPool::Create(layout, kCopies * kLength / 16);
  if (!pool.ok()) return;
  const kernels::KvView view = (*pool)->view();
  const int q_dim = config.q_dim(), kv_dim = config.kv_dim();
  const std::vector<float> q = SomeFloats(static_cast<size_t>(kLength) * static_cast<size_t>(q_dim));
  std::vector<float> out(q.size());
  for (const auto& table : tables) {
    const kernels::SequenceChunk all{0, kLength, 0, table};
    bench.backend().WriteKv(0, q.data(), kv_dim, q.data(), kv_dim, {&all, 1}, view);
  }
  const kernels::AttentionParams params{config.num_heads, config.attention_scale, 0, 0};
  const auto measure = [&](const std::string& name, int rows, int context, bool decode) {
    size_t next = 0;
    const double calls = CallsPerSecond(clock, [&] {
      const kernels::SequenceChunk chunk{0, rows, context, tables[next++ % (decode ? kCopies : 1)]};
      bench.backend().Attention(0, q.data(), q_dim, {&chunk, 1}, view, params, out.data(), q_dim);
    });
    KernelResult result;
    result.name = name;
    const double pairs = rows * (context + (rows + 1) / 2.0);
    result.gops = 4e-9 * calls * pairs * q_dim;
    if (decode) result.gbps = 1e-9 * calls * (context + 1) * static_cast<double>(layout.token_bytes());
    const double peak = decode ? peaks.read_gbps : peaks.f32_gflops;
    result.limit = decode ? "read" : "f32";
    result.share = peak > 0 ? (decode ? result.gbps : result.gops) / peak : 0;
    results->push_back(result);
  };
  measure("attention, prompt of 512", 512, 0, false);
  measure("attention, 512 at 1536", 512, 1536, false);
  measure("attention, 1 at 2047", 1, 2047, true);
}

}  // namespace

std::vector<KernelResult> MeasureKernels(ModelBench& bench, const Peaks& peaks, bool integer, ClockKind clock) {
  std::vector<KernelResult> results;
  for (const char* suffix : {"attn_q.weight", "attn_k.weight", "ffn_gate.weight", "ffn_down.weight",
                             "token_embd.weight"}) {
    MeasureMatrix(bench, suffix, peaks, integer, clock, &results);
  }
  MeasureAttention(bench, peaks, clock, &results);
  return results;
}

}  // namespace baton::bench
