#include "cli/quantity.h"

#include <gtest/gtest.h>

#include "cli/checked.h"

namespace baton::cli {
namespace {

TEST(QuantityTest, Bytes) {
  EXPECT_EQ(ParseBytes("--memory", "80GB").value(), 80000000000u);
  EXPECT_EQ(ParseBytes("--memory", " 80 gb ").value(), 80000000000u);
  EXPECT_EQ(ParseBytes("--memory", "1GiB").value(), 1073741824u);
  EXPECT_EQ(ParseBytes("--memory", "1.5G").value(), 1500000000u);
  EXPECT_EQ(ParseBytes("--memory", "42").value(), 42u);
}

TEST(QuantityTest, Rates) {
  EXPECT_EQ(ParseBandwidth("--bandwidth", "3.35TB/s").value(), 3350000000000u);
  EXPECT_EQ(ParseBandwidth("--bandwidth", "3.35 tb").value(), 3350000000000u);
  EXPECT_EQ(ParseFlops("--flops", "1979TFLOP/s").value(), 1979000000000000u);
  EXPECT_EQ(ParseFlops("--flops", "989 TFLOPS").value(), 989000000000000u);
  EXPECT_EQ(ParseFlops("--flops", "1.2P").value(), 1200000000000000u);
}

TEST(QuantityTest, TokensAreBinaryThousands) {
  EXPECT_EQ(ParseTokens("--context", "128K").value(), 131072u);
  EXPECT_EQ(ParseTokens("--context", "128000").value(), 128000u);
  EXPECT_EQ(ParseTokens("--context", "1M").value(), 1048576u);
}

TEST(QuantityTest, BadTextNamesTheFlagAndAnExample) {
  for (const char* text : {"", "GB", "-1GB", "0", "0GB", "1e9", "80XB", "1.2.3GB", "99999999999999999999",
                           "1.1234567890GB", "20000000000TB", "nan", "inf", "/s"}) {
    const absl::Status status = ParseBytes("--memory", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("--memory 80GB"), absl::string_view::npos) << status;
  }
  EXPECT_FALSE(ParseBandwidth("--bandwidth", "/s").ok());
  EXPECT_FALSE(ParseFlops("--flops", "flops").ok());
}

TEST(QuantityTest, Formats) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(516096), "516,096");
  EXPECT_EQ(WithCommas(UINT64_MAX), "18,446,744,073,709,551,615");
  EXPECT_EQ(FormatBytes(67645734912, 0), "68 GB");
  EXPECT_EQ(FormatBytes(67645734912, 1), "67.6 GB");
  EXPECT_EQ(FormatBytes(640000000000, 0), "640 GB");
  EXPECT_EQ(FormatBytes(98362432, 1), "98.4 MB");
  EXPECT_EQ(FormatBytes(12, 1), "12 B");
  EXPECT_EQ(FormatMilli(66172, 1), "66.2");
  EXPECT_EQ(FormatMilli(66950, 1), "67.0");
  EXPECT_EQ(FormatMilli(1005, 2), "1.01");
  EXPECT_EQ(FormatMilli(1999, 0), "2");
  EXPECT_EQ(FormatFlops(15832000000000000, 1), "15.8 PFLOP");
  EXPECT_EQ(FormatBytes(UINT64_MAX, 1), "18,446.7 PB");
}

TEST(CheckedTest, RemembersOverflow) {
  EXPECT_TRUE((Checked(3) * 4 + 5).ok());
  EXPECT_EQ((Checked(3) * 4 + 5).value(), 17u);
  EXPECT_FALSE((Checked(UINT64_MAX) + 1).ok());
  EXPECT_FALSE((Checked(UINT64_MAX) * 2 - 7).ok());
  EXPECT_FALSE((Checked(1) - 2).ok());
  EXPECT_FALSE(Checked::MulDiv(1, 1, 0).ok());
  EXPECT_EQ(Checked::MulDiv(UINT64_MAX, UINT64_MAX, UINT64_MAX).value(), UINT64_MAX);
  EXPECT_FALSE(Checked::MulDiv(UINT64_MAX, 3, 2).ok());
  EXPECT_EQ(Checked::MulDiv(7, 1, 2, true).value(), 4u);
  EXPECT_EQ(Checked::MulDiv(7, 1, 2).value(), 3u);
}

}  // namespace
}  // namespace baton::cli
