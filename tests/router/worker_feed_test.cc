// A Decode whose events come by one stream and whose end by another.
#include "router/worker_feed.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace baton::router {
namespace {

struct Own : WorkerCall {
  void Cancel() override { ++cancels; }
  int cancels = 0;
};

struct FedCallTest : ::testing::Test {
  FedCallTest() {
    call = std::make_shared<FedCall>(
        [this](std::span<v1::DecodeEvent* const> events) {
          for (v1::DecodeEvent* event : events) {
            EXPECT_TRUE(ends.empty()) << "an event after the end";
            indices.push_back(event->token().token_index());
          }
          if (during) during();
        },
        [this](absl::Status status) { ends.push_back(std::move(status)); });
    call->SetOwn(own);
    call->SetLeave([this] { ++leaves; });
  }
  void Feed(std::vector<uint32_t> tokens) {
    std::vector<v1::DecodeEvent> events(tokens.size());
    std::vector<v1::DecodeEvent*> all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      events[i].mutable_token()->set_token_index(tokens[i]);
      all.push_back(&events[i]);
    }
    call->OnFedEvents(all);
  }
  void SayInFeed(uint64_t number) {
    v1::DecodeEvent event;
    event.mutable_in_feed()->set_events(number);
    call->OnOwnEvent(event);
  }
  void OwnToken(uint32_t index) {
    v1::DecodeEvent event;
    event.mutable_token()->set_token_index(index);
    call->OnOwnEvent(event);
  }

  std::shared_ptr<Own> own = std::make_shared<Own>();
  std::vector<uint32_t> indices;
  std::vector<absl::Status> ends;
  std::function<void()> during;
  int leaves = 0;
  std::shared_ptr<FedCall> call;
};

TEST_F(FedCallTest, TheEndWaitsForWhatIsStillInTheFeed) {
  Feed({1});
  SayInFeed(3);
  call->OnOwnEnd(absl::OkStatus());
  EXPECT_TRUE(ends.empty());
  Feed({2});
  EXPECT_TRUE(ends.empty());
  Feed({3});
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(leaves, 1);
}

TEST_F(FedCallTest, WhatTheFeedBringsFirstDoesNotDelayTheEnd) {
  Feed({1, 2});
  SayInFeed(2);
  EXPECT_TRUE(ends.empty());
  call->OnOwnEnd(absl::AbortedError("x"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kAborted);
  Feed({3});  // of nobody's
  EXPECT_EQ(indices.size(), 2u);
  call->OnFeedBroken(absl::UnavailableError("broke"));
  call->Cancel();
  EXPECT_EQ(ends.size(), 1u);
}

TEST_F(FedCallTest, AConnectionThatBreaksEndsItAtOnce) {
  Feed({1});
  call->OnOwnEnd(absl::UnavailableError("connection reset"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].message(), "connection reset");
}

TEST_F(FedCallTest, AFeedThatBreaksIsTheEndOfItsCalls) {
  Feed({1});
  call->OnFeedBroken(absl::UnavailableError("broke"));
  EXPECT_EQ(own->cancels, 1);
  EXPECT_TRUE(ends.empty()) << "gRPC still has the call";
  call->OnOwnEnd(absl::CancelledError("cancelled"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].message(), "broke");
}

TEST_F(FedCallTest, AFeedThatBreaksBeforeTheLastEventsFailsACallThatHadEndedWell) {
  Feed({1});
  SayInFeed(2);
  call->OnOwnEnd(absl::OkStatus());
  call->OnFeedBroken(absl::UnavailableError("broke"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].message(), "broke");
}

TEST_F(FedCallTest, ACancelDoesNotWaitForAFeedThatIsSilent) {
  SayInFeed(2);
  call->OnOwnEnd(absl::OkStatus());
  EXPECT_TRUE(ends.empty());
  call->Cancel();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(FedCallTest, AWorkerThatDoesNotKnowTheFeedAnswersOnTheCallItself) {
  OwnToken(1);
  call->OnFeedBroken(absl::UnavailableError("broke"));
  EXPECT_EQ(own->cancels, 0);
  OwnToken(2);
  call->OnOwnEnd(absl::OkStatus());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{1, 2}));
}

TEST_F(FedCallTest, NothingEndsWhileEventsAreBeingDelivered) {
  SayInFeed(2);
  during = [this] {
    during = nullptr;
    call->OnOwnEnd(absl::OkStatus());
    call->Cancel();
    EXPECT_TRUE(ends.empty());
  };
  Feed({1, 2});
  EXPECT_EQ(ends.size(), 1u);
}

TEST_F(FedCallTest, ACallThatIsCancelledBeforeItBeganIsCancelledThen) {
  auto late = std::make_shared<FedCall>([](auto) {}, [](absl::Status) {});
  late->OnFeedBroken(absl::UnavailableError("broke"));
  auto its = std::make_shared<Own>();
  late->SetOwn(its);
  EXPECT_EQ(its->cancels, 1);
  late->OnOwnEnd(absl::OkStatus());
}

}  // namespace
}  // namespace baton::router
