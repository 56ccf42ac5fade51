#include <gtest/gtest.h>

#include <cmath>

#include "absl/time/clock.h"
#include "tests/prefill_worker/worker_pair.h"

namespace baton::testing {
namespace {

TEST(PrefillServiceTest, TicketNamesThePromptsBlocks) {
  WorkerPair pair;
  const auto result = pair.Prefill(MakePrefill("a", 19));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.first_tokens.size(), 1u);
  ASSERT_TRUE(result.prefilled.has_ticket());
  EXPECT_EQ(result.prefilled.ticket().num_tokens(), 19u);
  EXPECT_EQ(result.prefilled.ticket().blocks_size(), 3);  // of 8 tokens
  EXPECT_EQ(pair.prefill_service()->load().tickets(), 1u);
  EXPECT_EQ(pair.prefill_service()->load().ledger().leased(), 3u);
}

TEST(PrefillServiceTest, MaxTokensOneHoldsNothing) {
  WorkerPair pair;
  auto request = MakePrefill("a", 19);
  request.mutable_sampling()->set_max_tokens(1);
  const auto result = pair.Prefill(request);
  ASSERT_TRUE(result.status.ok());
  ASSERT_EQ(result.first_tokens.size(), 1u);
  EXPECT_EQ(result.first_tokens[0].finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(result.has_prefilled);
  EXPECT_FALSE(result.prefilled.has_ticket());
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(PrefillServiceTest, WithoutHandOverNoTicket) {
  WorkerPair pair;
  auto request = MakePrefill("a", 19);
  request.set_hand_over(false);
  const auto result = pair.Prefill(request);
  ASSERT_TRUE(result.status.ok());
  EXPECT_FALSE(result.prefilled.has_ticket());
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(PrefillServiceTest, ReleaseTicketIsIdempotent) {
  WorkerPair pair;
  const auto result = pair.Prefill(MakePrefill("a", 40));
  ASSERT_TRUE(result.prefilled.has_ticket());
  for (const bool expected : {true, false}) {
    grpc::ClientContext context;
    v1::ReleaseTicketRequest request;
    request.set_transfer_id_high(result.prefilled.ticket().transfer_id_high());
    request.set_transfer_id_low(result.prefilled.ticket().transfer_id_low());
    v1::ReleaseTicketResponse response;
    ASSERT_TRUE(pair.prefill()->ReleaseTicket(&context, request, &response).ok());
    EXPECT_EQ(response.released(), expected);
  }
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(PrefillServiceTest, LeaseRunsOut) {
  WorkerPair pair({.lease = absl::Milliseconds(30)});
  const auto result = pair.Prefill(MakePrefill("a", 40));
  ASSERT_TRUE(result.prefilled.has_ticket());
  EXPECT_TRUE(pair.AwaitQuiet());
  EXPECT_NE(pair.PrefillMetrics().find("baton_tickets_ended_total{how=\"expired\"} 1"), std::string::npos);
  const auto decoded = pair.Decode(WorkerPair::Next(MakePrefill("a", 40), result));
  EXPECT_EQ(decoded.status.error_code(), grpc::StatusCode::ABORTED) << decoded.status.error_message();
}

TEST(PrefillServiceTest, CancelledWhileRunningFreesAll) {
  WorkerPair pair;
  pair.prefill_gate()->Close();
  grpc::ClientContext context;
  auto stream = pair.prefill()->Prefill(&context, MakePrefill("a", 100));
  pair.prefill_gate()->AwaitArrival();
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  pair.prefill_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
  EXPECT_EQ(pair.prefill_service()->load().tickets(), 0u);
}

TEST(PrefillServiceTest, DeadlineWhileRunningFreesAll) {
  WorkerPair pair;
  pair.prefill_gate()->Close();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  auto stream = pair.prefill()->Prefill(&context, MakePrefill("a", 100));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  pair.prefill_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(PrefillServiceTest, BadRequestsAreTyped) {
  WorkerPair pair;
  const auto status_of = [&](const std::function<void(v1::PrefillRequest*)>& spoil) {
    auto request = MakePrefill("a", 5);
    spoil(&request);
    return pair.Prefill(request).status;
  };
  const grpc::Status empty = status_of([](auto* r) { r->clear_prompt_token_ids(); });
  EXPECT_EQ(empty.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status id = status_of([](auto* r) { r->add_prompt_token_ids(1 << 20); });
  EXPECT_EQ(id.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(id.error_message().find("prompt_token_ids[5]: token id 1048576"), std::string::npos) << id.error_message();
  const grpc::Status nan = status_of([](auto* r) { r->mutable_sampling()->set_temperature(NAN); });
  EXPECT_EQ(nan.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status no_id = status_of([](auto* r) { r->clear_request_id(); });
  EXPECT_EQ(no_id.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status huge = status_of([](auto* r) {
    for (int i = 0; i < 600; ++i) r->add_prompt_token_ids(1);
  });
  EXPECT_NE(huge.error_message().find("605 tokens"), std::string::npos) << huge.error_message();
  EXPECT_NE(pair.PrefillMetrics().find("baton_refusals_total{code=\"INVALID_ARGUMENT\"} 5"), std::string::npos);
}

TEST(PrefillServiceTest, DrainRefusesNewAndWaitsForTickets) {
  WorkerPair pair;
  const auto result = pair.Prefill(MakePrefill("a", 40));
  ASSERT_TRUE(result.prefilled.has_ticket());
  pair.prefill_service()->Drain();
  EXPECT_EQ(pair.Prefill(MakePrefill("b", 5)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(pair.prefill_service()->idle());
  const auto decoded = pair.Decode(WorkerPair::Next(MakePrefill("a", 40), result));
  EXPECT_TRUE(decoded.status.ok()) << decoded.status.error_message();
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!pair.prefill_service()->idle() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(pair.prefill_service()->idle());
}

TEST(PrefillServiceTest, MetricsHaveStationsAndBlocks) {
  WorkerPair pair;
  ASSERT_TRUE(pair.Prefill(MakePrefill("a", 40)).status.ok());
  const std::string text = pair.PrefillMetrics();
  for (const char* line :
       {"baton_station_seconds_count{station=\"prefill\"} 1", "baton_station_seconds_count{station=\"sample\"} 1",
        "baton_kv_blocks{state=\"leased\"} 5", "baton_tickets 1", "baton_requests_total 1", "baton_tokens_total 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace baton::testing
