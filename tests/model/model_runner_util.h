// Drives a ModelRunner as an engine would: block tables, chunks, batches. For tests.
#ifndef BATON_TESTS_MODEL_MODEL_RUNNER_UTIL_H_
#define BATON_TESTS_MODEL_MODEL_RUNNER_UTIL_H_

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/device_space.h"
#include "model/gguf.h"
#include "model/transformer.h"

namespace baton::model {

// KV blocks that are only ever handed out; every second one first, so that no sequence's blocks are neighbours. In a
// device's memory, if there is one.
class TestKvPool {
 public:
  TestKvPool(const kernels::KvLayout& layout, int num_blocks, kernels::DeviceSpace* device = nullptr)
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(64, (static_cast<size_t>(num_blocks) * layout.block_bytes() + 63) / 64 * 64))),
        view_{memory_.get(), layout} {
    for (int b = num_blocks - 1; b >= 0; --b) {
      if (b % 2 == 1) free_.push_back(b);
    }
    for (int b = 0; b < num_blocks; b += 2) free_.push_back(b);
    // Garbage, as after another request: NaN when read as a float of any width.
    const size_t bytes = static_cast<size_t>(num_blocks) * layout.block_bytes();
    std::fill_n(memory_.get(), bytes, std::byte{0xff});
    if (device == nullptr) return;
    device_memory_ = kernels::DeviceArray::AllocateBlocks(device, layout, num_blocks).value();
    device->Upload(device_memory_.data(), memory_.get(), bytes);
    view_.base = static_cast<std::byte*>(device_memory_.data());
  }
  const kernels::KvView& view() const { return view_; }
  int32_t Take() {
    if (free_.empty()) std::abort();
    const int32_t block = free_.back();
    free_.pop_back();
    return block;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  kernels::DeviceArray device_memory_;
  kernels::KvView view_;
  std::vector<int32_t> free_;
};

struct TestSequence {
  std::vector<int32_t> token_ids;
  int num_computed = 0;
  std::vector<int32_t> block_table = {};
  std::vector<std::vector<float>> logits = {};  // of every position computed so far
};

// One forward pass: the next `rows` positions of each sequence. Appends their logits.
inline void Step(ModelRunner* model, TestKvPool* pool, const std::vector<std::pair<TestSequence*, int>>& work) {
  std::vector<int32_t> ids, positions, logit_rows;
  std::vector<kernels::SequenceChunk> chunks;
  for (const auto& [sequence, rows] : work) {
    const int end = sequence->num_computed + rows;
    const int block_size = pool->view().layout.block_size;
    while (static_cast<int>(sequence->block_table.size()) * block_size < end) {
      sequence->block_table.push_back(pool->Take());
    }
    chunks.push_back({static_cast<int>(ids.size()), rows, sequence->num_computed, sequence->block_table});
    for (int p = sequence->num_computed; p < end; ++p) {
      logit_rows.push_back(static_cast<int32_t>(ids.size()));
      ids.push_back(sequence->token_ids[p]);
      positions.push_back(p);
    }
  }
  const size_t vocab = static_cast<size_t>(model->vocab_size());
  std::vector<float> logits(logit_rows.size() * vocab);
  model->Forward({ids, positions, chunks, logit_rows}, pool->view(), logits);
  size_t row = 0;
  for (const auto& [sequence, rows] : work) {
    for (int i = 0; i < rows; ++i, ++row) {
      sequence->logits.emplace_back(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
    }
    sequence->num_computed += rows;
  }
}

// Positions of one sequence in chunks of `chunk`; calls `visit` with each wanted position's logits, then drops them.
inline void Prefill(ModelRunner* model, TestKvPool* pool, const std::vector<int32_t>& ids, int chunk,
                    const std::function<bool(int position)>& wanted,
                    const std::function<void(int position, std::span<const float> logits)>& visit) {
  TestSequence sequence{.token_ids = ids};
  const size_t vocab = static_cast<size_t>(model->vocab_size());
  const int n = static_cast<int>(ids.size());
  while (static_cast<int>(sequence.block_table.size()) * pool->view().layout.block_size < n) {
    sequence.block_table.push_back(pool->Take());
  }
  for (int begin = 0; begin < n; begin += chunk) {
    const int rows = std::min(chunk, n - begin);
    std::vector<int32_t> positions, logit_rows;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(begin + i);
      if (wanted(begin + i)) logit_rows.push_back(i);
    }
    const kernels::SequenceChunk chunks[] = {{0, rows, begin, sequence.block_table}};
    std::vector<float> logits(logit_rows.size() * vocab);
    model->Forward({std::span(ids).subspan(begin, rows), positions, chunks, logit_rows}, pool->view(), logits);
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      visit(begin + logit_rows[i], std::span(logits).subspan(i * vocab, vocab));
    }
  }
}

// A model together with what it borrows.
struct TestModel {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<Transformer> transformer;
};

inline absl::StatusOr<TestModel> LoadTestModel(const GgufFile& file, const kernels::Backend::Options& options,
                                               int max_batch_rows = 64) {
  TestModel model;
  auto backend = kernels::Backend::CreateCpu(options);
  if (!backend.ok()) return backend.status();
  model.backend = *std::move(backend);
  auto transformer = Transformer::Load(file, model.backend.get(), {.max_batch_rows = max_batch_rows});
  if (!transformer.ok()) return transformer.status();
  model.transformer = *std::move(transformer);
  return model;
}

// Where scripts/setup puts the models.
inline std::string ModelPath(absl::string_view file_name) {
  const char* cache = std::getenv("BATON_CACHE");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : absl::StrCat(home == nullptr ? "" : home, "/.cache/baton");
  return absl::StrCat(base, "/models/", file_name);
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_MODEL_RUNNER_UTIL_H_
