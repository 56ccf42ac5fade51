#include "cli/quantity.h"

#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/checked.h"

namespace baton::cli {
namespace {

constexpr int kMaxDecimals = 9;

struct Unit {
  absl::string_view suffix;  // lower case
  uint64_t factor;
};

absl::Status Bad(absl::string_view flag, absl::string_view text, absl::string_view why, absl::string_view example) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " cannot be \"", text.substr(0, 40), "\": ", why,
                                                 ". Write it as in ", flag, " ", example, "."));
}

// [digits][.digits][spaces][suffix], the suffix one of `units` ("" allowed when listed).
absl::StatusOr<uint64_t> Parse(absl::string_view flag, absl::string_view text, std::span<const Unit> units,
                               absl::string_view example) {
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  Checked mantissa;
  uint64_t scale = 1;
  int digits = 0;
  int decimals = 0;
  bool point = false;
  size_t i = 0;
  for (; i < lower.size(); ++i) {
    const char c = lower[i];
    if (c == '.' && !point) {
      point = true;
    } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      if (point && ++decimals > kMaxDecimals) return Bad(flag, text, "too many decimals", example);
      mantissa = mantissa * 10 + static_cast<uint64_t>(c - '0');
      if (point) scale *= 10;
      ++digits;
    } else {
      break;
    }
  }
  if (digits == 0) return Bad(flag, text, "it does not start with a number", example);
  const absl::string_view suffix = absl::StripAsciiWhitespace(absl::string_view(lower).substr(i));
  for (const Unit& unit : units) {
    if (suffix != unit.suffix) continue;
    const Checked value = Checked::MulDiv(mantissa, unit.factor, scale);
    if (!value.ok()) return Bad(flag, text, "the number is too large", example);
    if (value.value() == 0) return Bad(flag, text, "it must be more than zero", example);
    return value.value();
  }
  return Bad(flag, text, absl::StrCat("the unit \"", suffix.substr(0, 20), "\" is unknown"), example);
}

constexpr std::array<Unit, 15> kByteUnits = {{{"", 1},
                                              {"b", 1},
                                              {"kb", 1000},
                                              {"mb", 1000000},
                                              {"gb", 1000000000},
                                              {"tb", 1000000000000},
                                              {"k", 1000},
                                              {"m", 1000000},
                                              {"g", 1000000000},
                                              {"t", 1000000000000},
                                              {"kib", uint64_t{1} << 10},
                                              {"mib", uint64_t{1} << 20},
                                              {"gib", uint64_t{1} << 30},
                                              {"tib", uint64_t{1} << 40},
                                              {"pb", 1000000000000000}}};
constexpr std::array<Unit, 5> kFlopUnits = {
    {{"", 1}, {"g", 1000000000}, {"t", 1000000000000}, {"p", 1000000000000000}, {"m", 1000000}}};
constexpr std::array<Unit, 3> kTokenUnits = {{{"", 1}, {"k", 1024}, {"m", 1048576}}};

std::string Prefixed(uint64_t value, int digits, absl::string_view unit) {
  static constexpr std::array<std::pair<uint64_t, const char*>, 5> kPrefixes = {
      {{1000000000000000, "P"}, {1000000000000, "T"}, {1000000000, "G"}, {1000000, "M"}, {1000, "k"}}};
  for (const auto& [factor, prefix] : kPrefixes) {
    if (value < factor) continue;
    // In thousandths first: value/factor < 10^6 for every prefix, so this cannot overflow.
    const Checked milli = Checked::MulDiv(value, 1000, factor);
    return absl::StrCat(FormatMilli(milli.value(), digits), " ", prefix, unit);
  }
  return absl::StrCat(value, " ", unit);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view flag, absl::string_view text) {
  return Parse(flag, text, kByteUnits, "80GB");
}

absl::StatusOr<uint64_t> ParseBandwidth(absl::string_view flag, absl::string_view text) {
  absl::string_view body = absl::StripAsciiWhitespace(text);
  if (absl::EndsWithIgnoreCase(body, "/s")) body.remove_suffix(2);
  if (body.empty()) return Bad(flag, text, "it does not start with a number", "3.35TB/s");
  return Parse(flag, body, kByteUnits, "3.35TB/s");
}

absl::StatusOr<uint64_t> ParseFlops(absl::string_view flag, absl::string_view text) {
  absl::string_view body = absl::StripAsciiWhitespace(text);
  for (const absl::string_view tail : {"flop/s", "flops/s", "flops", "flop"}) {
    if (absl::EndsWithIgnoreCase(body, tail)) {
      body.remove_suffix(tail.size());
      break;
    }
  }
  return Parse(flag, body, kFlopUnits, "989TFLOP/s");
}

absl::StatusOr<uint64_t> ParseTokens(absl::string_view flag, absl::string_view text) {
  return Parse(flag, text, kTokenUnits, "128K");
}

std::string WithCommas(uint64_t n) {
  std::string digits = absl::StrCat(n);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), 1, ',');
  return digits;
}

std::string FormatMilli(uint64_t thousandths, int digits) {
  uint64_t step = 1000;  // of what one unit of the last printed digit is worth
  for (int i = 0; i < digits && i < 3; ++i) step /= 10;
  const uint64_t rounded = thousandths / step + (thousandths % step * 2 >= step ? 1 : 0);
  if (digits <= 0) return WithCommas(rounded);
  const uint64_t per_unit = 1000 / step;
  std::string fraction = absl::StrCat(rounded % per_unit);
  while (static_cast<int>(fraction.size()) < digits && fraction.size() < 3) fraction.insert(size_t{0}, 1, '0');
  return absl::StrCat(WithCommas(rounded / per_unit), ".", fraction);
}

std::string FormatBytes(uint64_t bytes, int digits) {
  // Terabytes are not used below 10 TB: the chapter says 640 GB, not 0.64 TB.
  if (bytes >= 1000000000 && bytes < 10000000000000) {
    return absl::StrCat(FormatMilli(bytes / 1000000, digits), " GB");
  }
  return Prefixed(bytes, digits, "B");
}

std::string FormatFlops(uint64_t flops, int digits) { return Prefixed(flops, digits, "FLOP"); }

}  // namespace baton::cli
