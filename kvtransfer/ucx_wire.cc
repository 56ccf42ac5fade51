#include "kvtransfer/ucx_wire.h"

#include <algorithm>

#include "kvtransfer/block_tag.h"

namespace baton::kvtransfer {
namespace {

constexpr uint32_t kMagic = 0x4e4f5442;  // "BTON"
constexpr uint16_t kVersion = 3;

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
  Writer& PutTag(absl::string_view tag) {
    out_.append(tag.data(), std::min(tag.size(), kBlockTagBytes));
    out_.append(kBlockTagBytes - std::min(tag.size(), kBlockTagBytes), '\0');
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
  std::string GetTag() {
    std::string tag(kBlockTagBytes, '\0');
    for (char& c : tag) c = static_cast<char>(Get(1));
    return tag;
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
      .Put(block.seal.block_idx(), 4)
      .Put(block.offset, 8)
      .Put(block.seal.generation(), 8)
      .Put(block.seal.checksum(), 8)
      .PutTag(block.seal.tag())
      .Take();
}

std::string EncodeEnd(TransferId id) { return Writer(UcxMessage::kEnd).Put(id).Take(); }

std::string EncodeBeat(TransferId id) { return Writer(UcxMessage::kBeat).Put(id).Take(); }

bool DecodeFetch(const void* header, size_t size) { return Reader(header, size, UcxMessage::kFetch).ok(); }

namespace {

std::optional<TransferId> DecodeId(const void* header, size_t size, UcxMessage kind) {
  Reader r(header, size, kind);
  const TransferId id = r.GetId();
  if (!r.ok()) return std::nullopt;
  return id;
}

}  // namespace

std::optional<TransferId> DecodeStop(const void* header, size_t size) {
  return DecodeId(header, size, UcxMessage::kStop);
}
std::optional<TransferId> DecodeEnd(const void* header, size_t size) {
  return DecodeId(header, size, UcxMessage::kEnd);
}
std::optional<TransferId> DecodeBeat(const void* header, size_t size) {
  return DecodeId(header, size, UcxMessage::kBeat);
}

std::optional<BlockHeader> DecodeBlock(const void* header, size_t size) {
  Reader r(header, size, UcxMessage::kBlock);
  BlockHeader block;
  block.id = r.GetId();
  block.seal.set_block_idx(static_cast<uint32_t>(r.Get(4)));
  block.offset = r.Get(8);
  block.seal.set_generation(r.Get(8));
  block.seal.set_checksum(r.Get(8));
  block.seal.set_tag(r.GetTag());
  if (!r.ok()) return std::nullopt;
  return block;
}

}  // namespace baton::kvtransfer
