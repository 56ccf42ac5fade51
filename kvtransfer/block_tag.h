// Keyed tags over blocks: AES-256-GMAC. A checksum stops corruption; a tag also stops who can alter bytes on the way but
// does not have the cluster key. It hides nothing.
//
// The key is HMAC-SHA-256(cluster key, domain, transfer id, ticket's MAC), so it is new for each ticket; the nonce is the
// block's index and generation, which one export uses for one content only. Repeated tags of the same block are equal.
//
// Thread contract: one thread at a time.
#ifndef BATON_KVTRANSFER_BLOCK_TAG_H_
#define BATON_KVTRANSFER_BLOCK_TAG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "kvtransfer/ticket.h"

struct evp_cipher_ctx_st;

namespace baton::kvtransfer {

inline constexpr size_t kBlockTagBytes = 16;

class BlockTagger {
 public:
  BlockTagger(const ClusterKey& key, const v1::Ticket& ticket);
  ~BlockTagger();
  BlockTagger(const BlockTagger&) = delete;
  BlockTagger& operator=(const BlockTagger&) = delete;

  // One block's tag, from its bytes in order. Movable; does not need the tagger any more.
  class Stream {
   public:
    Stream(Stream&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
    Stream& operator=(Stream&&) = delete;
    ~Stream();
    void Add(std::span<const std::byte> bytes);
    std::string Take();  // kBlockTagBytes bytes; once

   private:
    friend class BlockTagger;
    explicit Stream(evp_cipher_ctx_st* context) : context_(context) {}
    evp_cipher_ctx_st* context_;
  };
  Stream Begin(uint32_t block_idx, uint64_t generation) const;
  // The same in one.
  std::string Tag(uint32_t block_idx, uint64_t generation, std::span<const std::byte> bytes) const;
  // Of a transfer's last message, of which there can be several contents: HMAC-SHA-256 under the same key, 32 bytes.
  std::string TagEnd(absl::string_view canonical) const;

 private:
  std::array<unsigned char, 32> key_;
  evp_cipher_ctx_st* context_;
};

// Takes the same time wherever the difference is.
bool TagsEqual(absl::string_view a, absl::string_view b);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_BLOCK_TAG_H_
