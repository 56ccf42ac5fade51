#include "kvtransfer/ticket.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <set>

#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::SmolLayout;
using testing::TestKey;

v1::Ticket Sample() {
  v1::Ticket t;
  t.set_request_id("request-1");
  t.set_epoch(3);
  t.set_transfer_id_high(11);
  t.set_transfer_id_low(12);
  t.mutable_endpoint()->set_worker_name("p0");
  t.mutable_endpoint()->set_incarnation(std::string(32, 'e'));
  t.mutable_endpoint()->set_transport("ucx");
  t.mutable_endpoint()->set_address("127.0.0.1:4711");
  *t.mutable_layout() = LayoutToProto(SmolLayout());
  *t.mutable_fingerprint() = testing::Fingerprint();
  t.set_num_tokens(20);
  for (int i = 0; i < 2; ++i) {
    v1::BlockSlot* b = t.add_blocks();
    b->set_block_id(5 + i);
    b->set_generation(100 + i);
  }
  t.set_lease_ms(30000);
  t.set_num_consumers(1);
  v1::Endpoint* fallback = t.add_fallbacks();
  *fallback = t.endpoint();
  fallback->set_transport("grpc");
  fallback->set_address("127.0.0.1:4712");
  SignTicket(TestKey(), &t);
  return t;
}

struct Forgery {
  const char* field;
  std::function<void(v1::Ticket*)> forge;
};

// One for each field of the ticket and of the messages in it.
std::vector<Forgery> Forgeries() {
  return {
      {"request_id", [](v1::Ticket* t) { t->set_request_id("request-2"); }},
      {"epoch", [](v1::Ticket* t) { t->set_epoch(t->epoch() + 1); }},
      {"transfer_id_high", [](v1::Ticket* t) { t->set_transfer_id_high(t->transfer_id_high() ^ 1); }},
      {"transfer_id_low", [](v1::Ticket* t) { t->set_transfer_id_low(t->transfer_id_low() ^ 1); }},
      {"worker_name", [](v1::Ticket* t) { t->mutable_endpoint()->set_worker_name("p1"); }},
      {"incarnation", [](v1::Ticket* t) { t->mutable_endpoint()->set_incarnation(std::string(32, 'f')); }},
      {"transport", [](v1::Ticket* t) { t->mutable_endpoint()->set_transport("loopback"); }},
      {"address", [](v1::Ticket* t) { t->mutable_endpoint()->set_address("127.0.0.1:4712"); }},
      {"endpoint locality", [](v1::Ticket* t) { t->mutable_endpoint()->set_locality("x"); }},
      {"dtype", [](v1::Ticket* t) { t->mutable_layout()->set_dtype("bf16"); }},
      {"block_size", [](v1::Ticket* t) { t->mutable_layout()->set_block_size(17); }},
      {"num_layers", [](v1::Ticket* t) { t->mutable_layout()->set_num_layers(31); }},
      {"num_kv_heads", [](v1::Ticket* t) { t->mutable_layout()->set_num_kv_heads(4); }},
      {"head_dim", [](v1::Ticket* t) { t->mutable_layout()->set_head_dim(128); }},
      {"weights", [](v1::Ticket* t) { t->mutable_fingerprint()->set_weights("x"); }},
      {"config", [](v1::Ticket* t) { t->mutable_fingerprint()->set_config("x"); }},
      {"tokenizer", [](v1::Ticket* t) { t->mutable_fingerprint()->set_tokenizer("x"); }},
      {"numerics_class", [](v1::Ticket* t) { t->mutable_fingerprint()->set_numerics_class("int"); }},
      {"num_tokens", [](v1::Ticket* t) { t->set_num_tokens(21); }},
      {"block_id", [](v1::Ticket* t) { t->mutable_blocks(1)->set_block_id(9); }},
      {"generation", [](v1::Ticket* t) { t->mutable_blocks(0)->set_generation(99); }},
      {"fallback", [](v1::Ticket* t) { t->mutable_fallbacks(0)->set_address("127.0.0.1:4713"); }},
      {"fallbacks", [](v1::Ticket* t) { t->clear_fallbacks(); }},
      {"num_consumers", [](v1::Ticket* t) { t->set_num_consumers(2); }},
      {"block_tags", [](v1::Ticket* t) { t->set_block_tags(true); }},
      {"order of blocks", [](v1::Ticket* t) { t->mutable_blocks()->SwapElements(0, 1); }},
      {"lease_ms", [](v1::Ticket* t) { t->set_lease_ms(60000); }},
      {"mac", [](v1::Ticket* t) { t->mutable_mac()->back() ^= 1; }},
  };
}

TEST(TicketTest, TheSampleIsGood) {
  EXPECT_TRUE(CheckTicketForFetch(TestKey(), Sample(), SmolLayout(), testing::Fingerprint()).ok());
}

TEST(TicketTest, ForgingAnyFieldBreaksTheMac) {
  for (const Forgery& f : Forgeries()) {
    v1::Ticket t = Sample();
    f.forge(&t);
    EXPECT_TRUE(absl::IsPermissionDenied(VerifyMac(TestKey(), t))) << f.field;
  }
  // The layout's version and the numbers of blocks: not in the list above because the shape check sees them first.
  v1::Ticket t = Sample();
  t.mutable_layout()->set_version(2);
  EXPECT_TRUE(absl::IsPermissionDenied(VerifyMac(TestKey(), t)));
  t = Sample();
  t.mutable_blocks()->RemoveLast();
  EXPECT_TRUE(absl::IsPermissionDenied(VerifyMac(TestKey(), t)));
}

TEST(TicketTest, EveryFieldOfTheProtoIsForgedAbove) {
  // A field added to the protos must be added to CanonicalEncoding and to Forgeries.
  EXPECT_EQ(v1::Ticket::descriptor()->field_count(), 14);
  EXPECT_EQ(v1::Endpoint::descriptor()->field_count(), 5);
  EXPECT_EQ(v1::KvLayout::descriptor()->field_count(), 6);
  EXPECT_EQ(v1::ModelFingerprint::descriptor()->field_count(), 4);
  EXPECT_EQ(v1::BlockSlot::descriptor()->field_count(), 2);
}

TEST(TicketTest, AnotherKeyIsRefused) {
  EXPECT_TRUE(absl::IsPermissionDenied(VerifyMac(TestKey('x'), Sample())));
}

TEST(TicketTest, EncodingSeparatesNeighbouringFields) {
  v1::Ticket a = Sample();
  v1::Ticket b = Sample();
  a.mutable_endpoint()->set_worker_name("ab");
  a.mutable_endpoint()->set_incarnation("c");
  b.mutable_endpoint()->set_worker_name("a");
  b.mutable_endpoint()->set_incarnation("bc");
  EXPECT_NE(CanonicalEncoding(a), CanonicalEncoding(b));
}

TEST(TicketTest, ShapeBounds) {
  const std::vector<Forgery> bad = {
      {"request_id", [](v1::Ticket* t) { t->clear_request_id(); }},
      {"request_id", [](v1::Ticket* t) { t->set_request_id(std::string(129, 'r')); }},
      {"transfer id", [](v1::Ticket* t) { t->clear_transfer_id_high(), t->clear_transfer_id_low(); }},
      {"incarnation", [](v1::Ticket* t) { t->mutable_endpoint()->set_incarnation("short"); }},
      {"endpoint", [](v1::Ticket* t) { t->mutable_endpoint()->set_address(std::string(5000, 'a')); }},
      {"MAC", [](v1::Ticket* t) { t->set_mac("short"); }},
      {"lease_ms", [](v1::Ticket* t) { t->set_lease_ms(0); }},
      {"lease_ms", [](v1::Ticket* t) { t->set_lease_ms(~0ull); }},
      {"dtype", [](v1::Ticket* t) { t->mutable_layout()->set_dtype("q4_0"); }},
      {"block_size", [](v1::Ticket* t) { t->mutable_layout()->set_block_size(0); }},
      {"num_layers", [](v1::Ticket* t) { t->mutable_layout()->set_num_layers(0xffffffff); }},
      {"head_dim", [](v1::Ticket* t) { t->mutable_layout()->set_head_dim(1u << 31); }},
      {"version", [](v1::Ticket* t) { t->mutable_layout()->set_version(9); }},
      {"num_tokens", [](v1::Ticket* t) { t->set_num_tokens(0); }},
      {"num_tokens", [](v1::Ticket* t) { t->set_num_tokens(0xffffffff); }},
      {"blocks", [](v1::Ticket* t) { t->clear_blocks(); }},
      {"blocks", [](v1::Ticket* t) { t->set_num_tokens(33); }},
      {"blocks", [](v1::Ticket* t) { t->set_num_tokens(16); }},
      {"fallback", [](v1::Ticket* t) { t->mutable_fallbacks(0)->set_incarnation(std::string(32, 'f')); }},
      {"fallbacks", [](v1::Ticket* t) { for (int i = 0; i < 4; ++i) *t->add_fallbacks() = t->endpoint(); }},
      {"num_consumers", [](v1::Ticket* t) { t->clear_num_consumers(); }},
      {"num_consumers", [](v1::Ticket* t) { t->set_num_consumers(1000); }},
  };
  for (const Forgery& f : bad) {
    v1::Ticket t = Sample();
    f.forge(&t);
    const absl::Status s = CheckTicketShape(t);
    EXPECT_TRUE(absl::IsInvalidArgument(s)) << f.field << ": " << s;
    EXPECT_NE(s.message().find(f.field), absl::string_view::npos) << f.field << ": " << s;
  }
}

TEST(TicketTest, LayoutRoundTripAndReasons) {
  auto back = LayoutFromProto(LayoutToProto(SmolLayout()));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, SmolLayout());
  kernels::KvLayout other = SmolLayout();
  other.block_size = 32;
  const absl::Status s = CompareLayouts(LayoutToProto(SmolLayout()), LayoutToProto(other));
  EXPECT_TRUE(absl::IsFailedPrecondition(s));
  EXPECT_EQ(s.message().substr(0, 37), "kv block_size: prefill 16, decode 32;") << s;
  v1::ModelFingerprint f = testing::Fingerprint();
  f.set_numerics_class("int");
  const absl::Status n = CompareFingerprints(testing::Fingerprint(), f);
  EXPECT_EQ(n.message().substr(0, 39), "numerics class: prefill f32, decode int") << n;
  f = testing::Fingerprint();
  f.set_tokenizer(std::string(64, 'd'));
  EXPECT_NE(CompareFingerprints(testing::Fingerprint(), f).message().find("model tokenizer"), absl::string_view::npos);
}

TEST(TicketTest, ChecksumIsXxh3) {
  // Of the reference implementation: XXH3_64bits of the empty input.
  EXPECT_EQ(BlockChecksum({}), 0x2d06800538d394c2ull);
}

TEST(TicketTest, RandomIdsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomIncarnation());
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(seen.begin()->size(), 32u);
}

TEST(TicketTest, KeyBounds) {
  EXPECT_TRUE(absl::IsInvalidArgument(ClusterKey::FromBytes(std::string(31, 'k')).status()));
  EXPECT_TRUE(absl::IsNotFound(ClusterKey::FromFile("/nonexistent/key").status()));
  const std::string path = ::testing::TempDir() + "/baton_key";
  std::ofstream(path, std::ios::binary) << std::string(40, 'k');
  EXPECT_EQ(ClusterKey::FromFile(path)->bytes(), std::string(40, 'k'));
  std::ofstream(path, std::ios::binary) << std::string(5000, 'k');
  EXPECT_TRUE(absl::IsInvalidArgument(ClusterKey::FromFile(path).status()));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace baton::kvtransfer
