#include "kernels/cuda/graph_cache.h"

#include <algorithm>
#include <utility>

namespace baton::kernels::cuda {

int GraphRows(int rows) {
  if (rows > kMaxGraphRows) return rows;
  for (const int bucket : {1, 2, 4, 8, 16, 24, 32, 48, 64}) {
    if (rows <= bucket) return bucket;
  }
  return (rows + 31) / 32 * 32;
}

GraphCache::Entry* GraphCache::Find(const GraphKey& key) {
  for (Entry& entry : entries_) {
    if (entry.key != key) continue;
    entry.last_use = ++uses_;
    return &entry;
  }
  return nullptr;
}

void GraphCache::Add(const GraphKey& key) {
  if (Full()) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                         [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
    entries_.erase(oldest);
  }
  entries_.push_back({.key = key, .last_use = ++uses_, .graph = std::nullopt});
}

}  // namespace baton::kernels::cuda
