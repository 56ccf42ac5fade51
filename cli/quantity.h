// Numbers as people write them: "80GB", "3.35 TB/s", "1979T", "128K", "8xh100". Exact: no floating point in parsing.
#ifndef BATON_CLI_QUANTITY_H_
#define BATON_CLI_QUANTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

// Every parser returns INVALID_ARGUMENT that names `flag`, quotes the text and gives an example.

// Bytes: "80GB" (decimal), "80GiB", "80e9" is not accepted; a bare number is bytes. Case does not matter.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view flag, absl::string_view text);
// Bytes per second: as bytes, with or without "/s".
absl::StatusOr<uint64_t> ParseBandwidth(absl::string_view flag, absl::string_view text);
// Floating point operations per second: "1979T", "1979TFLOP/s", "989 TFLOPS", "1.2P"; a bare number is FLOP/s.
absl::StatusOr<uint64_t> ParseFlops(absl::string_view flag, absl::string_view text);
// Tokens: "128K" is 131,072 and "1M" is 1,048,576 as the field uses the words; a bare number is itself.
absl::StatusOr<uint64_t> ParseTokens(absl::string_view flag, absl::string_view text);

// 516096 -> "516,096".
std::string WithCommas(uint64_t n);
// Decimal units, `digits` after the point: FormatBytes(67645734912, 1) is "67.6 GB". Rounds half up, exactly.
std::string FormatBytes(uint64_t bytes, int digits);
// A rate in thousandths of a unit: FormatMilli(66172, 1) is "66.2".
std::string FormatMilli(uint64_t thousandths, int digits);
// FLOP or FLOP/s with a decimal prefix: "811.7 GFLOP".
std::string FormatFlops(uint64_t flops, int digits);

}  // namespace baton::cli

#endif  // BATON_CLI_QUANTITY_H_
