// Answers that come by their worker's feed, and leave several tokens a message, through a real router over real gRPC.
#include <atomic>
#include <thread>

#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

using fakes::Pause;
using fakes::Script;
using fakes::ScriptedWorker;
using ::testing::HasSubstr;

constexpr char kText[] = "the quick brown fox jumps over the lazy dog and then some more";

class FeedTest : public RouterFixture {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    StartRouter();
  }
  static Script Long() {
    Script script;
    script.texts = {kText};
    return script;
  }
  static int Length() { return static_cast<int>(sizeof(kText)) - 1; }
  // Until requests go by `worker`'s feed: the first ones find it not open yet.
  ::testing::AssertionResult AwaitFeed(ScriptedWorker* worker) {
    const bool fed = Eventually([&] {
      const Answer answer = Generate(Prompt("hello", 3));
      return answer.status.ok() && answer.Ids(0).size() == 3 && worker->decodes().back().has_feed();
    });
    return fed ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "no feed was opened";
  }
};

TEST_F(FeedTest, AnswersAreTheSameBeforeAndAfterTheFeedIsOpen) {
  AddWorker("p0", "prefill", Long());
  ScriptedWorker* d0 = AddWorker("d0", "decode", Long());
  const Answer before = Generate(Prompt("hello", Length()));
  EXPECT_FALSE(d0->decodes().back().has_feed());
  ASSERT_TRUE(AwaitFeed(d0));
  const Answer after = Generate(Prompt("hello", Length()));
  EXPECT_TRUE(d0->decodes().back().has_feed());
  for (const Answer* answer : {&before, &after}) {
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(answer->text.at(0), kText);
    EXPECT_EQ(answer->summary.timings().decode_queue_ms(), 0.25) << "what comes last";
  }
  const auto decodes = d0->decodes();
  std::set<uint64_t> numbers;
  for (const auto& request : decodes) {
    if (!request.has_feed()) continue;
    EXPECT_TRUE(numbers.insert(request.feed().call()).second) << "a number is used once";
  }
}

TEST_F(FeedTest, AWorkerWithoutFeedsIsServedWithoutThem) {
  Script script = Long();
  script.feeds = false;
  AddWorker("p0", "prefill", script);
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Generate(Prompt("hello", Length()));
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.text.at(0), kText);
    EXPECT_FALSE(d0->decodes().back().has_feed());
  }
}

TEST_F(FeedTest, AFeedThatBreaksMovesItsRequests) {
  AddWorker("p0", "prefill", Long());
  ScriptedWorker* d0 = AddWorker("d0", "decode", Long());
  ASSERT_TRUE(AwaitFeed(d0));
  Script pausing = Long();
  pausing.pause = Pause::kInDecode;
  pausing.pause_after = 10;
  d0->set_script(pausing);
  std::atomic<int> arrived{0};
  std::thread breaker([&] {
    Eventually([&] { return d0->paused() == 1 && arrived == 11; });
    AddWorker("d1", "decode", Long());
    d0->BreakFeeds();
  });
  const Answer answer = Generate(Prompt("hello", Length()), absl::Seconds(30), [&](const v1::GenerateResponse& r) {
    if (r.has_token()) ++arrived;
  });
  breaker.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), kText);
  EXPECT_EQ(answer.tokens.size(), static_cast<size_t>(Length()));
  EXPECT_EQ(answer.summary.decode_worker(), "d1");
  EXPECT_TRUE(Eventually([&] { return d0->open() == 0; })) << "the worker still has the call";
  // It is opened again.
  d0->set_script(Long());
  EXPECT_TRUE(Eventually([&] {
    const size_t had = d0->decodes().size();
    const Answer again = Generate(Prompt("hello", 4));
    const auto decodes = d0->decodes();
    return again.status.ok() && decodes.size() > had && decodes.back().has_feed();
  }));
}

TEST_F(FeedTest, ManyAnswersAtOnceKeepApart) {
  AddWorker("p0", "prefill", Long());
  ScriptedWorker* d0 = AddWorker("d0", "decode", Long());
  ASSERT_TRUE(AwaitFeed(d0));
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        v1::GenerateRequest request = Prompt("hello", Length());
        if (i % 2 == 0) request.set_tokens_per_message(16);
        const Answer answer = Generate(request);
        if (answer.status.ok() && answer.text.at(0) == kText) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 80);
}

TEST_F(FeedTest, TokensThatComeAtOnceShareMessagesWhereTheClientAllowsIt) {
  AddWorker("p0", "prefill", Long());
  ScriptedWorker* d0 = AddWorker("d0", "decode", Long());
  ASSERT_TRUE(AwaitFeed(d0));
  for (const uint32_t most : {0u, 1u, 5u, 16u}) {
    v1::GenerateRequest request = Prompt("hello", Length());
    request.set_tokens_per_message(most);
    size_t joined = 0;
    int largest = 0;
    const Answer answer = Generate(request, absl::Seconds(30), [&](const v1::GenerateResponse& r) {
      if (!r.has_tokens()) return;
      ++joined;
      largest = std::max(largest, r.tokens().tokens_size());
      EXPECT_GT(r.tokens().tokens_size(), 1);
    });
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.text.at(0), kText);
    ASSERT_EQ(answer.tokens.size(), static_cast<size_t>(Length()));
    for (size_t i = 0; i < answer.tokens.size(); ++i) EXPECT_EQ(answer.tokens[i].token_index(), i);
    // All of decode's tokens are there at once.
    EXPECT_EQ(joined > 0, most > 1);
    EXPECT_EQ(largest, most > 1 ? static_cast<int>(most) : 0);
  }
}

TEST_F(FeedTest, MoreThan16TokensAMessageAreRefused) {
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  v1::GenerateRequest request = Prompt();
  request.set_tokens_per_message(17);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("tokens_per_message: 17; at most 16"));
}

}  // namespace
}  // namespace baton::router
