// Byte-pair merging over one piece of text: repeatedly joins the best adjacent pair, in time n log n.
#ifndef BATON_MODEL_TOKENIZER_MERGE_QUEUE_H_
#define BATON_MODEL_TOKENIZER_MERGE_QUEUE_H_

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace baton::model {

// One symbol of a doubly linked list laid out in a vector. A symbol that was merged into its left neighbour has size 0.
struct Symbol {
  int32_t begin;  // bytes of the piece
  int32_t size;
  int32_t prev;  // -1: none
  int32_t next;
  int32_t token_id;
  bool frozen;  // takes part in no merge
};

struct MergeResult {
  double cost;  // lower merges first; equal costs from the left
  int32_t token_id;
};

// `find(left, right)` says what two adjacent symbols make: std::optional<MergeResult>. It must depend on the two
// symbols alone. Afterwards the symbols of non-zero size are the result, in order.
template <typename Find>
void MergeSymbols(std::vector<Symbol>* symbols, const Find& find) {
  struct Candidate {
    double cost;
    int32_t left;
    int32_t right;
    int32_t size;  // of both together when queued; a different size since then means that one of them changed
    int32_t token_id;
    bool operator<(const Candidate& other) const {  // std::priority_queue gives the largest first
      return cost != other.cost ? cost > other.cost : left > other.left;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol& a = (*symbols)[left];
    const Symbol& b = (*symbols)[right];
    if (a.frozen || b.frozen) return;
    if (const std::optional<MergeResult> merge = find(a, b)) {
      queue.push({merge->cost, left, right, a.size + b.size, merge->token_id});
    }
  };
  for (int32_t i = 1; i < static_cast<int32_t>(symbols->size()); ++i) consider(i - 1, i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& a = (*symbols)[best.left];
    Symbol& b = (*symbols)[best.right];
    if (a.size == 0 || b.size == 0 || a.size + b.size != best.size) continue;
    a.size = best.size;
    a.token_id = best.token_id;
    a.next = b.next;
    if (b.next >= 0) (*symbols)[b.next].prev = best.left;
    b.size = 0;
    consider(a.prev, best.left);
    consider(best.left, a.next);
  }
}

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_MERGE_QUEUE_H_
