#include <gtest/gtest.h>

#include <cmath>

#include "absl/time/clock.h"
#include "tests/prefill_worker/worker_pair.h"

namespace baton::testing {
namespace {

TEST(PrefillServiceTest, TicketNamesThePromptsBlocks) {
  WorkerPair pair;
  WorkerPair::PrefillCall call(&pair, MakePrefill("a", 19));
  ASSERT_TRUE(call.AwaitPrefilled()) << call.Wait().error_message();
  ASSERT_EQ(call.first_tokens.size(), 1u);
  EXPECT_EQ(call.ticket.num_tokens(), 19u);
  EXPECT_EQ(call.ticket.blocks_size(), 3);  // of 8 tokens
  EXPECT_EQ(pair.prefill_service()->load().tickets(), 1u);
  EXPECT_EQ(pair.prefill_service()->load().ledger().leased(), 3u);
}

TEST(PrefillServiceTest, TheTicketComesWhenTheFirstChunkIsScheduled) {
  WorkerPair pair;
  pair.prefill_gate()->Close();
  WorkerPair::PrefillCall call(&pair, MakePrefill("a", 100));
  pair.prefill_gate()->AwaitArrival();
  EXPECT_TRUE(call.AwaitTicket()) << "before the first forward pass is over";
  EXPECT_EQ(pair.prefill_service()->load().ledger().leased(), 13u);
  pair.prefill_gate()->Open();
  EXPECT_TRUE(call.AwaitPrefilled());
}

TEST(PrefillServiceTest, WithoutHandOverNoTicketAndTheCallEnds) {
  WorkerPair pair;
  auto request = MakePrefill("a", 19);
  request.set_hand_over(false);
  WorkerPair::PrefillCall call(&pair, request);
  EXPECT_TRUE(call.Wait().ok());
  EXPECT_FALSE(call.AwaitTicket());
  EXPECT_TRUE(call.AwaitPrefilled());
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(PrefillServiceTest, TheCallOwnsItsExport) {
  WorkerPair pair;
  WorkerPair::PrefillCall call(&pair, MakePrefill("a", 40));
  ASSERT_TRUE(call.AwaitPrefilled());
  call.Cancel();
  EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(pair.AwaitQuiet());
  EXPECT_EQ(pair.prefill_service()->load().tickets(), 0u);
}

TEST(PrefillServiceTest, LeaseRunsOutAndTheCallSaysSo) {
  WorkerPair pair({.lease = absl::Milliseconds(30)});
  const auto request = MakePrefill("a", 40);
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  WorkerPair::PrefillCall call(&pair, request);
  EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_NE(pair.PrefillMetrics().find("baton_tickets_ended_total{how=\"expired\"} 1"), std::string::npos);
  EXPECT_TRUE(pair.Present(request, call.ticket).ok()) << "the ticket itself is in order";
  EXPECT_EQ(decode.Wait().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(pair.AwaitQuiet());
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
    return WorkerPair::PrefillCall(&pair, request).Wait();
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
  const auto request = MakePrefill("a", 40);
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  WorkerPair::PrefillCall call(&pair, request);
  ASSERT_TRUE(call.AwaitPrefilled());
  pair.prefill_service()->Drain();
  EXPECT_EQ(WorkerPair::PrefillCall(&pair, MakePrefill("b", 5)).Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(pair.prefill_service()->idle());
  EXPECT_TRUE(pair.Present(request, call.ticket).ok());
  EXPECT_TRUE(decode.Wait().ok());
  EXPECT_TRUE(call.Wait().ok());
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!pair.prefill_service()->idle() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(pair.prefill_service()->idle());
}

TEST(PrefillServiceTest, MetricsHaveStationsAndBlocks) {
  WorkerPair pair;
  WorkerPair::PrefillCall call(&pair, MakePrefill("a", 40));
  ASSERT_TRUE(call.AwaitPrefilled());
  const std::string text = pair.PrefillMetrics();
  for (const char* line :
       {"baton_station_seconds_count{station=\"prefill\"} 1", "baton_station_seconds_count{station=\"sample\"} 1",
        "baton_kv_blocks{state=\"leased\"} 5", "baton_tickets 1", "baton_requests_total 1", "baton_tokens_total 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace baton::testing
