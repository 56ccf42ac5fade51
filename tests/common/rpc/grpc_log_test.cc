#include "common/rpc/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>

#include <string>

#include "absl/strings/str_split.h"

namespace baton::rpc {
namespace {

TEST(GrpcLogTest, AFloodOfDamagedHeadersIsNoFloodOfLines) {
  TakeGrpcLogs();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100'000; ++i) {
    gpr_log("src/core/hpack_parser.cc", 1218, GPR_LOG_SEVERITY_ERROR, "Error parsing metadata: key=%s value=%s", "authorization",
            "Bearer secret");
  }
  gpr_log("src/core/other.cc", 7, GPR_LOG_SEVERITY_ERROR, "another place");
  const std::string said = testing::internal::GetCapturedStderr();
  int lines = 0;
  for (const absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
    lines += line.find("hpack_parser.cc:1218") != absl::string_view::npos;
  }
  EXPECT_EQ(lines, kMaxGrpcLinesPerMinute) << said.substr(0, 2000);
  EXPECT_THAT(said, testing::HasSubstr("key=authorization"));
  EXPECT_THAT(said, testing::Not(testing::HasSubstr("secret")));
  EXPECT_THAT(said, testing::HasSubstr("another place"));
}

}  // namespace
}  // namespace baton::rpc
