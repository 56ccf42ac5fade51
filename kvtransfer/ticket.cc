#include "kvtransfer/ticket.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::kvtransfer {
namespace {

constexpr size_t kMacBytes = 32;
constexpr size_t kMaxKeyBytes = 4096;

void RandomBytes(void* out, size_t size) {
  auto* p = static_cast<unsigned char*>(out);
  while (size > 0) {
    const ssize_t n = getrandom(p, size, 0);
    if (n < 0) {
      // Ids that are not random would be a security hole, and the call cannot fail on a supported kernel.
      if (errno != EINTR) std::abort();
      continue;
    }
    p += n;
    size -= static_cast<size_t>(n);
  }
}

// Each field as its length and its bytes, so that no two different tickets encode alike.
class Encoder {
 public:
  void Bytes(absl::string_view bytes) {
    Little(bytes.size());
    out_.append(bytes.data(), bytes.size());
  }
  void Number(uint64_t value) {
    Little(sizeof(value));
    Little(value);
  }
  std::string Take() { return std::move(out_); }

 private:
  void Little(uint64_t value) {
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string out_;
};

void EncodeEndpoint(const v1::Endpoint& endpoint, Encoder* e) {
  e->Bytes(endpoint.worker_name());
  e->Bytes(endpoint.incarnation());
  e->Bytes(endpoint.transport());
  e->Bytes(endpoint.address());
  e->Bytes(endpoint.locality());
}

std::string Mac(const ClusterKey& key, const v1::Ticket& ticket) {
  const std::string message = CanonicalEncoding(ticket);
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), mac, &size) == nullptr ||
      size != kMacBytes) {
    std::abort();  // only out of memory; an unsigned ticket must never leave
  }
  return std::string(reinterpret_cast<char*>(mac), size);
}

template <typename T>
absl::Status Differ(absl::string_view what, const T& prefill, const T& decode) {
  if (prefill == decode) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, ": prefill ", prefill, ", decode ", decode,
                                                    "; pair workers that were started with the same model and settings"));
}

// Hashes are long; their first digits are enough to tell them apart.
absl::Status DifferHash(absl::string_view what, const std::string& prefill, const std::string& decode) {
  if (prefill == decode) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": prefill ", absl::CEscape(prefill.substr(0, 12)), ", decode ",
                   absl::CEscape(decode.substr(0, 12)), "; pair workers that serve the same model file"));
}

bool Oversized(const v1::Endpoint& endpoint) {
  return endpoint.worker_name().size() > 256 || endpoint.transport().size() > 32 || endpoint.address().size() > 4096 ||
         endpoint.locality().size() > 256;
}

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("ticket: ", what)); }

}  // namespace

absl::StatusOr<ClusterKey> ClusterKey::FromBytes(absl::string_view bytes) {
  if (bytes.size() < kMinBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster key has ", bytes.size(), " bytes, at least ", kMinBytes,
                                                   " are needed; make one with: head -c 32 /dev/urandom"));
  }
  return ClusterKey(std::string(bytes.data(), bytes.size()));
}

absl::StatusOr<ClusterKey> ClusterKey::FromFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read the cluster key file ", path));
  std::string bytes(kMaxKeyBytes + 1, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (in.bad()) return absl::NotFoundError(absl::StrCat("cannot read the cluster key file ", path));
  bytes.resize(static_cast<size_t>(in.gcount()));
  if (bytes.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than a cluster key may be (4096 bytes)"));
  }
  absl::StatusOr<ClusterKey> key = FromBytes(bytes);
  if (!key.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", key.status().message()));
  return key;
}

ClusterKey ClusterKey::Random() {
  std::string bytes(kMinBytes, '\0');
  RandomBytes(bytes.data(), bytes.size());
  return ClusterKey(std::move(bytes));
}

TransferId TransferId::Random() {
  TransferId id;
  RandomBytes(&id.high, sizeof(id.high));
  RandomBytes(&id.low, sizeof(id.low));
  return id;
}

std::string TransferId::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

std::string RandomIncarnation() { return TransferId::Random().ToString(); }

uint64_t BlockChecksum(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());  // AVX2 or AVX-512 where there is one: the same value
#else
  return XXH3_64bits(bytes.data(), bytes.size());
#endif
}

v1::KvLayout LayoutToProto(const kernels::KvLayout& layout) {
  v1::KvLayout out;
  switch (layout.dtype) {
    case kernels::DType::kF32:
      out.set_dtype("f32");
      break;
    case kernels::DType::kF16:
      out.set_dtype("f16");
      break;
    case kernels::DType::kBF16:
      out.set_dtype("bf16");
      break;
    default:
      break;  // not a KV type; LayoutFromProto refuses the empty name
  }
  out.set_block_size(static_cast<uint32_t>(layout.block_size));
  out.set_num_layers(static_cast<uint32_t>(layout.num_layers));
  out.set_num_kv_heads(static_cast<uint32_t>(layout.num_kv_heads));
  out.set_head_dim(static_cast<uint32_t>(layout.head_dim));
  out.set_version(kernels::KvLayout::kVersion);
  return out;
}

absl::StatusOr<kernels::KvLayout> LayoutFromProto(const v1::KvLayout& layout) {
  kernels::KvLayout out;
  if (layout.dtype() == "f32") {
    out.dtype = kernels::DType::kF32;
  } else if (layout.dtype() == "f16") {
    out.dtype = kernels::DType::kF16;
  } else if (layout.dtype() == "bf16") {
    out.dtype = kernels::DType::kBF16;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("kv dtype \"", absl::CEscape(layout.dtype().substr(0, 16)), "\" is not f32, f16 or bf16"));
  }
  const struct {
    const char* name;
    uint32_t value;
    uint32_t max;
  } fields[] = {{"block_size", layout.block_size(), 1024},
                {"num_layers", layout.num_layers(), 4096},
                {"num_kv_heads", layout.num_kv_heads(), 4096},
                {"head_dim", layout.head_dim(), 8192}};
  // The product of the bounds and 2 * 4 bytes is 2^10+12+12+13+3 = 2^50: no size computed from them overflows.
  for (const auto& field : fields) {
    if (field.value < 1 || field.value > field.max) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv ", field.name, " is ", field.value, ", not in [1, ", field.max, "]"));
    }
  }
  if (layout.version() != static_cast<uint32_t>(kernels::KvLayout::kVersion)) {
    return absl::InvalidArgumentError(absl::StrCat("kv layout version is ", layout.version(), ", this build knows ",
                                                   kernels::KvLayout::kVersion));
  }
  out.block_size = static_cast<int>(layout.block_size());
  out.num_layers = static_cast<int>(layout.num_layers());
  out.num_kv_heads = static_cast<int>(layout.num_kv_heads());
  out.head_dim = static_cast<int>(layout.head_dim());
  return out;
}

absl::Status CompareLayouts(const v1::KvLayout& prefill, const v1::KvLayout& decode) {
  absl::Status s = Differ("kv dtype", prefill.dtype(), decode.dtype());
  s.Update(Differ("kv block_size", prefill.block_size(), decode.block_size()));
  s.Update(Differ("kv num_layers", prefill.num_layers(), decode.num_layers()));
  s.Update(Differ("kv num_kv_heads", prefill.num_kv_heads(), decode.num_kv_heads()));
  s.Update(Differ("kv head_dim", prefill.head_dim(), decode.head_dim()));
  s.Update(Differ("kv layout version", prefill.version(), decode.version()));
  return s;
}

absl::Status CompareFingerprints(const v1::ModelFingerprint& prefill, const v1::ModelFingerprint& decode) {
  absl::Status s = DifferHash("model weights", prefill.weights(), decode.weights());
  s.Update(DifferHash("model config", prefill.config(), decode.config()));
  s.Update(DifferHash("model tokenizer", prefill.tokenizer(), decode.tokenizer()));
  s.Update(Differ("numerics class", prefill.numerics_class(), decode.numerics_class()));
  return s;
}

std::string CanonicalEncoding(const v1::Ticket& ticket) {
  Encoder e;
  e.Bytes("baton ticket 2");  // domain: this key signs nothing else that could be taken for a ticket
  e.Bytes(ticket.request_id());
  e.Number(ticket.epoch());
  e.Number(ticket.transfer_id_high());
  e.Number(ticket.transfer_id_low());
  EncodeEndpoint(ticket.endpoint(), &e);
  e.Bytes(ticket.layout().dtype());
  e.Number(ticket.layout().block_size());
  e.Number(ticket.layout().num_layers());
  e.Number(ticket.layout().num_kv_heads());
  e.Number(ticket.layout().head_dim());
  e.Number(ticket.layout().version());
  e.Bytes(ticket.fingerprint().weights());
  e.Bytes(ticket.fingerprint().config());
  e.Bytes(ticket.fingerprint().tokenizer());
  e.Bytes(ticket.fingerprint().numerics_class());
  e.Number(ticket.num_tokens());
  e.Number(static_cast<uint64_t>(ticket.blocks_size()));
  for (const v1::BlockSlot& block : ticket.blocks()) {
    e.Number(block.block_id());
    e.Number(block.generation());
  }
  e.Number(ticket.lease_ms());
  e.Number(static_cast<uint64_t>(ticket.fallbacks_size()));
  for (const v1::Endpoint& endpoint : ticket.fallbacks()) EncodeEndpoint(endpoint, &e);
  e.Number(ticket.num_consumers());
  e.Number(ticket.block_tags());
  return e.Take();
}

void SignTicket(const ClusterKey& key, v1::Ticket* ticket) { ticket->set_mac(Mac(key, *ticket)); }

absl::Status VerifyMac(const ClusterKey& key, const v1::Ticket& ticket) {
  const std::string expected = Mac(key, ticket);
  if (ticket.mac().size() != expected.size() ||
      CRYPTO_memcmp(ticket.mac().data(), expected.data(), expected.size()) != 0) {
    return absl::PermissionDeniedError(
        "ticket: its MAC is wrong; it was altered on the way or signed by another cluster's key "
        "(compare cluster_key_file of the workers)");
  }
  return absl::OkStatus();
}

absl::Status CheckTicketShape(const v1::Ticket& ticket) {
  if (ticket.request_id().empty() || ticket.request_id().size() > kMaxRequestIdBytes) {
    return Bad(absl::StrCat("request_id has ", ticket.request_id().size(), " bytes, not 1 to ", kMaxRequestIdBytes));
  }
  if (ticket.transfer_id_high() == 0 && ticket.transfer_id_low() == 0) return Bad("no transfer id");
  if (ticket.endpoint().incarnation().size() != 32) return Bad("the endpoint's incarnation is not 32 hex digits");
  if (ticket.fallbacks_size() > kMaxFallbacks) return Bad(absl::StrCat("names ", ticket.fallbacks_size(), " fallbacks"));
  if (Oversized(ticket.endpoint()) || std::any_of(ticket.fallbacks().begin(), ticket.fallbacks().end(), Oversized)) {
    return Bad("the endpoint is oversized");
  }
  for (const v1::Endpoint& e : ticket.fallbacks()) {
    if (e.worker_name() != ticket.endpoint().worker_name() || e.incarnation() != ticket.endpoint().incarnation()) {
      return Bad("a fallback endpoint is another worker's");
    }
  }
  if (ticket.num_consumers() < 1 || ticket.num_consumers() > kMaxConsumers) {
    return Bad(absl::StrCat("num_consumers is ", ticket.num_consumers(), ", not in [1, ", kMaxConsumers, "]"));
  }
  if (ticket.mac().size() != kMacBytes) return Bad(absl::StrCat("the MAC has ", ticket.mac().size(), " bytes, not 32"));
  if (ticket.lease_ms() < 1 || ticket.lease_ms() > kMaxLeaseMs) {
    return Bad(absl::StrCat("lease_ms is ", ticket.lease_ms(), ", not in [1, ", kMaxLeaseMs, "]"));
  }
  absl::StatusOr<kernels::KvLayout> layout = LayoutFromProto(ticket.layout());
  if (!layout.ok()) return Bad(layout.status().message());
  if (ticket.num_tokens() < 1) return Bad("num_tokens is 0");
  const uint64_t block_size = ticket.layout().block_size();
  const uint64_t needed = (ticket.num_tokens() + block_size - 1) / block_size;
  if (needed > static_cast<uint64_t>(kMaxTicketBlocks)) {
    return Bad(absl::StrCat("num_tokens ", ticket.num_tokens(), " needs more than ", kMaxTicketBlocks, " blocks"));
  }
  if (static_cast<uint64_t>(ticket.blocks_size()) != needed) {
    return Bad(absl::StrCat("names ", ticket.blocks_size(), " blocks, but ", ticket.num_tokens(), " tokens at ",
                            block_size, " a block are ", needed));
  }
  return absl::OkStatus();
}

const v1::Endpoint* EndpointFor(const v1::Ticket& ticket, absl::string_view transport) {
  if (transport == ticket.endpoint().transport()) return &ticket.endpoint();
  for (const v1::Endpoint& e : ticket.fallbacks()) {
    if (transport == e.transport()) return &e;
  }
  return nullptr;
}

absl::Duration HeartbeatInterval(const v1::Ticket& ticket) {
  return std::clamp(Lease(ticket) / 3, absl::Milliseconds(10), SilenceLimit(ticket) / 5);
}

// Whatever the lease: a stream waits for the KV meanwhile. Words come from the transport's own threads, however long the
// engine computes.
absl::Duration SilenceLimit(const v1::Ticket&) { return absl::Milliseconds(1500); }

absl::Status CheckTicketForFetch(const ClusterKey& key, const v1::Ticket& ticket, const kernels::KvLayout& layout,
                                 const v1::ModelFingerprint& fingerprint) {
  absl::Status s = CheckTicketShape(ticket);
  if (s.ok()) s = VerifyMac(key, ticket);
  if (s.ok()) s = CompareLayouts(ticket.layout(), LayoutToProto(layout));
  if (s.ok()) s = CompareFingerprints(ticket.fingerprint(), fingerprint);
  return s;
}

}  // namespace baton::kvtransfer
