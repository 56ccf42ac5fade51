#include "common/status.h"

#include <gtest/gtest.h>

#include "proto/google_rpc.pb.h"

namespace baton {
namespace {

TEST(StatusTest, EveryCodeHasARule) {
  for (int code = 0; code <= 16; ++code) {
    EXPECT_EQ(RuleFor(static_cast<absl::StatusCode>(code)).code, static_cast<absl::StatusCode>(code));
  }
  EXPECT_EQ(RuleFor(static_cast<absl::StatusCode>(99)).code, absl::StatusCode::kUnknown);
}

TEST(StatusTest, TheRouterRetriesOnlyWhatAnotherPairCanDo) {
  EXPECT_EQ(ActionFor(absl::OkStatus()), RouterAction::kNone);
  EXPECT_EQ(ActionFor(absl::UnavailableError("")), RouterAction::kRetryElsewhere);
  EXPECT_EQ(ActionFor(absl::AbortedError("")), RouterAction::kRetryElsewhere);
  EXPECT_EQ(ActionFor(absl::DataLossError("")), RouterAction::kRetryElsewhere);
  EXPECT_EQ(ActionFor(absl::ResourceExhaustedError("")), RouterAction::kShed);
  for (const absl::Status& s : {absl::InvalidArgumentError(""), absl::CancelledError(""), absl::NotFoundError(""),
                                absl::DeadlineExceededError("")}) {
    EXPECT_EQ(ActionFor(s), RouterAction::kFail) << s;
  }
}

TEST(StatusTest, DetailsSurviveTheWire) {
  absl::Status status = WithReason(InvalidField("sampling.top_p", "2 is not in (0, 1]"), "OUT_OF_RANGE");
  status = WithRetryAfter(status, absl::Milliseconds(1500));
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(wire.error_details()));
  EXPECT_EQ(rich.code(), 3);
  EXPECT_EQ(rich.details_size(), 3);
  EXPECT_EQ(rich.message(), "sampling.top_p: 2 is not in (0, 1]");
  const absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ(back, status);
  EXPECT_EQ(FieldOf(back), "sampling.top_p");
  EXPECT_EQ(ReasonOf(back), "OUT_OF_RANGE");
  EXPECT_EQ(RetryAfterOf(back), absl::Milliseconds(1500));
}

TEST(StatusTest, PlainErrorsHaveNoDetails) {
  EXPECT_EQ(ToGrpcStatus(absl::AbortedError("x")).error_details(), "");
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_EQ(FieldOf(absl::AbortedError("x")), "");
  EXPECT_EQ(RetryAfterOf(absl::AbortedError("x")), std::nullopt);
}

TEST(StatusTest, HostileStatusesAreTamed) {
  // 31: the largest number that the enumeration can hold at all.
  const absl::Status odd = FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(31), "m", "\xff\xff"));
  EXPECT_EQ(odd.code(), absl::StatusCode::kUnknown);
  // Cut at a code point, well under the metadata limit.
  std::string text;
  while (text.size() < 5000) text += "\xe2\x82\xac";
  const grpc::Status cut = ToGrpcStatus(absl::InternalError(text));
  EXPECT_LE(cut.error_message().size(), 2048u);
  EXPECT_EQ(cut.error_message().size() % 3, 0u);
  const grpc::Status huge = ToGrpcStatus(InvalidField("f", std::string(20000, 'x')));
  EXPECT_LE(huge.error_details().size(), 7u << 10);
}

}  // namespace
}  // namespace baton
