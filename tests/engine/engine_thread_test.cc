// The engine on its own thread, called from several others.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "common/mutex.h"
#include "engine/engine.h"
#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

// Waits without a limit of its own: a hang is caught by the test's timeout, which says which test it was.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

struct ThreadedEngine {
  explicit ThreadedEngine(EngineOptions options) {
    fakes::HashModel::Options model_options;
    model_options.num_blocks = options.num_blocks;
    model = std::make_unique<fakes::HashModel>(model_options);
    auto created = Engine::Create(options, model.get(), Clock::Real());
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  void ExpectAllFreeWhenIdle() {
    Await([&] { return engine->Idle(); });
    const kvcache::Ledger ledger = engine->load().ledger;
    EXPECT_TRUE(ledger.Balanced());
    EXPECT_EQ(ledger.free + ledger.cached, ledger.total);
  }
  std::unique_ptr<fakes::HashModel> model;
  std::unique_ptr<Engine> engine;
};

// The accounting identity after 1,000 requests of which a third are cancelled at random moments.
TEST(EngineThreadTest, ThousandRequestsWithAThirdCancelledLeaveEverythingFree) {
  EngineOptions options = Roomy();
  options.num_blocks = 60;
  options.max_batch_tokens = 48;
  options.max_queue = 2000;
  ThreadedEngine test(options);
  constexpr int kThreads = 4;
  constexpr int kEach = 250;
  struct Item {
    Request request;
    std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
    bool cancelled = false;
  };
  std::vector<std::vector<Item>> items(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(t);
      items[t].resize(kEach);
      std::vector<Item*> to_cancel;
      for (int i = 0; i < kEach; ++i) {
        Item& item = items[t][i];
        item.request = RandomRequest(rng, std::to_string(t) + "." + std::to_string(i), 101, 24, 12, 2);
        if (rng() % 2 == 0) {
          test.engine->Submit(item.request, item.sink);
        } else {
          test.engine->SubmitPrefill(item.request, item.sink);
        }
        item.cancelled = rng() % 3 == 0;
        if (item.cancelled) to_cancel.push_back(&item);
        if (rng() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 500));
        while (to_cancel.size() > rng() % 8) {
          test.engine->Cancel(to_cancel.front()->request.request_id);
          to_cancel.erase(to_cancel.begin());
        }
        // Leases come and go on this thread while the engine runs.
        for (int k = 0; k <= i; ++k) {
          if (items[t][k].sink->done()) items[t][k].sink->lease.Reset();
        }
        EXPECT_TRUE(test.engine->load().ledger.Balanced());
      }
      for (Item* item : to_cancel) test.engine->Cancel(item->request.request_id);
      for (Item& item : items[t]) {
        Await([&] { return item.sink->done(); });
        item.sink->lease.Reset();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  int ok = 0;
  int cancelled = 0;
  for (auto& list : items) {
    for (Item& item : list) {
      ok += item.sink->status.ok();
      cancelled += item.sink->status.code() == absl::StatusCode::kCancelled;
      EXPECT_TRUE(item.sink->status.ok() || (item.cancelled && absl::IsCancelled(item.sink->status)))
          << item.sink->status;
    }
  }
  EXPECT_GE(ok, 600);
  EXPECT_GT(cancelled, 20);
  test.ExpectAllFreeWhenIdle();
}

// Prefill on one engine, decode on another, the copy in between, with all calls from other threads.
TEST(EngineThreadTest, HandOverBetweenEnginesEqualsOne) {
  EngineOptions options = Roomy();
  options.num_blocks = 80;
  ThreadedEngine prefill(options);
  options.num_blocks = 60;
  options.max_batch_tokens = 5;
  ThreadedEngine decode(options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(50 + t);
      for (int i = 0; i < 15; ++i) {
        Request request = RandomRequest(rng, std::to_string(t) + "." + std::to_string(i), 101, 40, 24, 3);
        auto room_done = std::make_shared<std::atomic<bool>>(false);
        auto room = std::make_shared<kvcache::BlockLease>();
        decode.engine->ReserveKv(request.request_id, static_cast<int>(request.prompt_token_ids.size()),
                                 absl::InfiniteFuture(), [=](absl::StatusOr<kvcache::BlockLease> lease) {
                                   EXPECT_TRUE(lease.ok()) << lease.status();
                                   if (lease.ok()) *room = *std::move(lease);
                                   *room_done = true;
                                 });
        auto first = std::make_shared<RecordingSink>();
        prefill.engine->SubmitPrefill(request, first);
        Await([&] { return first->done() && *room_done; });
        ASSERT_TRUE(first->status.ok()) << first->status;
        Answer both = first->answer;
        if (!first->lease.empty()) {
          for (size_t b = 0; b < room->blocks().size(); ++b) {
            std::memcpy(room->bytes(b).data(), first->lease.bytes(b).data(), room->bytes(b).size());
          }
          first->lease.Reset();
          auto second = std::make_shared<RecordingSink>(1);
          decode.engine->SubmitDecode(request, std::move(*room), first->tokens, second);
          Await([&] { return second->done(); });
          ASSERT_TRUE(second->status.ok()) << second->status;
          for (auto& [choice, ids] : second->answer.token_ids) {
            both.token_ids[choice].insert(both.token_ids[choice].end(), ids.begin(), ids.end());
          }
        }
        room->Reset();
        EXPECT_EQ(both.token_ids, RunAlone(request).token_ids);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  prefill.ExpectAllFreeWhenIdle();
  decode.ExpectAllFreeWhenIdle();
}

// A reservation that waits is granted when a lease is dropped on another thread: nobody else would wake the engine.
TEST(EngineThreadTest, ReturnedLeaseWakesTheEngine) {
  EngineOptions options = Roomy();
  options.num_blocks = 4;
  ThreadedEngine test(options);
  std::atomic<int> granted{0};
  kvcache::BlockLease leases[2];
  for (int i = 0; i < 2; ++i) {
    test.engine->ReserveKv("r" + std::to_string(i), 12, absl::InfiniteFuture(), [&, i](auto lease) {
      ASSERT_TRUE(lease.ok());
      leases[i] = *std::move(lease);
      ++granted;
    });
  }
  Await([&] { return granted == 1; });
  EXPECT_FALSE(test.engine->Idle());
  leases[0].Reset();
  Await([&] { return granted == 2; });
  EXPECT_FALSE(test.engine->Idle());  // still leased
  leases[1].Reset();
  test.ExpectAllFreeWhenIdle();
}

TEST(EngineThreadTest, OpenWorkEndsWhenTheEngineGoesAndLeasesOutliveIt) {
  EngineOptions options = Roomy();
  options.max_sequences = 1;
  auto test = std::make_unique<ThreadedEngine>(options);
  std::mt19937_64 rng(1);
  auto prefilled = std::make_shared<RecordingSink>();
  Request request = RandomRequest(rng, "p", 101, 20, 20, 1);
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids.clear();
  test->engine->SubmitPrefill(request, prefilled);
  Await([&] { return prefilled->done(); });
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 50; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    request.request_id = std::to_string(i);
    request.sampling.max_tokens = 400;
    test->engine->Submit(request, sinks.back());
  }
  test.reset();
  int cancelled = 0;
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->done());
    cancelled += absl::IsCancelled(sink->status);
  }
  EXPECT_GT(cancelled, 0);
  ASSERT_FALSE(prefilled->lease.empty());
  prefilled->lease.bytes(0)[0] = std::byte{1};
  EXPECT_TRUE(prefilled->lease.Valid());
  prefilled->lease.Reset();
}

// A simulated clock wakes nobody; the engine must look at it by itself.
TEST(EngineThreadTest, DeadlineOfASimulatedClockIsSeen) {
  EngineOptions options = Roomy();
  options.num_blocks = 4;
  fakes::HashModel model({});
  SimulatedClock clock;
  auto engine = Engine::Create(options, &model, &clock).value();
  kvcache::BlockLease all;
  std::atomic<bool> granted{false};
  std::atomic<bool> expired{false};
  engine->ReserveKv("all", 16, absl::InfiniteFuture(), [&](auto lease) {
    all = *std::move(lease);
    granted = true;
  });
  engine->ReserveKv("late", 4, clock.Now() + absl::Seconds(5), [&](auto lease) {
    EXPECT_EQ(lease.status().code(), absl::StatusCode::kDeadlineExceeded);
    expired = true;
  });
  Await([&] { return granted.load(); });
  clock.Advance(absl::Seconds(5));
  Await([&] { return expired.load(); });
}

}  // namespace
}  // namespace baton::engine
