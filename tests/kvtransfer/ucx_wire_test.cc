#include "kvtransfer/ucx_wire.h"

#include <gtest/gtest.h>

#include <random>

namespace baton::kvtransfer {
namespace {

const TransferId kId{0x0123456789abcdef, 0xfedcba9876543210};

v1::BlockSeal Seal(uint32_t block_idx, uint64_t generation, uint64_t checksum, const std::string& tag) {
  v1::BlockSeal seal;
  seal.set_block_idx(block_idx);
  seal.set_generation(generation);
  seal.set_checksum(checksum);
  seal.set_tag(tag);
  return seal;
}

TEST(UcxWireTest, RoundTrips) {
  std::string m = EncodeBlock({kId, 3ull << 33, Seal(7, 1ull << 40, 0xdeadbeefcafef00d, "0123456789abcdef")});
  auto block = DecodeBlock(m.data(), m.size());
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->id, kId);
  EXPECT_EQ(block->offset, 3ull << 33);
  EXPECT_EQ(block->seal.block_idx(), 7u);
  EXPECT_EQ(block->seal.generation(), 1ull << 40);
  EXPECT_EQ(block->seal.checksum(), 0xdeadbeefcafef00d);
  EXPECT_EQ(block->seal.tag(), "0123456789abcdef");
  m = EncodeEnd(kId);
  EXPECT_EQ(DecodeEnd(m.data(), m.size()), kId);
  m = EncodeBeat(kId);
  EXPECT_EQ(DecodeBeat(m.data(), m.size()), kId);
  m = EncodeStop(kId);
  EXPECT_EQ(DecodeStop(m.data(), m.size()), kId);
  m = EncodeFetch();
  EXPECT_TRUE(DecodeFetch(m.data(), m.size()));
}

TEST(UcxWireTest, EveryTruncationAndExtensionIsRefused) {
  for (const std::string& full : {EncodeFetch(), EncodeStop(kId), EncodeBlock({kId, 0, Seal(1, 2, 3, "")}),
                                  EncodeEnd(kId), EncodeBeat(kId)}) {
    for (size_t size = 0; size <= full.size() + 8; ++size) {
      std::string m = full;
      m.resize(size);
      const int accepted = DecodeFetch(m.data(), size) + DecodeStop(m.data(), size).has_value() +
                           DecodeBlock(m.data(), size).has_value() + DecodeEnd(m.data(), size).has_value() +
                           DecodeBeat(m.data(), size).has_value();
      EXPECT_EQ(accepted, size == full.size() ? 1 : 0) << size << " of " << full.size();
    }
  }
}

TEST(UcxWireTest, WrongMagicVersionAndKindAreRefused) {
  for (size_t i = 0; i < 8; ++i) {
    std::string m = EncodeStop(kId);
    m[i] ^= 0x40;
    EXPECT_FALSE(DecodeStop(m.data(), m.size()).has_value()) << i;
  }
}

TEST(UcxWireTest, RandomBytesNeverCrash) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    std::string m(random() % 64, '\0');
    for (char& c : m) c = static_cast<char>(random());
    if (m.size() >= 8 && i % 2 == 0) m.replace(0, 6, EncodeFetch(), 0, 6);
    DecodeFetch(m.data(), m.size());
    DecodeStop(m.data(), m.size());
    DecodeBlock(m.data(), m.size());
    DecodeEnd(m.data(), m.size());
    DecodeBeat(m.data(), m.size());
  }
}

}  // namespace
}  // namespace baton::kvtransfer
