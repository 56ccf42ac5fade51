// Which passes are kept as graphs, and for how many rows they are made.
//
// Thread contract: one thread at a time.
#ifndef BATON_KERNELS_CUDA_GRAPH_CACHE_H_
#define BATON_KERNELS_CUDA_GRAPH_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/kv_view.h"

namespace baton::kernels::cuda {

// Rows that a pass of so many sequences has as a graph: 1, 2, 4, 8, 16, 24, 32, 48, 64, then multiples of 32 up to
// kMaxGraphRows; beyond that `rows`, and no graph.
//
// Few rows take the time of reading the weights, and padding reads no keys, so it costs little. Products take rows by eights
// (matmul_bf16.cu) and f32 ones have kernels of 1, 2, 4 and 8 rows, so smaller steps would save nothing; from 9 on less than
// half of the rows are padding, from 17 on at most a third. With more than kMaxGraphRows the device works long enough on each
// launch for the host to be ahead of it.
inline constexpr int kMaxGraphRows = 256;
int GraphRows(int rows);

// Of two passes with equal keys all launches have equal arguments, as long as no buffer that they name is freed.
struct GraphKey {
  const void* repeats = nullptr;  // DeviceSpace::Pass's
  const std::byte* kv_base = nullptr;
  KvLayout layout;
  int rows = 0;
  int pieces = 0;  // PieceBucket
  bool operator==(const GraphKey&) const = default;
};

// The kMaxGraphs that were used last. A graph has a node for each launch, some 13 in a layer, in the driver's memory.
class GraphCache {
 public:
  // 15 buckets of rows, and contexts of four magnitudes in each.
  static constexpr size_t kMaxGraphs = 60;
  struct Entry {
    GraphKey key;
    uint64_t last_use = 0;
    std::optional<Graph> graph;  // none: the pass was met once
  };

  // Null: not met yet. Until the next call of Add or Clear.
  Entry* Find(const GraphKey& key);
  // In place of the entry that was used longest ago, if there are kMaxGraphs. The caller sees to it that no graph runs.
  void Add(const GraphKey& key);
  bool Full() const { return entries_.size() == kMaxGraphs; }
  void Clear() { entries_.clear(); }  // likewise
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GRAPH_CACHE_H_
