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
  // Chunks smaller than most prompts: blocks move while prefill runs.
  WorkerPair pair({.transport = "ucx", .max_batch_tokens = 16, .tags = true});
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

// A decode with room and a prefill with a ticket, not yet presented.
struct Both {
  Both(WorkerPair* pair, const v1::PrefillRequest& request, absl::Duration decode_timeout = absl::Seconds(60))
      : decode(pair, WorkerPair::Matching(request), decode_timeout), prefill((decode.AwaitReserved(), pair), request) {
    EXPECT_TRUE(prefill.AwaitPrefilled()) << prefill.Wait().error_message();
  }
  WorkerPair::DecodeCall decode;
  WorkerPair::PrefillCall prefill;
};

// One call of a feed: what its own stream says.
struct FedCall {
  FedCall(WorkerPair* pair, const v1::PrefillRequest& request, const std::string& feed, uint64_t number) {
    v1::DecodeRequest decode = WorkerPair::Matching(request);
    decode.set_local_prefill(true);
    decode.mutable_feed()->set_feed_id(feed);
    decode.mutable_feed()->set_call(number);
    reader = pair->decode()->Decode(&context, decode);
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::DecodeEvent>> reader;
};

TEST(DecodeServiceTest, TheTokensOfAStepShareAMessageOfTheFeed) {
  WorkerPair pair;
  std::vector<v1::PrefillRequest> requests;
  for (int i = 0; i < 2; ++i) {
    requests.push_back(MakePrefill(absl::StrCat("r", i), 20));
    requests[i].mutable_sampling()->set_ignore_eos(true);
    requests[i].mutable_sampling()->set_max_tokens(40);
  }
  grpc::ClientContext context;
  v1::FeedRequest open;
  open.set_feed_id("f");
  auto feed = pair.decode()->Feed(&context, open);
  feed->WaitForInitialMetadata();
  // Both are there before the first step ends.
  pair.decode_gate()->Close();
  FedCall first(&pair, requests[0], "f", 1);
  pair.decode_gate()->AwaitArrival();
  FedCall second(&pair, requests[1], "f", 2);
  v1::UpdateDecodeRequest known;
  known.set_request_id("r1");
  known.set_epoch(requests[1].epoch());
  while (!pair.Update(known).ok()) absl::SleepFor(absl::Milliseconds(1));
  pair.decode_gate()->Open();

  std::vector<std::vector<int32_t>> ids(3);
  std::vector<uint64_t> events(3);
  int shared = 0, done = 0;
  v1::FeedBatch batch;
  while (done < 2 && feed->Read(&batch)) {
    std::vector<bool> has(3);
    for (const v1::FeedEvent& event : batch.events()) {
      ++events[event.call()];
      if (event.event().has_token()) {
        ids[event.call()].push_back(event.event().token().token_id());
        has[event.call()] = true;
      }
      done += event.event().has_done();
    }
    shared += has[1] && has[2];
  }
  EXPECT_GT(shared, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ids[i + 1], pair.Oracle(requests[i])[0]);
    FedCall& call = i == 0 ? first : second;
    v1::DecodeEvent event;
    ASSERT_TRUE(call.reader->Read(&event));
    EXPECT_EQ(event.in_feed().events(), events[i + 1]);
    EXPECT_FALSE(call.reader->Read(&event));
    EXPECT_TRUE(call.reader->Finish().ok());
  }
  context.TryCancel();
  feed->Finish();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, FetchedSaysWhatMoved) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  Both both(&pair, request);
  ASSERT_TRUE(pair.Present(request, both.prefill.ticket).ok());
  ASSERT_TRUE(both.decode.Wait().ok());
  EXPECT_EQ(both.decode.reserved.blocks(), 3u);
  EXPECT_EQ(both.decode.reserved.held_blocks(), 0u);
  EXPECT_EQ(both.decode.fetched.blocks(), 3u);
  EXPECT_EQ(both.decode.fetched.bytes(), 3 * pair.decode_model()->kv_layout().block_bytes());
  EXPECT_EQ(both.decode.fetched.transport(), "loopback");
  ASSERT_EQ(both.decode.fetched.first_token_ids_size(), 1);
  EXPECT_EQ(both.decode.fetched.first_token_ids(0), both.prefill.first_tokens[0].token_id());
  EXPECT_EQ(both.decode.done.num_steps(), 7u);
  EXPECT_NE(pair.DecodeMetrics().find("baton_kv_received_bytes_total{transport=\"loopback\"}"), std::string::npos);
}

TEST(DecodeServiceTest, BlocksThatDecodeHoldsAreNotSent) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 40);
  EXPECT_EQ(pair.Generate(request), pair.Oracle(request));
  auto again = request;
  again.set_request_id("b");
  again.add_prompt_token_ids(5);
  Both both(&pair, again);
  ASSERT_TRUE(pair.Present(again, both.prefill.ticket).ok());
  ASSERT_TRUE(both.decode.Wait().ok());
  EXPECT_EQ(both.decode.reserved.blocks(), 6u);
  EXPECT_EQ(both.decode.reserved.held_blocks(), 5u);
  EXPECT_EQ(both.decode.fetched.blocks(), 1u);
  // Nothing at all but the first tokens moves for the same prompt again.
  auto same = request;
  same.set_request_id("c");
  EXPECT_EQ(pair.Generate(same), pair.Oracle(same));
  EXPECT_NE(pair.PrefillMetrics().find("baton_tickets_ended_total{how=\"fetched\"} 3"), std::string::npos);
}

// The transfer overlaps with prefill: what is sealed is there before the last chunk is computed.
TEST(DecodeServiceTest, TheFetchRunsWhilePrefillComputes) {
  WorkerPair pair({.max_batch_tokens = 16});
  const auto request = MakePrefill("a", 100);
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  pair.prefill_gate()->Close();
  WorkerPair::PrefillCall prefill(&pair, request);
  ASSERT_TRUE(prefill.AwaitTicket());
  ASSERT_TRUE(pair.Present(request, prefill.ticket).ok());
  pair.prefill_gate()->AwaitArrival();
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (pair.exporter()->counters().in_flight == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(pair.exporter()->counters().in_flight, 1u) << "claimed in the first of seven chunks";
  pair.prefill_gate()->Open();
  EXPECT_TRUE(decode.Wait().ok());
  EXPECT_TRUE(prefill.Wait().ok());
  EXPECT_EQ(prefill.prefilled.num_chunks(), 7u);
}

TEST(DecodeServiceTest, ARequestThatEndsWithTokenZeroNeverRunsAStep) {
  WorkerPair pair;
  auto request = MakePrefill("a", 19);
  request.mutable_sampling()->set_max_tokens(1);
  EXPECT_EQ(pair.Generate(request), pair.Oracle(request));
  EXPECT_EQ(pair.decode_service()->load().steps(), 0u);
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, WithoutAGoNothingRunsAndEndedChoicesNever) {
  WorkerPair pair;
  auto request = MakePrefill("a", 19);
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_temperature(1);
  auto matching = WorkerPair::Matching(request);
  matching.set_wait_for_go(true);
  WorkerPair::DecodeCall decode(&pair, matching);
  ASSERT_TRUE(decode.AwaitReserved());
  WorkerPair::PrefillCall prefill(&pair, request);
  ASSERT_TRUE(prefill.AwaitTicket());
  ASSERT_TRUE(pair.Present(request, prefill.ticket).ok());
  ASSERT_TRUE(prefill.Wait().ok()) << "fetched";
  EXPECT_EQ(pair.decode_service()->load().running(), 0u);
  v1::UpdateDecodeRequest go;
  go.set_request_id("a");
  go.set_epoch(1);
  go.set_go(true);
  go.add_ended_choices(0);
  ASSERT_TRUE(pair.Update(go).ok());
  EXPECT_TRUE(decode.Wait().ok());
  const auto oracle = pair.Oracle(request);
  std::vector<int32_t> ids = {prefill.first_tokens[1].token_id()};
  for (const auto& token : decode.tokens) {
    EXPECT_EQ(token.choice_index(), 1u);
    ids.push_back(token.token_id());
  }
  EXPECT_EQ(ids, oracle[1]);
  EXPECT_EQ(pair.Update(go).error_code(), grpc::StatusCode::NOT_FOUND) << "it does not run any more";
}

TEST(DecodeServiceTest, ATicketWorksOnce) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  Both both(&pair, request);
  ASSERT_TRUE(pair.Present(request, both.prefill.ticket).ok());
  EXPECT_TRUE(both.decode.Wait().ok());
  WorkerPair::DecodeCall again(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(again.AwaitReserved());
  EXPECT_TRUE(pair.Present(request, both.prefill.ticket).ok()) << "in order, but used up";
  const grpc::Status status = again.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
  EXPECT_TRUE(again.tokens.empty());
}

TEST(DecodeServiceTest, WrongTicketsAreRefusedAndEndTheCall) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 19);
  WorkerPair::PrefillCall prefill(&pair, request);
  ASSERT_TRUE(prefill.AwaitPrefilled());
  const auto expect = [&](const char* what, grpc::StatusCode code, const std::function<void(v1::Ticket*)>& spoil,
                          const std::function<void(v1::PrefillRequest*)>& other = nullptr) {
    v1::PrefillRequest asked = request;
    if (other) other(&asked);
    WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(asked));
    ASSERT_TRUE(decode.AwaitReserved()) << what;
    v1::Ticket ticket = prefill.ticket;
    if (spoil) spoil(&ticket);
    const grpc::Status presented = pair.Present(asked, ticket);
    EXPECT_EQ(presented.error_code(), code) << what << ": " << presented.error_message();
    EXPECT_EQ(decode.Wait().error_code(), code) << what;
    EXPECT_TRUE(decode.tokens.empty()) << what;
    EXPECT_EQ(pair.decode_service()->load().ledger().leased(), 0u) << what;
  };
  const auto no_change = [](v1::Ticket*) {};
  expect("none", grpc::StatusCode::INVALID_ARGUMENT, [](auto* t) { t->Clear(); });
  expect("forged", grpc::StatusCode::PERMISSION_DENIED, [](auto* t) { (*t->mutable_mac())[0] ^= 1; });
  expect("tampered", grpc::StatusCode::PERMISSION_DENIED, [](auto* t) { t->set_lease_ms(29999); });
  expect("another request's", grpc::StatusCode::PERMISSION_DENIED, no_change, [](auto* r) { r->set_request_id("b"); });
  expect("another epoch's", grpc::StatusCode::PERMISSION_DENIED, no_change, [](auto* r) { r->set_epoch(2); });
  expect("another length", grpc::StatusCode::INVALID_ARGUMENT, no_change, [](auto* r) { r->add_prompt_token_ids(1); });
  expect("another model's", grpc::StatusCode::FAILED_PRECONDITION, [&](auto* t) {
    t->mutable_fingerprint()->set_weights(std::string(64, 'a'));
    kvtransfer::SignTicket(pair.key(), t);
  });
  expect("another layout's", grpc::StatusCode::FAILED_PRECONDITION, [&](auto* t) {
    t->mutable_layout()->set_num_kv_heads(t->layout().num_kv_heads() * 2);
    kvtransfer::SignTicket(pair.key(), t);
  });
  EXPECT_EQ(pair.Present(request, prefill.ticket).error_code(), grpc::StatusCode::NOT_FOUND) << "for no call";
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  EXPECT_TRUE(pair.Present(request, prefill.ticket).ok());
  EXPECT_TRUE(decode.Wait().ok()) << "the ticket itself is still good";
}

TEST(DecodeServiceTest, CancelledWhileDecodingFreesAll) {
  WorkerPair pair;
  auto request = MakePrefill("a", 60);
  request.mutable_sampling()->set_max_tokens(400);
  request.mutable_sampling()->set_n(3);
  Both both(&pair, request);
  pair.decode_gate()->Close();
  ASSERT_TRUE(pair.Present(request, both.prefill.ticket).ok());
  pair.decode_gate()->AwaitArrival();
  both.decode.Cancel();
  EXPECT_EQ(both.decode.Wait().error_code(), grpc::StatusCode::CANCELLED);
  pair.decode_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, DeadlineWhileDecodingFreesAll) {
  WorkerPair pair;
  auto request = MakePrefill("a", 60);
  request.mutable_sampling()->set_max_tokens(400);
  pair.decode_gate()->Close();
  Both both(&pair, request, absl::Milliseconds(800));
  (void)pair.Present(request, both.prefill.ticket);
  EXPECT_EQ(both.decode.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  pair.decode_gate()->Open();
  both.prefill.Cancel();  // where the deadline came before the ticket did
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, AbandonedWithRoomAndWithoutATicketFreesAll) {
  WorkerPair pair;
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(MakePrefill("a", 60)));
  ASSERT_TRUE(decode.AwaitReserved());
  EXPECT_EQ(pair.decode_service()->load().ledger().leased(), 8u);
  decode.Cancel();
  EXPECT_EQ(decode.Wait().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, APrefillThatIsCancelledEndsTheFetch) {
  WorkerPair pair({.max_batch_tokens = 16});
  const auto request = MakePrefill("a", 100);
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  pair.prefill_gate()->Close();
  WorkerPair::PrefillCall prefill(&pair, request);
  ASSERT_TRUE(prefill.AwaitTicket());
  ASSERT_TRUE(pair.Present(request, prefill.ticket).ok());
  prefill.Cancel();
  const grpc::Status status = decode.Wait();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(decode.tokens.empty());
  pair.prefill_gate()->Open();
  EXPECT_TRUE(pair.AwaitQuiet());
}

// The fetch failed because the prefill worker went; with its UNAVAILABLE the router took the decode worker for dead.
TEST(DecodeServiceTest, AFetchThatItsPeerBreaksOffIsNotThisWorkersAbsence) {
  WorkerPair pair({.max_batch_tokens = 16});
  const auto request = MakePrefill("a", 100);
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request));
  ASSERT_TRUE(decode.AwaitReserved());
  pair.prefill_gate()->Close();
  WorkerPair::PrefillCall prefill(&pair, request);
  ASSERT_TRUE(prefill.AwaitTicket());
  ASSERT_TRUE(pair.Present(request, prefill.ticket).ok());
  pair.transport_server()->Shutdown();
  const grpc::Status status = decode.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
  EXPECT_NE(status.error_message().find("prefill worker prefill-0"), std::string::npos) << status.error_message();
  EXPECT_TRUE(decode.tokens.empty());
  prefill.Cancel();
  pair.prefill_gate()->Open();
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
  WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(MakePrefill("a", 60)), absl::Milliseconds(60));
  EXPECT_EQ(decode.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(decode.AwaitReserved());
  leases.clear();
}

// After a turn, the prefill side has the KV of what decode computed: the next turn computes its new tokens only.
TEST(DecodeServiceTest, TheNextTurnFindsItsWholeHistory) {
  WorkerPair pair({.history = true});
  auto request = MakePrefill("a", 40);
  request.mutable_sampling()->set_max_tokens(40);
  request.mutable_sampling()->set_ignore_eos(true);
  Both both(&pair, request);
  ASSERT_TRUE(pair.Present(request, both.prefill.ticket).ok());
  ASSERT_TRUE(both.decode.Wait().ok());
  ASSERT_TRUE(both.decode.done.has_history());
  const v1::Ticket& history = both.decode.done.history();
  EXPECT_EQ(history.num_tokens(), 72u);  // of 79 that were computed, in blocks of 8
  std::vector<int32_t> ids(request.prompt_token_ids().begin(), request.prompt_token_ids().end());
  ids.push_back(both.prefill.first_tokens[0].token_id());
  for (const auto& token : both.decode.tokens) ids.push_back(token.token_id());
  ASSERT_EQ(ids.size(), 80u);
  auto next = MakePrefill("b", 1);
  next.mutable_prompt_token_ids()->Assign(ids.begin(), ids.end());
  next.add_prompt_token_ids(9);
  const std::vector<int32_t> named(ids.begin(), ids.begin() + 72);
  v1::ImportHistoryResponse response;
  // Wrong ones first: none of them may use the ticket up or change what is cached.
  auto other = request;
  other.set_request_id("z");
  EXPECT_EQ(pair.ImportHistory(other, named, history, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(pair.ImportHistory(request, ids, history, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::Ticket forged = history;
  forged.set_num_tokens(64);
  EXPECT_EQ(pair.ImportHistory(request, named, forged, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status imported = pair.ImportHistory(request, named, history, &response);
  ASSERT_TRUE(imported.ok()) << imported.error_message();
  EXPECT_EQ(response.blocks(), 4u) << "the prompt's five are cached already";
  EXPECT_EQ(pair.ImportHistory(request, named, history, &response).error_code(), grpc::StatusCode::ABORTED) << "once";
  ASSERT_TRUE(pair.AwaitQuiet());
  WorkerPair::PrefillCall second(&pair, next);
  ASSERT_TRUE(second.AwaitPrefilled());
  EXPECT_EQ(second.prefilled.cached_tokens(), 72u);
  second.Cancel();
  (void)second.Wait();
  next.set_request_id("c");
  EXPECT_EQ(pair.Generate(next), pair.Oracle(next)) << "and the answer is the same";
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
        const absl::Duration patience = absl::Microseconds(rng() % 20000);
        int events = 0;
        WorkerPair::DecodeCall decode(&pair, WorkerPair::Matching(request), absl::Microseconds(500) + patience,
                                      [&, cancel = i % 3 == 1](grpc::ClientContext* c) {
                                        if (cancel && ++events == 3) c->TryCancel();
                                      });
        if (i % 5 != 0 && !decode.AwaitReserved()) continue;
        WorkerPair::PrefillCall prefill(&pair, request, i % 3 == 0 ? patience / 4 : absl::Seconds(60));
        if (!prefill.AwaitTicket()) continue;
        (void)pair.Present(request, prefill.ticket);
        (void)decode.Wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, DrainRefusesNewAndFinishesWhatWasPromised) {
  WorkerPair pair;
  const auto request = MakePrefill("a", 30);
  Both both(&pair, request);
  pair.decode_service()->Drain();
  WorkerPair::DecodeCall late(&pair, WorkerPair::Matching(MakePrefill("b", 30)));
  EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(pair.Present(request, both.prefill.ticket).ok());
  EXPECT_TRUE(both.decode.Wait().ok());
  EXPECT_EQ(both.decode.tokens.size(), 7u);
}

v1::DecodeRequest Local(const v1::PrefillRequest& request) {
  v1::DecodeRequest local = WorkerPair::Matching(request);
  local.set_local_prefill(true);
  local.set_wait_for_go(false);
  return local;
}

std::vector<std::vector<int32_t>> IdsOf(const WorkerPair::DecodeCall& call, int n) {
  std::vector<std::vector<int32_t>> ids(n);
  for (const v1::SampledToken& token : call.tokens) {
    EXPECT_EQ(token.token_index(), ids[token.choice_index()].size());
    ids[token.choice_index()].push_back(token.token_id());
  }
  return ids;
}

TEST(DecodeServiceTest, SameTokensWhenItComputesThePromptItself) {
  WorkerPair pair;
  for (int i = 300; i < 330; ++i) {
    const auto request = RandomRequest(i);
    WorkerPair::DecodeCall call(&pair, Local(request));
    ASSERT_TRUE(call.Wait().ok());
    EXPECT_EQ(IdsOf(call, request.sampling().n()), pair.Oracle(request)) << request.ShortDebugString();
    EXPECT_TRUE(call.has_done);
    EXPECT_FALSE(call.has_fetched);
  }
  EXPECT_NE(pair.PrefillMetrics().find("baton_tickets_ended_total{how=\"fetched\"} 0"), std::string::npos);
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, CancellingALocalPrefillFreesAll) {
  WorkerPair pair({.max_batch_tokens = 16});
  pair.decode_gate()->Close();
  auto request = MakePrefill("a", 100);
  request.mutable_sampling()->set_max_tokens(400);
  request.mutable_sampling()->set_ignore_eos(true);
  WorkerPair::DecodeCall call(&pair, Local(request));
  pair.decode_gate()->AwaitArrival();
  call.Cancel();
  pair.decode_gate()->Open();
  EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(pair.AwaitQuiet());
}

TEST(DecodeServiceTest, ALocalPrefillOfAnEndedChoiceThatIsNotThereIsRefused) {
  WorkerPair pair;
  v1::DecodeRequest request = Local(MakePrefill("a", 10));
  request.add_ended_choices(1);
  WorkerPair::DecodeCall call(&pair, request);
  EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(pair.AwaitQuiet());
}

}  // namespace
}  // namespace baton::testing
