// Names of token prefixes: a chain of SHA-256 over full blocks of token ids, rooted in the tenant.
//
// Shared by the prefix index (which block holds this prefix?) and by the router (which worker has seen this prefix?), so
// that both compute equal names. The tenant is part of the root: two tenants never name the same prefix equally, and a
// name tells nothing about the tokens to who does not know them.
//
// Thread contract: pure functions.
#ifndef BATON_KVCACHE_PREFIX_HASH_H_
#define BATON_KVCACHE_PREFIX_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::kvcache {

struct PrefixHash {
  std::array<uint8_t, 32> bytes{};
  bool operator==(const PrefixHash&) const = default;
  uint64_t Low64() const {
    uint64_t v;
    std::memcpy(&v, bytes.data(), sizeof(v));
    return v;
  }
};

// For unordered containers: the name is uniformly distributed already.
struct PrefixHashHasher {
  size_t operator()(const PrefixHash& hash) const { return hash.Low64(); }
};

// The name of the empty prefix of `tenant` with blocks of `block_size` tokens.
PrefixHash RootPrefixHash(absl::string_view tenant, int block_size);

// The name of a prefix extended by one full block.
PrefixHash ExtendPrefixHash(const PrefixHash& parent, std::span<const int32_t> block_tokens);

// The names of all prefixes of `token_ids` that end at a full block, shortest first; at most `max_blocks` of them.
std::vector<PrefixHash> PrefixHashes(absl::string_view tenant, std::span<const int32_t> token_ids, int block_size,
                                     size_t max_blocks);

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_PREFIX_HASH_H_
