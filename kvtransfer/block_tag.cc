#include "kvtransfer/block_tag.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace baton::kvtransfer {
namespace {

// OpenSSL fails here only for lack of memory or by a bug of ours; an untagged block must not leave or be believed.
void Check(int ok) {
  if (ok != 1) std::abort();
}

}  // namespace

BlockTagger::BlockTagger(const ClusterKey& key, const v1::Ticket& ticket) : context_(EVP_CIPHER_CTX_new()) {
  const std::string message = absl::StrCat("baton block tag 1", TransferId::Of(ticket).ToString(), ticket.mac());
  unsigned int size = 0;
  Check(context_ != nullptr);
  Check(HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), key_.data(), &size) != nullptr);
  Check(size == key_.size());
  Check(EVP_EncryptInit_ex(context_, EVP_aes_256_gcm(), nullptr, key_.data(), nullptr));
}

BlockTagger::~BlockTagger() {
  EVP_CIPHER_CTX_free(context_);
  OPENSSL_cleanse(key_.data(), key_.size());
}

BlockTagger::Stream BlockTagger::Begin(uint32_t block_idx, uint64_t generation) const {
  unsigned char nonce[12];
  for (int i = 0; i < 4; ++i) nonce[i] = static_cast<unsigned char>(block_idx >> (8 * i));
  for (int i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(generation >> (8 * i));
  Stream stream(EVP_CIPHER_CTX_new());
  Check(stream.context_ != nullptr);
  Check(EVP_CIPHER_CTX_copy(stream.context_, context_));
  Check(EVP_EncryptInit_ex(stream.context_, nullptr, nullptr, nullptr, nonce));
  return stream;
}

BlockTagger::Stream::~Stream() { EVP_CIPHER_CTX_free(context_); }

void BlockTagger::Stream::Add(std::span<const std::byte> bytes) {
  int written = 0;
  constexpr size_t kPiece = size_t{1} << 30;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const size_t size = std::min(kPiece, bytes.size() - at);
    Check(EVP_EncryptUpdate(context_, nullptr, &written, reinterpret_cast<const unsigned char*>(bytes.data() + at),
                            static_cast<int>(size)));
  }
}

std::string BlockTagger::Stream::Take() {
  std::string tag(kBlockTagBytes, '\0');
  unsigned char none[16];
  int written = 0;
  Check(EVP_EncryptFinal_ex(context_, none, &written));
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()), tag.data()));
  return tag;
}

std::string BlockTagger::Tag(uint32_t block_idx, uint64_t generation, std::span<const std::byte> bytes) const {
  Stream stream = Begin(block_idx, generation);
  stream.Add(bytes);
  return stream.Take();
}

std::string BlockTagger::TagEnd(absl::string_view canonical) const {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  Check(HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
             reinterpret_cast<const unsigned char*>(canonical.data()), canonical.size(), mac, &size) != nullptr);
  return std::string(reinterpret_cast<char*>(mac), size);
}

bool TagsEqual(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace baton::kvtransfer
