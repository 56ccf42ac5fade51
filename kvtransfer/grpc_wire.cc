#include "kvtransfer/grpc_wire.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kvtransfer/transport.h"

namespace baton::kvtransfer {
namespace {

// Takes `size` bytes off the front of `parts`; false when there are not as many.
bool TakeFront(std::vector<std::span<const std::byte>>* parts, size_t size, std::string* out) {
  out->clear();
  out->reserve(size);
  size_t used = 0;
  while (size > 0 && used < parts->size()) {
    std::span<const std::byte>& part = (*parts)[used];
    const size_t n = std::min(size, part.size());
    out->append(reinterpret_cast<const char*>(part.data()), n);
    part = part.subspan(n);
    size -= n;
    if (part.empty()) ++used;
  }
  parts->erase(parts->begin(), parts->begin() + static_cast<std::ptrdiff_t>(used));
  return size == 0;
}

}  // namespace

grpc::ByteBuffer EncodeFrame(const v1::KvFrameHeader& header, const grpc::Slice* data) {
  const std::string text = header.SerializeAsString();
  std::string prefix(4, '\0');
  for (int i = 0; i < 4; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
  const grpc::Slice slices[2] = {grpc::Slice(prefix + text), data != nullptr ? *data : grpc::Slice()};
  return grpc::ByteBuffer(slices, data != nullptr ? 2 : 1);
}

std::optional<Frame> DecodeFrame(const grpc::ByteBuffer& buffer) {
  Frame frame;
  if (!buffer.Valid() || buffer.Length() > 4 + kMaxFrameHeaderBytes + kMaxFrameBytes) return std::nullopt;
  if (!buffer.Dump(&frame.slices).ok()) return std::nullopt;
  for (const grpc::Slice& slice : frame.slices) {
    if (slice.size() == 0) continue;
    frame.data.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  std::string text;
  if (!TakeFront(&frame.data, 4, &text)) return std::nullopt;
  size_t length = 0;
  for (int i = 0; i < 4; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(text[i])) << (8 * i);
  if (length > kMaxFrameHeaderBytes || !TakeFront(&frame.data, length, &text)) return std::nullopt;
  if (!frame.header.ParseFromString(text)) return std::nullopt;
  for (const std::span<const std::byte> part : frame.data) frame.data_bytes += part.size();
  if (frame.data_bytes > kMaxFrameBytes) return std::nullopt;
  return frame;
}

grpc::ByteBuffer EncodeFetchMessage(const v1::KvFetchMessage& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<v1::KvFetchMessage> DecodeFetchMessage(const grpc::ByteBuffer& buffer) {
  if (!buffer.Valid() || buffer.Length() > kMaxOpenBytes + 64) return std::nullopt;
  grpc::Slice slice;
  if (!buffer.TrySingleSlice(&slice).ok() && !buffer.DumpToSingleSlice(&slice).ok()) return std::nullopt;
  v1::KvFetchMessage message;
  if (!message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) return std::nullopt;
  return message;
}

}  // namespace baton::kvtransfer
