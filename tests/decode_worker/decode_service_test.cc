#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kvtransfer/ticket.h"
#include "tests/prefill_worker/worker_pair.h"

namespace baton::testing {
namespace {

v1::PrefillRequest RandomRequest(int i) {
  std::mt19937_64 rng(1000 + i);
  auto request = MakePrefill(absl::StrCat("r", i), 1 + static_cast<int>(rng() % 90), rng());
  auto* s = request.mutable_sampling();
  s->set_temperature(i % 3 == 0 ? 0.0f : 0.8f);
  if (rng() % 2) s->set_top_k(1 + static_cast<int>(rng() % 40));
  if (rng() % 2) s->set_top_p(0.5f + 0.5f * static_cast<float>(rng() % 100) / 100);
  if (rng() % 3 == 0) s->set_repetition_penalty(1.2f);
  if (rng() % 3 == 0) s->set_presence_penalty(0.5f);
  if (rng() % 4 == 0) s->set_logprobs(2);
  s->set_ignore_eos(rng() % 2);
  s->set_max_tokens(1 + static_cast<int>(rng() % 24));
  s->set_n(1 + static_cast<int>(rng() % 3));
  return request;
}

// The product's promise, on a small scale: the way through two workers gives what one engine alone gives.
TEST(DecodeServiceTest, SameTokensAsOneEngineAlone) {
  WorkerPair pair;
  for (int i = 0; i < 30; ++i) {
    const auto request = RandomRequest(i);
    EXPECT_EQ(pair.Generate(request), pair.Oracle(request)) << request.ShortDebugString();
  }
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, SameTokensOverUcx) {
  WorkerPair pair({.transport = "ucx"});
  for (int i = 100; i < 110; ++i) {
    const auto request = RandomRequest(i);
    EXPECT_EQ(pair.Generate(request), pair.Oracle(request)) << request.ShortDebugString();
  }
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, SameTokensInACrowd) {
  WorkerPair pair({.kv_mib = 1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pair, t] {
      for (int i = 0; i < 8; ++i) {
        const auto request = RandomRequest(200 + 8 * t + i);
        EXPECT_EQ(pair.Generate(request), pair.Oracle(request)) << request.ShortDebugString();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, FetchedSaysWhatMoved) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  const auto result = pair.Decode(WorkerPair::Next(request, pair.Prefill(request)));
  ASSERT_TRUE(result.status.ok());
  EXPECT_EQ(result.fetched.blocks(), 3u);
  EXPECT_EQ(result.fetched.bytes(), 3 * pair.decode_model()->kv_layout().block_bytes());
  EXPECT_EQ(result.fetched.transport(), "loopback");
  EXPECT_EQ(result.done.num_steps(), 7u);
  EXPECT_NE(pair.DecodeMetrics().find("baton_kv_received_bytes_total{transport=\"loopback\"}"), std::string::npos);
}

TEST(DecodeServiceTest, ATicketWorksOnce) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  const auto next = WorkerPair::Next(request, pair.Prefill(request));
  EXPECT_TRUE(pair.Decode(next).status.ok());
  const auto again = pair.Decode(next);
  EXPECT_EQ(again.status.error_code(), grpc::StatusCode::ABORTED) << again.status.error_message();
  EXPECT_TRUE(again.tokens.empty());
}

TEST(DecodeServiceTest, WrongTicketsAreRefusedBeforeAnythingIsReserved) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  const auto good = WorkerPair::Next(request, pair.Prefill(request));
  const auto expect = [&](const char* what, grpc::StatusCode code,
                          const std::function<void(v1::DecodeRequest*)>& spoil) {
    auto bad = good;
    spoil(&bad);
    const auto result = pair.Decode(bad);
    EXPECT_EQ(result.status.error_code(), code) << what << ": " << result.status.error_message();
    EXPECT_TRUE(result.tokens.empty()) << what;
    EXPECT_EQ(pair.decode_service()->load().ledger().leased(), 0u) << what;
  };
  expect("none", grpc::StatusCode::INVALID_ARGUMENT, [](auto* r) { r->clear_ticket(); });
  expect("forged", grpc::StatusCode::PERMISSION_DENIED, [](auto* r) { (*r->mutable_ticket()->mutable_mac())[0] ^= 1; });
  expect("tampered", grpc::StatusCode::PERMISSION_DENIED, [](auto* r) { r->mutable_ticket()->set_lease_ms(29999); });
  expect("another request's", grpc::StatusCode::PERMISSION_DENIED, [](auto* r) { r->set_request_id("b"); });
  expect("another epoch's", grpc::StatusCode::PERMISSION_DENIED, [](auto* r) { r->set_epoch(2); });
  expect("another length", grpc::StatusCode::INVALID_ARGUMENT, [](auto* r) { r->add_prompt_token_ids(1); });
  expect("another model's", grpc::StatusCode::FAILED_PRECONDITION, [&](auto* r) {
    r->mutable_ticket()->mutable_fingerprint()->set_weights(std::string(64, 'a'));
    kvtransfer::SignTicket(pair.key(), r->mutable_ticket());
  });
  expect("another layout's", grpc::StatusCode::FAILED_PRECONDITION, [&](auto* r) {
    r->mutable_ticket()->mutable_layout()->set_num_kv_heads(r->ticket().layout().num_kv_heads() * 2);
    kvtransfer::SignTicket(pair.key(), r->mutable_ticket());
  });
  expect("no first tokens", grpc::StatusCode::INVALID_ARGUMENT, [](auto* r) { r->clear_first_tokens(); });
  expect("first token of nobody", grpc::StatusCode::INVALID_ARGUMENT,
         [](auto* r) { r->mutable_first_tokens(0)->set_choice_index(7); });
  EXPECT_TRUE(pair.Decode(good).status.ok()) << "the ticket itself is still good";
}

TEST(DecodeServiceTest, CancelledWhileDecodingFreesAll) {
  WorkerPair pair;
  auto request = MakePrefill("a", 60);
  request.mutable_sampling()->set_max_tokens(400);
  request.mutable_sampling()->set_n(3);
  const auto next = WorkerPair::Next(request, pair.Prefill(request));
  pair.decode_gate()->Close();
  grpc::ClientContext context;
  auto stream = pair.decode()->Decode(&context, next);
  pair.decode_gate()->AwaitArrival();
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  pair.decode_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, DeadlineWhileDecodingFreesAll) {
  WorkerPair pair;
  auto request = MakePrefill("a", 60);
  request.mutable_sampling()->set_max_tokens(400);
  const auto next = WorkerPair::Next(request, pair.Prefill(request));
  pair.decode_gate()->Close();
  const auto result = pair.Decode(next, absl::Milliseconds(60));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  pair.decode_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
}

// Another request has all the blocks, so this one waits for room; leaving takes it out of the queue.
TEST(DecodeServiceTest, CancelledWhileWaitingForRoomFreesAll) {
  WorkerPair pair;
  std::vector<kvcache::BlockLease> leases;
  Mutex mu;
  bool reserved = false;
  CondVar cv;
  const int all = static_cast<int>(pair.decode_model()->num_blocks()) * 8;
  pair.decode_model()->engine()->ReserveKv("hog", all, absl::InfiniteFuture(), [&](auto lease) {
    MutexLock lock(&mu);
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (lease.ok()) leases.push_back(*std::move(lease));
    reserved = true;
    cv.SignalAll();
  });
  {
    MutexLock lock(&mu);
    while (!reserved) cv.Wait(&mu);
  }
  const auto request = MakePrefill("a", 60);
  const auto next = WorkerPair::Next(request, pair.Prefill(request));
  const auto result = pair.Decode(next, absl::Milliseconds(60));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(result.has_fetched);
  leases.clear();
}

TEST(DecodeServiceTest, RandomCancelsLeaveNothing) {
  WorkerPair pair({.lease = absl::Milliseconds(200)});
  std::atomic<int> next_request{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i; (i = next_request++) < 120;) {
        auto request = RandomRequest(1000 + i);
        std::mt19937_64 rng(i);
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(rng() % 4000));
        if (i % 3 == 0) {
          auto stream = pair.prefill()->Prefill(&context, request);
          stream->Finish();
          continue;
        }
        const auto first = pair.Prefill(request);
        if (!first.prefilled.has_ticket()) continue;
        int events = 0;
        pair.Decode(WorkerPair::Next(request, first), absl::Microseconds(500 + rng() % 20000),
                    [&](grpc::ClientContext* c) {
                      if (i % 3 == 1 && ++events == 3) c->TryCancel();
                    });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, DrainRefusesNewAndFinishesOld) {
  WorkerPair pair;
  auto request = MakePrefill("a", 30);
  const auto next = WorkerPair::Next(request, pair.Prefill(request));
  auto other = MakePrefill("b", 30);
  const auto later = WorkerPair::Next(other, pair.Prefill(other));
  pair.decode_gate()->Close();
  std::thread running([&] {
    const auto result = pair.Decode(next);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens.size(), 7u);
  });
  pair.decode_gate()->AwaitArrival();
  pair.decode_service()->Drain();
  pair.decode_gate()->Open();
  EXPECT_EQ(pair.Decode(later).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  running.join();
}

}  // namespace
}  // namespace baton::testing
