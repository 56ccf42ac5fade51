#include "kvtransfer/ucx_wire.h"

namespace baton::kvtransfer {
namespace {

constexpr uint32_t kMagic = 0x4e4f5442;  // "BTON"
constexpr uint16_t kVersion = 1;

class Writer {
 public:
  explicit Writer(UcxMessage kind) {
    Put(kMagic, 4);
    Put(kVersion, 2);
    Put(static_cast<uint16_t>(kind), 2);
  }
  Writer& Put(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  Writer& Put(TransferId id) { return Put(id.high, 8).Put(id.low, 8); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads zeros past the end; ok() tells whether exactly everything was read.
class Reader {
 public:
  Reader(const void* data, size_t size, UcxMessage kind) : p_(static_cast<const unsigned char*>(data)), left_(size) {
    if (Get(4) != kMagic || Get(2) != kVersion || Get(2) != static_cast<uint16_t>(kind)) bad_ = true;
  }
  uint64_t Get(size_t bytes) {
    if (left_ < bytes) {
      bad_ = true;
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(p_[i]) << (8 * i);
    p_ += bytes;
    left_ -= bytes;
    return value;
  }
  TransferId GetId() {
    TransferId id;
    id.high = Get(8);
    id.low = Get(8);
    return id;
  }
  bool ok() const { return !bad_ && left_ == 0; }

 private:
  const unsigned char* p_;
  size_t left_;
  bool bad_ = false;
};

}  // namespace

std::string EncodeFetch() { return Writer(UcxMessage::kFetch).Take(); }

std::string EncodeStop(TransferId id) { return Writer(UcxMessage::kStop).Put(id).Take(); }

std::string EncodeBlock(const BlockHeader& block) {
  return Writer(UcxMessage::kBlock)
      .Put(block.id)
      .Put(block.block_idx, 4)
      .Put(block.generation, 8)
      .Put(block.checksum, 8)
      .Take();
}

std::string EncodeStatus(const StatusHeader& status) {
  return Writer(UcxMessage::kStatus)
      .Put(status.id)
      .Put(static_cast<uint32_t>(status.code), 4)
      .Put(status.num_blocks, 4)
      .Take();
}

bool DecodeFetch(const void* header, size_t size) { return Reader(header, size, UcxMessage::kFetch).ok(); }

std::optional<TransferId> DecodeStop(const void* header, size_t size) {
  Reader r(header, size, UcxMessage::kStop);
  const TransferId id = r.GetId();
  if (!r.ok()) return std::nullopt;
  return id;
}

std::optional<BlockHeader> DecodeBlock(const void* header, size_t size) {
  Reader r(header, size, UcxMessage::kBlock);
  BlockHeader block;
  block.id = r.GetId();
  block.block_idx = static_cast<uint32_t>(r.Get(4));
  block.generation = r.Get(8);
  block.checksum = r.Get(8);
  if (!r.ok()) return std::nullopt;
  return block;
}

std::optional<StatusHeader> DecodeStatus(const void* header, size_t size) {
  Reader r(header, size, UcxMessage::kStatus);
  StatusHeader status;
  status.id = r.GetId();
  const uint64_t code = r.Get(4);
  status.num_blocks = static_cast<uint32_t>(r.Get(4));
  if (!r.ok() || code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  status.code = static_cast<absl::StatusCode>(code);
  return status;
}

}  // namespace baton::kvtransfer
