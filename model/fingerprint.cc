#include "model/fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::model {
namespace {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;
// Tensors are hashed in pieces of this size, so that one huge embedding does not leave the other threads idle.
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    ok_ = context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }

  void Update(const void* data, size_t size) { ok_ = ok_ && EVP_DigestUpdate(context_.get(), data, size) == 1; }
  void Update(absl::string_view text) { Update(text.data(), text.size()); }
  // Length first, so that ("ab", "c") and ("a", "bc") differ.
  void UpdateField(absl::string_view text) {
    UpdateNumber(text.size());
    Update(text);
  }
  void UpdateNumber(uint64_t n) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(n >> (8 * i));
    Update(bytes, sizeof(bytes));
  }
  // Empty when OpenSSL failed (out of memory, or a build without SHA-256).
  std::string Finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    ok_ = ok_ && EVP_DigestFinal_ex(context_.get(), digest, &size) == 1;
    return ok_ ? std::string(reinterpret_cast<const char*>(digest), size) : std::string();
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
  bool ok_ = false;
};

absl::StatusOr<std::string> Digest(Sha256* sha) {
  std::string digest = sha->Finish();
  if (digest.empty()) return absl::InternalError("OpenSSL could not compute SHA-256; check the system's libcrypto");
  return digest;
}

struct Piece {
  const GgufTensor* tensor = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;
  absl::StatusOr<std::string> digest = std::string();
};

absl::StatusOr<std::string> HashPiece(const GgufFile& file, const Piece& piece, std::vector<std::byte>* buffer) {
  Sha256 sha;
  for (uint64_t done = 0; done < piece.size;) {
    const std::span<std::byte> part(buffer->data(), std::min(kReadBytes, piece.size - done));
    if (absl::Status s = file.ReadTensor(*piece.tensor, piece.offset + done, part); !s.ok()) return s;
    sha.Update(part.data(), part.size());
    done += part.size();
  }
  return Digest(&sha);
}

absl::StatusOr<std::string> HashWeights(const GgufFile& file) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  std::vector<Piece> pieces;
  for (const GgufTensor* tensor : tensors) {
    for (uint64_t offset = 0; offset < tensor->num_bytes; offset += kPieceBytes) {
      pieces.push_back({tensor, offset, std::min(kPieceBytes, tensor->num_bytes - offset)});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    std::vector<std::byte> buffer(kReadBytes);
    for (size_t i = next.fetch_add(1); i < pieces.size(); i = next.fetch_add(1)) {
      pieces[i].digest = HashPiece(file, pieces[i], &buffer);
    }
  };
  std::vector<std::thread> threads(std::clamp(std::thread::hardware_concurrency(), 1u, 8u) - 1);
  for (std::thread& thread : threads) thread = std::thread(work);
  work();
  for (std::thread& thread : threads) thread.join();

  Sha256 all;
  const GgufTensor* last = nullptr;
  for (Piece& piece : pieces) {
    if (!piece.digest.ok()) return piece.digest.status();
    if (piece.tensor != last) {
      all.UpdateField(piece.tensor->name);
      all.UpdateField(kernels::Name(piece.tensor->dtype));
      all.UpdateNumber(piece.tensor->dims.size());
      for (int64_t dim : piece.tensor->dims) all.UpdateNumber(static_cast<uint64_t>(dim));
      last = piece.tensor;
    }
    all.UpdateField(*piece.digest);
  }
  return Digest(&all);
}

void HashValue(const GgufValue& value, Sha256* sha) {
  sha->UpdateNumber(static_cast<uint64_t>(value.type));
  struct Visitor {
    Sha256* sha;
    void operator()(uint64_t n) const { sha->UpdateNumber(n); }
    void operator()(int64_t n) const { sha->UpdateNumber(static_cast<uint64_t>(n)); }
    void operator()(double d) const { sha->Update(&d, sizeof(d)); }
    void operator()(bool b) const { sha->UpdateNumber(b); }
    void operator()(absl::string_view s) const { sha->UpdateField(s); }
    void operator()(const GgufArray& array) const {
      sha->UpdateNumber(static_cast<uint64_t>(array.type));
      sha->UpdateNumber(array.size);
      sha->UpdateField(array.bytes);
      for (absl::string_view s : array.strings) sha->UpdateField(s);
    }
  };
  std::visit(Visitor{sha}, value.value);
}

absl::StatusOr<std::string> HashTokenizer(const GgufFile& file) {
  std::vector<const GgufMetadata*> entries;
  for (const GgufMetadata& entry : file.metadata()) {
    if (absl::StartsWith(entry.key, "tokenizer.")) entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  Sha256 sha;
  for (const GgufMetadata* entry : entries) {
    sha.UpdateField(entry->key);
    HashValue(entry->value, &sha);
  }
  return Digest(&sha);
}

}  // namespace

absl::StatusOr<std::string> TokenizerFingerprint(const GgufFile& file) {
  auto digest = HashTokenizer(file);
  if (!digest.ok()) return digest.status();
  return absl::BytesToHexString(*digest);
}

absl::StatusOr<Fingerprint> ComputeFingerprint(const GgufFile& file, const ModelConfig& config,
                                               kernels::NumericsClass numerics) {
  auto weights = HashWeights(file);
  if (!weights.ok()) return weights.status();
  auto tokenizer = HashTokenizer(file);
  if (!tokenizer.ok()) return tokenizer.status();
  Sha256 text;
  text.Update(CanonicalText(config));
  auto config_digest = Digest(&text);
  if (!config_digest.ok()) return config_digest.status();
  if (absl::Status unchanged = file.CheckUnchanged(); !unchanged.ok()) return unchanged;
  return Fingerprint{.weights = absl::BytesToHexString(*weights),
                     .config = absl::BytesToHexString(*config_digest),
                     .tokenizer = absl::BytesToHexString(*tokenizer),
                     .numerics_class = std::string(kernels::Name(numerics))};
}

}  // namespace baton::model
