#include "tests/gpu/selftest.h"

#define XXH_INLINE_ALL  // the program is to run where xxHash's library is not
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/sampler.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pack_weights.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels::cuda {
namespace {

constexpr Stream kStream = nullptr;

// Arrays on the device. The first error is kept; all later calls do nothing.
class Device {
 public:
  const absl::Status& status() const { return status_; }

  template <typename T>
  T* Put(const std::vector<T>& values) {
    T* const at = New<T>(values.size());
    if (at != nullptr) Keep(CopyToDevice(at, values.data(), values.size() * sizeof(T), kStream));
    return at;
  }
  template <typename T>
  T* New(size_t n) {
    absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(n * sizeof(T));
    Keep(memory.status());
    if (!status_.ok()) return nullptr;
    arrays_.push_back(*std::move(memory));
    return static_cast<T*>(arrays_.back().data());
  }
  template <typename T>
  std::vector<T> Get(const T* at, size_t n) {
    std::vector<T> values(n);
    if (status_.ok()) Keep(CopyFromDevice(values.data(), at, n * sizeof(T), kStream));
    return values;
  }
  void Wait() {
    if (status_.ok()) Keep(Synchronize(kStream));
  }

 private:
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  std::vector<DeviceMemory> arrays_;
  absl::Status status_;
};

template <typename T>
std::string Compare(const std::vector<T>& actual, const std::vector<T>& expected, const Device& device) {
  if (!device.status().ok()) return device.status().ToString();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0) {
      return absl::StrCat("element ", i, " is ", actual[i], ", expected ", expected[i]);
    }
  }
  return "";
}

std::unique_ptr<Backend> Cpu() { return MakeBackend(Isa::kScalar, NumericsClass::kF32); }

std::string CheckRmsNorm(int m, int dim, uint32_t seed) {
  Device device;
  std::vector<float> x = RandomFloats(m * dim, seed), residual = RandomFloats(m * dim, seed + 1), expected(m * dim);
  const std::vector<float> weight = RandomFloats(dim, seed + 2);
  float* const y = device.New<float>(m * dim);
  const RmsNormArgs args = {.x = device.Put(x), .x_stride = dim, .residual = device.Put(residual), .residual_stride = dim,
                            .m = m, .dim = dim, .weight = device.Put(weight), .epsilon = 1e-5f, .y = y, .y_stride = dim};
  if (device.status().ok()) RmsNorm(args, kStream);
  const auto cpu = Cpu();
  cpu->Add(x.data(), dim, residual.data(), dim, m, dim);
  cpu->RmsNorm(x.data(), dim, m, dim, weight.data(), 1e-5f, expected.data(), dim);
  return Compare(device.Get(y, expected.size()), expected, device);
}

std::string CheckActivation(Activation act, int m, int dim, uint32_t seed) {
  Device device;
  std::vector<float> gate = RandomFloats(m * dim, seed, 4.0f);
  const std::vector<float> up = RandomFloats(m * dim, seed + 1);
  float* const on_device = device.Put(gate);
  const float* const up_on_device = device.Put(up);
  if (device.status().ok()) GatedActivation(act, on_device, dim, up_on_device, dim, m, dim, kStream);
  Cpu()->GatedActivation(act, gate.data(), dim, up.data(), dim, m, dim);
  return Compare(device.Get(on_device, gate.size()), gate, device);
}

std::string CheckEmbed(DType dtype, int64_t cols, uint32_t seed) {
  Device device;
  const TestTensor table = RandomTensor(dtype, 19, cols, seed);
  const std::vector<int32_t> ids = {18, 0, 7};
  std::vector<float> expected;
  for (const int32_t id : ids) {
    const std::vector<float> row = table.Row(id);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  float* const out = device.New<float>(expected.size());
  const EmbedArgs args = {.dtype = dtype, .table = device.Put(table.bytes), .cols = cols, .ids = device.Put(ids), .m = 3,
                          .out = out, .out_stride = cols};
  if (device.status().ok()) Embed(args, kStream);
  return Compare(device.Get(out, expected.size()), expected, device);
}

struct DeviceWeight {
  DeviceMatrix matrix;
  PackedWeights packed;
  DeviceWeight(Device& device, const HostTensor& tensor, WeightStorage storage = WeightStorage::kOwnBits)
      : packed(PackForDevice(tensor, storage)) {
    matrix = {packed.dtype, tensor.rows, tensor.cols, device.Put(packed.codes), device.Put(packed.scales)};
  }
};

// One piece of inputs has the CPU's order; more are compared with themselves, row by row.
std::string CheckMatMul(DType dtype, int64_t rows, int64_t cols, int m, uint32_t seed) {
  Device device;
  const TestTensor tensor = RandomTensor(dtype, rows, cols, seed);
  const std::vector<float> x = RandomFloats(m * cols, seed + 1);
  const DeviceWeight weight(device, tensor.host());
  float* const y = device.New<float>(m * rows);
  const float* const x_on_device = device.Put(x);
  const auto run = [&](int first, int n) {
    if (!device.status().ok()) return;
    MatMul({.x = x_on_device + first * cols, .x_stride = cols, .m = n, .weight = weight.matrix, .y = y + first * rows,
            .y_stride = rows},
           kStream);
  };
  std::vector<float> expected(m * rows);
  if (cols <= kInputPiece) {
    const auto cpu = Cpu();
    const auto packed = cpu->PackWeights(tensor.host()).value();
    const MatMulOutput output = {packed.get(), nullptr, expected.data(), rows};
    cpu->MatMul(x.data(), cols, m, {&output, 1});
  } else {
    for (int r = 0; r < m; ++r) run(r, 1);
    expected = device.Get(y, expected.size());
    // So that one order at least is the definition's: the first output.
    const std::vector<float> w = tensor.Row(0);
    float total = 0;
    for (int64_t begin = 0; begin < cols; begin += kInputPiece) {
      float acc = 0;
      for (int64_t k = begin; k < std::min<int64_t>(begin + kInputPiece, cols); ++k) acc = std::fma(w[k], x[k], acc);
      total = begin == 0 ? acc : total + acc;
    }
    expected[0] = total;
  }
  run(0, m);
  return Compare(device.Get(y, expected.size()), expected, device);
}

// On tensor cores, whose smallest step has an order of its own: near the exact product of the rounded values, and the bits
// of each row alone and of some rows from the middle (other kernels and tiles). out: the result.
std::string CheckBf16MatMul(bool wgmma, DType dtype, WeightStorage storage, int64_t rows, int64_t cols, int m, uint32_t seed,
                            std::vector<float>* out) {
  Device device;
  const TestTensor tensor = RandomTensor(dtype, rows, cols, seed);
  const std::vector<float> x = RandomFloats(m * cols, seed + 1), bias = RandomFloats(rows, seed + 2);
  const DeviceWeight weight(device, tensor.host(), storage);
  float* const y = device.New<float>(m * rows);
  const float* const x_on_device = device.Put(x);
  const float* const bias_on_device = device.Put(bias);
  std::byte* const rounded = device.New<std::byte>(RoundedInputsBytes(m, cols));
  const auto run = [&](int first, int n) {
    if (!device.status().ok()) return;
    RoundInputs(x_on_device + first * cols, cols, n, cols, rounded, kStream);
    Bf16MatMul({.rounded = rounded, .m = n, .weight = weight.matrix, .bias = bias_on_device, .y = y + first * rows,
                .y_stride = rows, .wgmma = wgmma},
               kStream);
  };
  for (int r = 0; r < m; ++r) run(r, 1);
  const std::vector<float> alone = device.Get(y, m * rows);
  for (const int n : {12, 31, 50, 100, 200, m}) {
    if (n > m) continue;
    run((m - n) / 2, n);
    const std::string difference = Compare(device.Get(y, m * rows), alone, device);
    if (!difference.empty()) return absl::StrCat(n, " rows at once: ", difference);
  }
  const std::vector<float> together = device.Get(y, m * rows);
  *out = together;
  constexpr int64_t kOutputs = 40;  // from the end, where tiles are not whole
  for (int64_t o = std::max<int64_t>(rows - kOutputs, 0); o < rows; ++o) {
    std::vector<float> w = tensor.Row(o);
    if (storage == WeightStorage::kFp8) UnpackE4m3Row(weight.packed, cols, o, w.data());
    for (int r = 0; r < m; ++r) {
      double sum = bias[o], size = std::abs(sum);
      for (int64_t k = 0; k < cols; ++k) {
        const double term = double{Bf16ToFloat(FloatToBf16(w[k]))} * Bf16ToFloat(FloatToBf16(x[r * cols + k]));
        sum += term;
        size += std::abs(term);
      }
      const double got = together[r * rows + o];
      if (!(std::abs(got - sum) <= 1e-5 * size)) {
        return absl::StrCat("row ", r, ", output ", o, " is ", got, ", expected ", sum, " +- ", 1e-5 * size);
      }
    }
  }
  return "";
}

// A batch of one prefill chunk and one decode row, written by RopeWriteKv and attended to. Tensor cores are near the CPU
// (as the types' roundings have it), and each row has the bits that it has alone, in decode.
std::string CheckAttention(bool tensor_cores, DType dtype, int num_heads, int num_kv_heads, int head_dim, int length,
                           uint32_t seed) {
  Device device;
  const KvLayout layout = {.dtype = dtype, .num_layers = 1, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
  const int num_blocks = length / layout.block_size + 2, rows = std::min(length, 40), q_dim = num_heads * head_dim;
  std::vector<int32_t> table(num_blocks);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(seed));
  const int kv_dim = num_kv_heads * head_dim;
  std::vector<float> k = RandomFloats(length * kv_dim, seed + 1), v = RandomFloats(length * kv_dim, seed + 2),
                     q = RandomFloats(rows * q_dim, seed + 3), expected(rows * q_dim);
  std::vector<std::byte> pool(num_blocks * layout.block_bytes());
  std::vector<int32_t> positions(length), block_ids;
  std::iota(positions.begin(), positions.end(), 0);
  for (const int p : positions) block_ids.push_back(table[p / layout.block_size]);
  std::byte* const kv_on_device = device.Put(pool);
  const RopeKvArgs write = {.k = device.Put(k), .k_stride = kv_dim, .v = device.Put(v), .v_stride = kv_dim, .m = length,
                            .head_dim = head_dim, .positions = device.Put(positions), .block_ids = device.Put(block_ids),
                            .kv = {kv_on_device, layout}};
  if (device.status().ok()) RopeWriteKv(write, kStream);
  const SequenceChunk all = {0, length, 0, table};
  const SequenceChunk chunks[] = {{0, rows - 1, length - rows, table}, {rows - 1, 1, length - 1, table}};
  const auto cpu = Cpu();
  cpu->WriteKv(0, k.data(), kv_dim, v.data(), kv_dim, {&all, 1}, {pool.data(), layout});
  const AttentionParams params = {num_heads, 1.0f / std::sqrt(static_cast<float>(head_dim)), 0, 0};
  cpu->Attention(0, q.data(), q_dim, chunks, {pool.data(), layout}, params, expected.data(), q_dim);
  const int group = num_heads / num_kv_heads;
  const float* const q_on_device = device.Put(q);
  const auto run = [&](std::span<const SequenceChunk> batch) {
    const AttentionPlan plan = PlanAttention(batch, layout, group, 0, tensor_cores);
    float* const out = device.New<float>(expected.size());
    AttentionArgs args = {.q = q_on_device, .q_stride = q_dim, .out = out, .out_stride = q_dim,
                          .kv = {kv_on_device, layout}, .group = group, .scale = params.scale,
                          .block_tables = device.Put(plan.block_tables), .max_pieces = plan.max_pieces,
                          .records = device.New<float>(plan.record_floats), .tensor_cores = tensor_cores};
    const AttentionUnit* const prefill = device.Put(plan.prefill);
    const AttentionUnit* const decode = device.Put(plan.decode);
    if (device.status().ok()) {
      args.units = prefill;
      args.num_units = static_cast<int>(plan.prefill.size());
      PrefillAttention(args, kStream);
      args.units = decode;
      args.num_units = static_cast<int>(plan.decode.size());
      DecodeAttention(args, kStream);
    }
    return device.Get(out, expected.size());
  };
  const std::vector<float> out = run(chunks);
  if (!tensor_cores) return Compare(out, expected, device);
  std::vector<SequenceChunk> alone;
  for (int r = 0; r < rows; ++r) alone.push_back({r, 1, length - rows + r, table});
  const std::string difference = Compare(out, run(alone), device);
  if (!difference.empty()) return difference;
  const float bound = dtype == DType::kBF16 ? 0.03f : 0.01f;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!(std::abs(out[i] - expected[i]) <= bound)) {
      return absl::StrCat("element ", i, " is ", out[i], ", expected ", expected[i], " +- ", bound);
    }
  }
  return "";
}

std::string CheckSample(int vocab, int m, uint32_t seed) {
  Device device;
  const std::vector<float> logits = RandomFloats(m * vocab, seed);
  std::vector<SampleRow> rows;
  std::vector<int32_t> expected;
  engine::Sampler sampler(vocab);
  for (int r = 0; r < m; ++r) {
    rows.push_back({.temperature = 0.5f * (r % 4), .seed = seed + r, .position = static_cast<uint32_t>(r)});
    engine::SamplingParams params;
    params.temperature = rows[r].temperature;
    params.seed = rows[r].seed;
    engine::SampleContext context;
    context.params = &params;
    context.position = r;
    const std::span<const float> row(logits.data() + r * vocab, vocab);
    expected.push_back(sampler.Sample(row, context).value().token_id);
  }
  int32_t* const ids = device.New<int32_t>(m);
  const SampleArgs args = {.logits = device.Put(logits), .logits_stride = vocab, .m = m, .vocab_size = vocab,
                           .rows = device.Put(rows), .maxima = device.New<float>(m),
                           .chunk_sums = device.New<double>(m * NumSampleChunks(vocab)), .token_ids = ids};
  if (device.status().ok()) Sample(args, kStream);
  return Compare(device.Get(ids, m), expected, device);
}

std::string CheckChecksums(int64_t bytes, int n, uint32_t seed) {
  Device device;
  std::mt19937_64 rng(seed);
  std::vector<uint64_t> words(n * bytes / 8), expected(n);
  for (uint64_t& word : words) word = rng();
  const uint64_t* const data = device.Put(words);
  ChecksumArgs args = {.n = n, .bytes = bytes, .sums = device.New<uint64_t>(n)};
  for (int i = 0; i < n; ++i) {
    args.data[i] = data + i * bytes / 8;
    expected[i] = XXH3_64bits(words.data() + i * bytes / 8, bytes);
  }
  if (device.status().ok()) Checksums(args, kStream);
  return Compare(device.Get(args.sums, expected.size()), expected, device);
}

// Seconds of one call, after a first.
double TimeOf(Device& device, const std::function<void()>& launch) {
  constexpr int kCalls = 20;
  launch();
  device.Wait();
  const absl::Time start = absl::Now();
  for (int i = 0; i < kCalls; ++i) launch();
  device.Wait();
  return absl::ToDoubleSeconds(absl::Now() - start) / kCalls;
}

enum class Products { kF32, kMma, kWgmma };

Timing TimeMatMul(Products products, DType dtype, int64_t rows, int64_t cols, int m, absl::Status* status) {
  Device device;
  const bool tensor_cores = products != Products::kF32;
  constexpr const char* kNames[] = {"matmul ", "tensor cores ", "wgmma "};
  const int64_t code_bytes = rows * cols * 16 / MatrixStep(dtype);
  const int64_t scale_bytes = dtype == kE4m3 ? rows * 4 : BlockElements(dtype) > 1 ? rows * cols / 32 * 2 : 0;
  const DeviceMatrix matrix = {dtype, rows, cols, device.New<uint8_t>(code_bytes), device.New<uint8_t>(scale_bytes)};
  const MatMulArgs args = {.x = device.New<float>(m * cols), .x_stride = cols, .m = m, .weight = matrix,
                           .y = device.New<float>(m * rows), .y_stride = rows};
  std::byte* const rounded = device.New<std::byte>(RoundedInputsBytes(m, cols));
  Timing timing = {.name = absl::StrCat(kNames[static_cast<int>(products)], dtype == kE4m3 ? "fp8" : std::string(Name(dtype)),
                                        " ", rows, " x ", cols, ", ", m, " rows"),
                   .bytes = static_cast<double>(code_bytes + scale_bytes),
                   .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * m,
                   .tensor_cores = tensor_cores};
  const auto run = [&] {
    if (!tensor_cores) return MatMul(args, kStream);
    RoundInputs(args.x, cols, m, cols, rounded, kStream);
    Bf16MatMul({.rounded = rounded, .m = m, .weight = matrix, .y = args.y, .y_stride = rows,
                .wgmma = products == Products::kWgmma},
               kStream);
  };
  if (device.status().ok()) timing.seconds = TimeOf(device, run);
  *status = device.status();
  return timing;
}

// 32 query and 8 KV heads of 128, BF16: `rows` last positions of each sequence.
Timing TimeAttention(bool tensor_cores, int batch, int keys, int rows, absl::Status* status) {
  Device device;
  const KvLayout layout = {.dtype = DType::kBF16, .num_layers = 1, .num_kv_heads = 8, .head_dim = 128};
  const int blocks = keys / layout.block_size;
  std::vector<std::vector<int32_t>> tables(batch);
  std::vector<SequenceChunk> chunks;
  for (int i = 0; i < batch; ++i) {
    for (int b = 0; b < blocks; ++b) tables[i].push_back(i * blocks + b);
    chunks.push_back({i * rows, rows, keys - rows, tables[i]});
  }
  const AttentionPlan plan = PlanAttention(chunks, layout, 4, 0, tensor_cores);
  const size_t values = size_t{4096} * batch * rows;
  AttentionArgs args = {.q = device.New<float>(values), .q_stride = 4096, .out = device.New<float>(values),
                        .out_stride = 4096,
                        .kv = {device.New<std::byte>(size_t{1} * batch * blocks * layout.block_bytes()), layout},
                        .group = 4, .scale = 0.088f, .block_tables = device.Put(plan.block_tables),
                        .units = device.Put(rows == 1 ? plan.decode : plan.prefill),
                        .num_units = static_cast<int>(rows == 1 ? plan.decode.size() : plan.prefill.size()),
                        .max_pieces = plan.max_pieces, .records = device.New<float>(plan.record_floats),
                        .tensor_cores = tensor_cores};
  const double seen = static_cast<double>(batch) * rows * (keys - 0.5 * (rows - 1));  // keys of all rows
  Timing timing = {.name = absl::StrCat(tensor_cores ? "tensor core " : "", "attention, ", batch, " sequences of ", keys,
                                        " keys, ", rows, " rows"),
                   .bytes = static_cast<double>(batch) * keys * layout.token_bytes(),
                   .flops = 4 * 4096 * seen,
                   .tensor_cores = tensor_cores};
  const auto run = [&] { return rows == 1 ? DecodeAttention(args, kStream) : PrefillAttention(args, kStream); };
  if (device.status().ok()) timing.seconds = TimeOf(device, run);
  *status = device.status();
  return timing;
}

// KV blocks of 16 tokens: 2 MiB for 32 layers of 8 heads of 128.
Timing TimeChecksums(int n, absl::Status* status) {
  constexpr int64_t kBytes = 2 << 20;
  Device device;
  std::byte* const data = device.New<std::byte>(n * kBytes);
  ChecksumArgs args = {.n = n, .bytes = kBytes, .sums = device.New<uint64_t>(n)};
  for (int i = 0; i < n; ++i) args.data[i] = data + i * kBytes;
  Timing timing = {.name = absl::StrCat("checksums, ", n, " blocks of 2 MiB"), .bytes = static_cast<double>(n * kBytes)};
  if (device.status().ok()) timing.seconds = TimeOf(device, [&] { Checksums(args, kStream); });
  *status = device.status();
  return timing;
}

}  // namespace

std::vector<CheckResult> RunChecks(bool large, uint32_t seed) {
  std::vector<CheckResult> results;
  const auto add = [&](std::string name, std::string failure) {
    results.push_back({std::move(name), std::move(failure)});
  };
  const int size = large ? 8 : 1;
  add("rms_norm", CheckRmsNorm(3 * size, 521 * size, seed));
  add("gated silu", CheckActivation(Activation::kSilu, 2 * size, 300 * size, seed));
  add("gated gelu", CheckActivation(Activation::kGeluTanh, 2 * size, 300 * size, seed));
  const auto check_tensor_cores = [&](const std::string& what, DType dtype, WeightStorage storage, int m) {
    std::vector<float> by_warp, by_warpgroup;
    add("tensor cores " + what, CheckBf16MatMul(false, dtype, storage, 37 * size, 1056 * size, m, seed, &by_warp));
    if (!HasWgmma()) return;
    std::string failure = CheckBf16MatMul(true, dtype, storage, 37 * size, 1056 * size, m, seed, &by_warpgroup);
    // Both may be right: it is told, not judged.
    const char* agreement = "";
    if (by_warp.size() == by_warpgroup.size() && !by_warp.empty()) {
      const bool same = std::memcmp(by_warp.data(), by_warpgroup.data(), by_warp.size() * sizeof(float)) == 0;
      agreement = same ? ": mma's bits" : ": not mma's bits";
    }
    add(absl::StrCat("wgmma ", what, agreement), std::move(failure));
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    const std::string name(Name(dtype));
    add("embed " + name, CheckEmbed(dtype, 320 * size, seed));
    for (const int m : {1, 5, 13 * size}) {
      add(absl::StrCat("matmul ", name, ", ", m, " rows, one piece"), CheckMatMul(dtype, 70 * size, 512, m, seed));
      add(absl::StrCat("matmul ", name, ", ", m, " rows"), CheckMatMul(dtype, 39 * size, 1120 * size, m, seed));
    }
    for (const int m : {3, 19, 67 * size}) {
      check_tensor_cores(absl::StrCat(name, ", ", m, " rows"), dtype, WeightStorage::kOwnBits, m);
      if (dtype == DType::kBF16) check_tensor_cores(absl::StrCat("fp8, ", m, " rows"), dtype, WeightStorage::kFp8, m);
    }
  }
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const std::string name(Name(dtype));
    for (const bool tensor_cores : {false, true}) {
      const std::string what = absl::StrCat(tensor_cores ? "tensor core " : "", "attention ", name);
      const auto check = [&](int heads, int kv_heads, int head_dim, int length) {
        if (tensor_cores && !TensorCoresAttend({.dtype = dtype, .head_dim = head_dim})) return;
        add(absl::StrCat(what, ", ", heads, " heads of ", head_dim),
            CheckAttention(tensor_cores, dtype, heads, kv_heads, head_dim, length, seed));
      };
      check(8, 2, 64, large ? 1500 : 70);
      check(6, 6, 128, large ? 1100 : 50);
      check(4, 1, 256, large ? 600 : 41);
    }
  }
  for (CheckResult& result : RunStreamChecks(large)) results.push_back(std::move(result));
  for (const int64_t bytes : {248, 33'800 * size, 65'536 * size}) {
    add(absl::StrCat("checksums of ", bytes, " bytes"), CheckChecksums(bytes, 3 * size, seed));
  }
  add("sample", CheckSample(large ? 128256 : 1500, 8, seed));
  return results;
}

absl::StatusOr<std::vector<Timing>> RunTimings() {
  std::vector<Timing> timings;
  absl::Status status;
  for (const DType dtype : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, kE4m3}) {
    for (const auto& [rows, cols] : {std::pair{4096, 4096}, {28672, 4096}, {4096, 14336}}) {
      for (const int m : {1, 8, 512}) {
        if (dtype == kE4m3) continue;  // on tensor cores only
        timings.push_back(TimeMatMul(Products::kF32, dtype, rows, cols, m, &status));
        if (!status.ok()) return status;
      }
      for (const Products products : {Products::kMma, Products::kWgmma}) {
        if (products == Products::kWgmma && !HasWgmma()) continue;
        for (const int m : {1, 8, 64, 512, 4096}) {
          timings.push_back(TimeMatMul(products, dtype, rows, cols, m, &status));
          if (!status.ok()) return status;
        }
      }
    }
  }
  for (const bool tensor_cores : {false, true}) {
    for (const auto& [batch, keys, rows] : {std::tuple{1, 2048, 1}, {16, 2048, 1}, {16, 8192, 1}, {1, 2048, 2048},
                                            {1, 8192, 512}}) {
      timings.push_back(TimeAttention(tensor_cores, batch, keys, rows, &status));
      if (!status.ok()) return status;
    }
  }
  for (const int n : {2, 64}) {
    timings.push_back(TimeChecksums(n, &status));
    if (!status.ok()) return status;
  }
  return timings;
}

}  // namespace baton::kernels::cuda
