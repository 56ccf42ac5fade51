#include "tests/fakes/hash_model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace baton::fakes {
namespace {

[[noreturn]] void Die(const char* what, int64_t a, int64_t b) {
  std::fprintf(stderr, "hash_model: %s (%lld, %lld)\n", what, static_cast<long long>(a), static_cast<long long>(b));
  std::abort();
}

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

kernels::KvLayout HashModel::KvLayoutFor(kernels::DType dtype, int block_size) const {
  return {dtype, block_size, options_.num_layers, options_.num_kv_heads, options_.head_dim};
}

void HashModel::CheckBatch(const model::ForwardBatch& batch, const kernels::KvView& kv) const {
  if (batch.positions.size() != batch.token_ids.size()) Die("positions and tokens differ", batch.positions.size(), 0);
  const int block_size = kv.layout.block_size;
  int row = 0;
  std::map<int32_t, int> readers;  // block: chunks whose table has it
  std::set<int32_t> written;
  for (const kernels::SequenceChunk& chunk : batch.chunks) {
    if (chunk.row_begin != row || chunk.num_rows < 1) Die("chunk rows do not follow", chunk.row_begin, row);
    row += chunk.num_rows;
    const int end = chunk.context_len + chunk.num_rows;
    if (end > options_.max_context) Die("position beyond the context", end, options_.max_context);
    const int used = (end + block_size - 1) / block_size;
    if (used > static_cast<int>(chunk.block_table.size())) Die("block table too short", chunk.block_table.size(), end);
    for (int i = 0; i < used; ++i) {
      const int32_t block = chunk.block_table[i];
      if (block < 0 || (options_.num_blocks > 0 && block >= options_.num_blocks)) Die("no such block", block, i);
      ++readers[block];
      if ((i + 1) * block_size > chunk.context_len && !written.insert(block).second) Die("written twice", block, i);
    }
  }
  if (row != static_cast<int>(batch.token_ids.size())) Die("chunks do not cover the rows", row, batch.token_ids.size());
  for (int32_t block : written) {
    if (readers[block] != 1) Die("a shared block is written", block, readers[block]);
  }
  int last = -1;
  for (int32_t r : batch.logit_rows) {
    if (r <= last || r >= row) Die("logit row out of order or range", r, row);
    last = r;
  }
}

void HashModel::WriteKv(int layer, int32_t token, int position, uint64_t below, std::span<const int32_t> table,
                        const kernels::KvView& kv) const {
  std::byte* block = kv.block(table[position / kv.layout.block_size]);
  const size_t bytes = kv.layout.element_bytes() * kv.layout.head_dim;
  uint64_t state = Mix(Mix(Mix(below ^ static_cast<uint64_t>(token)) ^ position) ^ layer);
  for (bool is_value : {false, true}) {
    for (int head = 0; head < kv.layout.num_kv_heads; ++head) {
      std::byte* slot = block + kv.layout.offset(layer, is_value, head) + (position % kv.layout.block_size) * bytes;
      for (size_t i = 0; i < bytes; i += sizeof(state)) {
        state = Mix(state);
        std::memcpy(slot + i, &state, std::min(sizeof(state), bytes - i));
      }
    }
  }
}

uint64_t HashModel::FoldPosition(uint64_t digest, int layer, int position, std::span<const int32_t> table,
                                 const kernels::KvView& kv) const {
  const std::byte* block = kv.block(table[position / kv.layout.block_size]);
  const size_t bytes = kv.layout.element_bytes() * kv.layout.head_dim;
  for (bool is_value : {false, true}) {
    for (int head = 0; head < kv.layout.num_kv_heads; ++head) {
      const std::byte* slot =
          block + kv.layout.offset(layer, is_value, head) + (position % kv.layout.block_size) * bytes;
      for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, slot + i, std::min(sizeof(word), bytes - i));
        digest = Mix(digest ^ word);
      }
    }
  }
  return digest;
}

void HashModel::Forward(const model::ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) {
  CheckBatch(batch, kv);
  ++num_steps_;
  num_rows_ += static_cast<int64_t>(batch.token_ids.size());
  max_rows_ = std::max(max_rows_.load(), static_cast<int>(batch.token_ids.size()));
  size_t next_logit = 0;
  for (const kernels::SequenceChunk& chunk : batch.chunks) {
    // Digest of each layer over the positions so far, read from the blocks.
    std::vector<uint64_t> digests(options_.num_layers, 0);
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      for (int p = 0; p < chunk.context_len; ++p) {
        digests[layer] = FoldPosition(digests[layer], layer, p, chunk.block_table, kv);
      }
    }
    for (int i = 0; i < chunk.num_rows; ++i) {
      const int row = chunk.row_begin + i;
      const int position = batch.positions[row];
      const int32_t token = batch.token_ids[row];
      if (position != chunk.context_len + i) Die("position is not the chunk's", position, chunk.context_len + i);
      if (token < 0 || token >= options_.vocab_size) Die("token out of the vocabulary", token, row);
      uint64_t below = 0;
      for (int layer = 0; layer < options_.num_layers; ++layer) {
        WriteKv(layer, token, position, below, chunk.block_table, kv);
        digests[layer] = FoldPosition(digests[layer], layer, position, chunk.block_table, kv);
        below = digests[layer];
      }
      if (next_logit >= batch.logit_rows.size() || batch.logit_rows[next_logit] != row) continue;
      float* out = logits.data() + next_logit++ * options_.vocab_size;
      uint64_t state = 0;
      for (uint64_t digest : digests) state = Mix(state ^ digest);
      for (int id = 0; id < options_.vocab_size; ++id) {
        state = Mix(state);
        // In [-4, 4), in steps that make ties possible.
        out[id] = static_cast<float>(static_cast<int64_t>(state % 1024) - 512) / 128.0f;
      }
      if (options_.nan_position == position) out[state % options_.vocab_size] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

}  // namespace baton::fakes
