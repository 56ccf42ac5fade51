#include "kvtransfer/receiver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "kvtransfer/transfer_end.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::MakePool;
using testing::TestKey;
using testing::TinyLayout;

// Both ends in one place: an exporter makes what a reception takes, and the test alters it on the way.
class ReceptionTest : public ::testing::TestWithParam<bool> {  // with tags?
 protected:
  ReceptionTest() {
    v1::Endpoint endpoint;
    endpoint.set_worker_name("p0");
    endpoint.set_incarnation(exporter_.options().incarnation);
    endpoint.set_transport("loopback");
    exporter_.AddEndpoint(endpoint);
    endpoint.set_transport("grpc");
    exporter_.AddEndpoint(endpoint);
    ticket_ = *exporter_.ExportSealed({.request_id = "r", .num_tokens = 48, .lease = absl::Seconds(30)},
                                      testing::FilledLease(pool_.get(), 3, 5));
  }
  ~ReceptionTest() override { exporter_.ReleaseAll(); }
  Reception Make(uint32_t first_block = 0, int64_t room = 3, absl::string_view transport = "loopback") {
    return Reception(&receiver_, transport,
                     {.ticket = ticket_,
                      .first_block = first_block,
                      .destination = room > 0 ? *pool_->AllocateLease(room) : kvcache::BlockLease(),
                      .deadline = testing::Soon()});
  }
  // Sends the claim's next block, altered.
  absl::Status Send(Claim* claim, Reception* to, std::function<void(v1::BlockSeal*)> alter_seal = nullptr,
                    bool alter_bytes = false) {
    const std::span<const std::byte> from = claim->bytes(claim->next_block());
    v1::BlockSeal seal = claim->MakeSeal();
    if (alter_seal) alter_seal(&seal);
    auto place = to->Place(seal, from.size());
    if (!place.ok()) return place.status();
    std::memcpy(place->data(), from.data(), from.size());
    if (alter_bytes) (*place)[77] ^= std::byte{4};
    return to->Arrived(seal.block_idx());
  }

  const bool tags_ = GetParam();
  std::shared_ptr<kvcache::BlockPool> pool_ = MakePool(TinyLayout(), 64);
  Exporter exporter_{{.worker_name = "p0",
                      .incarnation = RandomIncarnation(),
                      .key = TestKey(),
                      .layout = TinyLayout(),
                      .fingerprint = testing::Fingerprint(),
                      .block_tags = tags_}};
  ReceiverOptions receiver_{.key = TestKey(),
                            .layout = TinyLayout(),
                            .fingerprint = testing::Fingerprint(),
                            .consumer = "d0",
                            .require_tags = tags_};
  v1::Ticket ticket_;
};

TEST_P(ReceptionTest, WhatIsSentArrives) {
  Reception reception = Make(1, 2);
  ASSERT_TRUE(reception.Check().ok()) << reception.Check();
  auto claim = exporter_.ClaimTicket(reception.Open());
  ASSERT_TRUE(claim.ok()) << claim.status();
  while (claim->HasBlock()) EXPECT_TRUE(Send(&*claim, &reception).ok());
  EXPECT_FALSE(reception.complete());
  EXPECT_TRUE(reception.TakeEnd(claim->MakeEnd()).ok());
  EXPECT_TRUE(reception.complete());
  EXPECT_EQ(reception.Result("x").stats.blocks, 2u);
  EXPECT_EQ(std::memcmp(reception.destination().bytes(0).data(), claim->bytes(1).data(), TinyLayout().block_bytes()), 0);
}

TEST_P(ReceptionTest, NothingIsMissingWhenAllIsHeld) {
  Reception reception = Make(3, 0);
  ASSERT_TRUE(reception.Check().ok()) << reception.Check();
  auto claim = exporter_.ClaimTicket(reception.Open());
  EXPECT_FALSE(claim->HasBlock());
  EXPECT_TRUE(reception.TakeEnd(claim->MakeEnd()).ok());
  EXPECT_TRUE(reception.complete());
  EXPECT_EQ(reception.Result("").stats.bytes, 0u);
}

TEST_P(ReceptionTest, AlteredBytesAreDataLoss) {
  Reception reception = Make();
  auto claim = exporter_.ClaimTicket(reception.Open());
  EXPECT_TRUE(absl::IsDataLoss(Send(&*claim, &reception, nullptr, /*alter_bytes=*/true)));
}

// Who alters the bytes and the checksum with them gets past a checksum, not past a tag.
TEST_P(ReceptionTest, AForgedChecksumIsCaughtByTheTag) {
  Reception reception = Make();
  auto claim = exporter_.ClaimTicket(reception.Open());
  std::vector<std::byte> bytes(claim->bytes(0).begin(), claim->bytes(0).end());
  bytes[77] ^= std::byte{4};
  const absl::Status s =
      Send(&*claim, &reception, [&](v1::BlockSeal* seal) { seal->set_checksum(BlockChecksum(bytes)); }, true);
  if (tags_) {
    EXPECT_TRUE(absl::IsPermissionDenied(s)) << s;
  } else {
    EXPECT_TRUE(s.ok()) << "the plain mode stops corruption only";
  }
}

TEST_P(ReceptionTest, WrongHeadersAreRefusedBeforeAnyByte) {
  Reception reception = Make(1, 2);
  auto claim = exporter_.ClaimTicket(reception.Open());
  v1::BlockSeal seal = claim->MakeSeal();
  const size_t size = TinyLayout().block_bytes();
  v1::BlockSeal bad = seal;
  bad.set_block_idx(3);
  EXPECT_TRUE(absl::IsDataLoss(reception.Place(bad, size).status()));
  bad.set_block_idx(0);
  EXPECT_TRUE(absl::IsDataLoss(reception.Place(bad, size).status())) << "held already, not asked for";
  EXPECT_TRUE(absl::IsDataLoss(reception.Place(seal, size - 1).status()));
  EXPECT_TRUE(absl::IsDataLoss(reception.Place(seal, size + 1).status()));
  bad = seal;
  bad.set_generation(seal.generation() + 1);
  EXPECT_TRUE(absl::IsAborted(reception.Place(bad, size).status()));
  ASSERT_TRUE(reception.Place(seal, size).ok());
  EXPECT_TRUE(reception.Place(seal, size)->empty()) << "sent twice";
}

// Blocks of two pieces and a bit.
kernels::KvLayout WideLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 16, .num_layers = 21, .num_kv_heads = 4, .head_dim = 100};
}

class PieceTest : public ::testing::TestWithParam<bool> {
 protected:
  PieceTest() {
    v1::Endpoint endpoint;
    endpoint.set_worker_name("p0");
    endpoint.set_incarnation(exporter_.options().incarnation);
    endpoint.set_transport("loopback");
    exporter_.AddEndpoint(endpoint);
    ticket_ = *exporter_.ExportSealed({.request_id = "r", .num_tokens = 32, .lease = absl::Seconds(30)},
                                      testing::FilledLease(pool_.get(), 2, 5));
    Renew();
    claim_ = *exporter_.ClaimTicket(reception_->Open());
    while (claim_.HasBlock()) pieces_.push_back(claim_.NextPiece());
  }
  ~PieceTest() override {
    claim_.Finish(ClaimEnd::kStopped);
    reception_.reset();
    exporter_.ReleaseAll();
    testing::ExpectAllFree(*pool_);
  }
  void Renew() {
    reception_.reset();
    reception_.emplace(&receiver_, "loopback",
                       FetchRequest{.ticket = ticket_, .destination = *pool_->AllocateLease(2), .deadline = testing::Soon()});
  }
  absl::Status Place(const BlockPiece& piece, int alter_at = -1) {
    auto place = reception_->PlacePiece(piece.seal, piece.offset, piece.bytes.size());
    if (!place.ok()) return place.status();
    std::memcpy(place->data(), piece.bytes.data(), piece.bytes.size());
    if (alter_at >= 0) (*place)[static_cast<size_t>(alter_at)] ^= std::byte{1};
    return absl::OkStatus();
  }
  absl::Status Arrived(const BlockPiece& piece) {
    return reception_->PieceArrived(piece.seal.block_idx(), piece.offset);
  }

  std::shared_ptr<kvcache::BlockPool> pool_ = MakePool(WideLayout(), 8);
  Exporter exporter_{{.worker_name = "p0",
                      .incarnation = RandomIncarnation(),
                      .key = TestKey(),
                      .layout = WideLayout(),
                      .fingerprint = testing::Fingerprint(),
                      .block_tags = GetParam()}};
  ReceiverOptions receiver_{.key = TestKey(), .layout = WideLayout(), .fingerprint = testing::Fingerprint()};
  v1::Ticket ticket_;
  std::optional<Reception> reception_;
  Claim claim_;
  std::vector<BlockPiece> pieces_;
};

INSTANTIATE_TEST_SUITE_P(PlainAndTagged, PieceTest, ::testing::Bool());

TEST_P(PieceTest, ArriveInAnyOrderAndCountOnceAllAreThere) {
  ASSERT_EQ(pieces_.size(), 6u);
  EXPECT_EQ(pieces_[0].seal.checksum(), 0u) << "comes with the last piece";
  EXPECT_EQ(pieces_[2].seal.checksum(), BlockChecksum(claim_.bytes(0)));
  ASSERT_TRUE(reception_->TakeEnd(claim_.MakeEnd()).ok());
  for (size_t i : {2, 5, 0, 4, 3, 1}) ASSERT_TRUE(Place(pieces_[i]).ok()) << i;
  for (size_t i : {3, 2, 4, 1, 5, 0}) {
    EXPECT_FALSE(reception_->complete());
    EXPECT_TRUE(Arrived(pieces_[i]).ok()) << i;
  }
  EXPECT_TRUE(reception_->complete());
  EXPECT_TRUE(testing::HoldsFill(reception_->destination(), 2, 5));
}

TEST_P(PieceTest, OneAlteredByteInAnyPieceIsFound) {
  for (size_t altered = 0; altered < 3; ++altered) {
    Renew();
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(Place(pieces_[i], i == altered ? 10'000 : -1).ok());
      EXPECT_EQ(Arrived(pieces_[i]).ok(), i < 2) << altered << " " << i;
    }
  }
}

TEST_P(PieceTest, WrongPiecesAreRefusedBeforeAnyByte) {
  const BlockPiece& p = pieces_[1];
  const auto place = [&](uint64_t offset, size_t length) {
    return reception_->PlacePiece(p.seal, offset, length).status();
  };
  const size_t piece = p.bytes.size(), total = WideLayout().block_bytes();
  EXPECT_TRUE(absl::IsDataLoss(place(piece + 1, piece)));
  EXPECT_TRUE(absl::IsDataLoss(place(piece, piece - 1)));
  EXPECT_TRUE(absl::IsDataLoss(place(piece, piece + 1)));
  EXPECT_TRUE(absl::IsDataLoss(place(0, total)));
  EXPECT_TRUE(absl::IsDataLoss(place(2 * piece, piece))) << "past the block's end";
  EXPECT_TRUE(absl::IsDataLoss(place(3 * piece, piece)));
  EXPECT_TRUE(absl::IsDataLoss(place(~uint64_t{0} / piece * piece, piece)));
  v1::BlockSeal stale = p.seal;
  stale.set_generation(stale.generation() + 1);
  EXPECT_TRUE(absl::IsAborted(reception_->PlacePiece(stale, piece, piece).status()));
  ASSERT_TRUE(Place(p).ok());
  EXPECT_TRUE(reception_->PlacePiece(p.seal, piece, piece)->empty()) << "sent twice";
}

TEST(PieceBytesTest, NoBlockHasMoreThanSixtyFourPieces) {
  for (size_t block : {size_t{1}, size_t{512} << 10, (size_t{32} << 20) + 1, size_t{1} << 30, (size_t{3} << 40) + 7}) {
    EXPECT_LE((block + PieceBytes(block) - 1) / PieceBytes(block), kMaxPieces) << block;
  }
}

TEST_P(ReceptionTest, EndsThatWereAlteredOrComeEarlyAreRefused) {
  Reception reception = Make();
  auto claim = exporter_.ClaimTicket(reception.Open());
  while (claim->HasBlock()) ASSERT_TRUE(Send(&*claim, &reception).ok());
  const v1::TransferEnd good = claim->MakeEnd();
  v1::TransferEnd end = good;
  end.set_payload("forged");
  EXPECT_TRUE(absl::IsDataLoss(reception.TakeEnd(end)));
  end = good;
  end.set_finished(true);
  EXPECT_TRUE(absl::IsDataLoss(reception.TakeEnd(end)));
  end = good;
  end.set_num_blocks(2);
  EXPECT_TRUE(absl::IsDataLoss(reception.TakeEnd(end)));
  // With the right sum, by someone who has no key.
  v1::Ticket without_key = ticket_;
  SealEnd(TestKey('x'), without_key, &end);
  EXPECT_EQ(reception.TakeEnd(end).code(), tags_ ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kDataLoss);
  // Of another transfer.
  v1::Ticket other = ticket_;
  other.set_transfer_id_low(1);
  end = good;
  SealEnd(TestKey(), other, &end);
  EXPECT_TRUE(absl::IsDataLoss(reception.TakeEnd(end)));
  end.set_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  end.set_message("gone");
  EXPECT_TRUE(absl::IsAborted(reception.TakeEnd(end)));
  end.set_code(4711);
  EXPECT_EQ(reception.TakeEnd(end).code(), absl::StatusCode::kUnknown);
  EXPECT_FALSE(reception.complete());
  EXPECT_TRUE(reception.TakeEnd(good).ok());
}

TEST_P(ReceptionTest, ChecksBeforeAnythingIsSent) {
  EXPECT_TRUE(absl::IsInvalidArgument(Make(0, 2).Check())) << "too little room";
  EXPECT_TRUE(absl::IsInvalidArgument(Make(4, 2).Check())) << "past the last block";
  EXPECT_TRUE(Make(0, 3, "grpc").Check().ok()) << "a fallback";
  EXPECT_TRUE(absl::IsFailedPrecondition(Make(0, 3, "ucx").Check()));
  Reception good = Make();
  if (!tags_) {
    receiver_.require_tags = true;
    EXPECT_TRUE(absl::IsFailedPrecondition(good.Check())) << "this worker wants tags";
  }
}

INSTANTIATE_TEST_SUITE_P(Tags, ReceptionTest, ::testing::Bool());

}  // namespace
}  // namespace baton::kvtransfer
