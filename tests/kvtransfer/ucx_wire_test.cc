#include "kvtransfer/ucx_wire.h"

#include <gtest/gtest.h>

#include <random>

namespace baton::kvtransfer {
namespace {

const TransferId kId{0x0123456789abcdef, 0xfedcba9876543210};

TEST(UcxWireTest, RoundTrips) {
  std::string m = EncodeBlock({kId, 7, 1ull << 40, 0xdeadbeefcafef00d});
  auto block = DecodeBlock(m.data(), m.size());
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->id, kId);
  EXPECT_EQ(block->block_idx, 7u);
  EXPECT_EQ(block->generation, 1ull << 40);
  EXPECT_EQ(block->checksum, 0xdeadbeefcafef00d);
  m = EncodeStatus({kId, absl::StatusCode::kDataLoss, 9});
  auto status = DecodeStatus(m.data(), m.size());
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(status->num_blocks, 9u);
  m = EncodeStop(kId);
  EXPECT_EQ(DecodeStop(m.data(), m.size()), kId);
  m = EncodeFetch();
  EXPECT_TRUE(DecodeFetch(m.data(), m.size()));
}

TEST(UcxWireTest, EveryTruncationAndExtensionIsRefused) {
  for (const std::string& full : {EncodeFetch(), EncodeStop(kId), EncodeBlock({kId, 1, 2, 3}),
                                  EncodeStatus({kId, absl::StatusCode::kOk, 1})}) {
    for (size_t size = 0; size <= full.size() + 8; ++size) {
      std::string m = full;
      m.resize(size);
      const int accepted = DecodeFetch(m.data(), size) + DecodeStop(m.data(), size).has_value() +
                           DecodeBlock(m.data(), size).has_value() + DecodeStatus(m.data(), size).has_value();
      EXPECT_EQ(accepted, size == full.size() ? 1 : 0) << size << " of " << full.size();
    }
  }
}

TEST(UcxWireTest, WrongMagicVersionKindAndCodeAreRefused) {
  for (size_t i = 0; i < 8; ++i) {
    std::string m = EncodeStop(kId);
    m[i] ^= 0x40;
    EXPECT_FALSE(DecodeStop(m.data(), m.size()).has_value()) << i;
  }
  const std::string bad = EncodeStatus({kId, static_cast<absl::StatusCode>(17), 0});
  EXPECT_FALSE(DecodeStatus(bad.data(), bad.size()).has_value());
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
    DecodeStatus(m.data(), m.size());
  }
}

}  // namespace
}  // namespace baton::kvtransfer
