#include "tests/bench/model_bench.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/dtype.h"

namespace baton::bench {
namespace {

constexpr int kBlockSize = 16;
constexpr int kChunk = 512;

// Halves of random sign between 2^-3 and 2: finite, and neither tiny nor huge as keys and values.
void FillRandomHalves(std::byte* memory, size_t bytes) {
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = (state ^ state >> 29) & 0x8fff8fff8fff8fff;
    const uint64_t halves = word | 0x3000300030003000;
    std::memcpy(memory + i, &halves, sizeof halves);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelBench>> ModelBench::Load(const Options& options) {
  std::unique_ptr<ModelBench> bench(new ModelBench());
  bench->clock_ = options.clock;
  const double start = Seconds(ClockKind::kWall);
  auto file = model::GgufFile::Open(options.path);
  if (!file.ok()) return file.status();
  bench->file_ = std::make_unique<model::GgufFile>(*std::move(file));
  auto backend = kernels::Backend::CreateCpu({.isa = options.isa, .numerics = options.numerics, .num_threads = options.threads});
  if (!backend.ok()) return backend.status();
  bench->backend_ = *std::move(backend);
  auto transformer = model::Transformer::Load(*bench->file_, bench->backend_.get(), {.max_batch_rows = kChunk});
  if (!transformer.ok()) return transformer.status();
  bench->model_ = *std::move(transformer);
  bench->load_seconds_ = Seconds(ClockKind::kWall) - start;
  bench->CountCost();

  const kernels::KvLayout layout = bench->model_->KvLayoutFor(kernels::DType::kF16, kBlockSize);
  bench->num_blocks_ = (options.max_tokens + kBlockSize - 1) / kBlockSize + 64;
  auto pool = kvcache::BlockPool::Create(layout, bench->num_blocks_);
  if (!pool.ok()) return pool.status();
  bench->pool_ = *std::move(pool);
  FillRandomHalves(bench->pool_->view().base, static_cast<size_t>(bench->num_blocks_) * layout.block_bytes());
  return bench;
}

void ModelBench::CountCost() {
  for (const model::GgufTensor& tensor : file_->tensors()) {
    if (tensor.dims.size() < 2) continue;
    const int64_t elements = static_cast<int64_t>(tensor.num_elements), bytes = static_cast<int64_t>(tensor.num_bytes);
    const bool is_embedding = tensor.name == "token_embd.weight", is_head = tensor.name == "output.weight";
    if (is_head || (is_embedding && config().tied_head)) {
      cost_.head_weights = elements;
      cost_.head_bytes = bytes;
    } else if (!is_embedding) {
      cost_.layer_weights += elements;
      cost_.layer_bytes += bytes;
    }
  }
  cost_.kv_token_bytes = static_cast<int64_t>(model_->KvLayoutFor(kernels::DType::kF16, kBlockSize).token_bytes());
}

std::vector<std::vector<int32_t>> ModelBench::Tables(int batch, int tokens) const {
  std::vector<int32_t> free(static_cast<size_t>(num_blocks_));
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), std::mt19937(1));
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(batch));
  size_t next = 0;
  for (auto& table : tables) {
    for (int i = 0; i < (tokens + kBlockSize - 1) / kBlockSize; ++i) table.push_back(free[next++ % free.size()]);
  }
  return tables;
}

double ModelBench::Prefill(int n) {
  const std::vector<int32_t> table = Tables(1, n)[0];
  std::vector<int32_t> tokens, positions;
  logits_.resize(static_cast<size_t>(config().vocab_size));
  const double start = Seconds(clock_);
  for (int done = 0; done < n; done += kChunk) {
    const int rows = std::min(kChunk, n - done);
    tokens.clear();
    positions.clear();
    for (int i = 0; i < rows; ++i) {
      tokens.push_back((done + i) * 7919 % config().vocab_size);
      positions.push_back(done + i);
    }
    const kernels::SequenceChunk chunk{0, rows, done, table};
    const int32_t last = rows - 1;
    const bool ends = done + rows == n;
    model_->Forward({tokens, positions, {&chunk, 1}, {&last, ends ? size_t{1} : size_t{0}}}, pool_->view(),
                    std::span(logits_).first(ends ? logits_.size() : 0));
  }
  return n / (Seconds(clock_) - start);
}

double ModelBench::Decode(int batch, int context, int steps) {
  const auto tables = Tables(batch, context + steps);
  std::vector<int32_t> tokens(static_cast<size_t>(batch)), positions(tokens.size()), logit_rows(tokens.size());
  std::vector<kernels::SequenceChunk> chunks(tokens.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  logits_.resize(static_cast<size_t>(batch) * static_cast<size_t>(config().vocab_size));
  const double start = Seconds(clock_);
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < batch; ++i) {
      tokens[i] = (step * 104729 + i * 7919) % config().vocab_size;
      positions[i] = context + step;
      chunks[i] = {i, 1, context + step, tables[i]};
    }
    model_->Forward({tokens, positions, chunks, logit_rows}, pool_->view(), logits_);
  }
  return batch * steps / (Seconds(clock_) - start);
}

}  // namespace baton::bench
