#include "common/inbox.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <thread>

namespace baton {
namespace {

TEST(InboxTest, RefusesWhenFullAndKeepsTheItem) {
  Inbox<std::unique_ptr<int>> inbox(1);
  EXPECT_TRUE(inbox.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(inbox.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**inbox.Pop(), 1);
  EXPECT_TRUE(inbox.TryPush(std::move(second)));
}

TEST(InboxTest, CloseDrainsThenEnds) {
  Inbox<int> inbox(4);
  inbox.TryPush(1);
  inbox.Close();
  EXPECT_FALSE(inbox.TryPush(2));
  EXPECT_EQ(inbox.Pop(), 1);
  EXPECT_EQ(inbox.Pop(), std::nullopt);
  EXPECT_TRUE(inbox.closed());
}

TEST(InboxTest, PopTimesOut) {
  Inbox<int> inbox(4);
  EXPECT_EQ(inbox.Pop(absl::Milliseconds(1)), std::nullopt);
  EXPECT_FALSE(inbox.closed());
}

TEST(InboxTest, PopAllTakesAll) {
  Inbox<int> inbox(4);
  inbox.TryPush(1);
  inbox.TryPush(2);
  EXPECT_EQ(inbox.PopAll(), (std::vector<int>{1, 2}));
  EXPECT_EQ(inbox.size(), 0u);
}

TEST(InboxTest, ManyProducersOneConsumerInOrderPerProducer) {
  Inbox<std::pair<int, int>> inbox(16);
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&inbox, p] {
      for (int i = 0; i < 1000;) {
        if (inbox.TryPush({p, i})) {
          ++i;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  std::map<int, int> next;
  for (int i = 0; i < 4000; ++i) {
    const auto item = inbox.Pop();
    ASSERT_TRUE(item.has_value());
    EXPECT_EQ(item->second, next[item->first]++);
  }
  for (auto& producer : producers) producer.join();
}

}  // namespace
}  // namespace baton
