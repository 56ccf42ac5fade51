#include "kvcache/prefix_hash.h"

#include <openssl/sha.h>

#include <algorithm>

namespace baton::kvcache {
namespace {

// Little-endian whatever the host, so that names agree between hosts.
void PutU32(std::vector<uint8_t>& out, uint32_t v) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<uint8_t>(v >> shift));
}

PrefixHash Sha256(const std::vector<uint8_t>& text) {
  PrefixHash hash;
  SHA256(text.data(), text.size(), hash.bytes.data());
  return hash;
}

}  // namespace

PrefixHash RootPrefixHash(absl::string_view tenant, int block_size) {
  constexpr char kDomain[] = "baton.prefix.v1";
  std::vector<uint8_t> text(kDomain, kDomain + sizeof(kDomain));
  PutU32(text, static_cast<uint32_t>(block_size));
  text.insert(text.end(), tenant.begin(), tenant.end());
  return Sha256(text);
}

PrefixHash ExtendPrefixHash(const PrefixHash& parent, std::span<const int32_t> block_tokens) {
  std::vector<uint8_t> text;
  text.reserve(parent.bytes.size() + 4 * block_tokens.size());
  text.assign(parent.bytes.begin(), parent.bytes.end());
  for (int32_t token : block_tokens) PutU32(text, static_cast<uint32_t>(token));
  return Sha256(text);
}

std::vector<PrefixHash> PrefixHashes(absl::string_view tenant, std::span<const int32_t> token_ids, int block_size,
                                     size_t max_blocks) {
  std::vector<PrefixHash> hashes;
  if (block_size <= 0) return hashes;
  const size_t count = std::min(max_blocks, token_ids.size() / block_size);
  hashes.reserve(count);
  PrefixHash hash = RootPrefixHash(tenant, block_size);
  for (size_t i = 0; i < count; ++i) {
    hash = ExtendPrefixHash(hash, token_ids.subspan(i * block_size, block_size));
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace baton::kvcache
