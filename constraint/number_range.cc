#include "constraint/number_range.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

namespace baton::constraint {
namespace {

// Magnitudes from `low` to `high` (nullptr: no end), for one number of digits before the point after the other.
class Magnitudes {
 public:
  Magnitudes(Builder* builder, const Decimal* low, const Decimal* high, bool integer, State end)
      : builder_(builder), low_(low), high_(high), integer_(integer), end_(end) {}

  void Add(State from) {
    for (int length = 1; length <= kMaxIntegerDigits && builder_->ok(); ++length) {
      const int low_length = low_ == nullptr ? 0 : static_cast<int>(low_->integer.size());
      const int high_length = high_ == nullptr ? kMaxIntegerDigits + 1 : static_cast<int>(high_->integer.size());
      if (length < low_length || length > high_length) continue;
      length_ = length;
      whole_.clear();
      Whole(from, 0, length == low_length, length == high_length);
    }
  }

 private:
  using Key = std::tuple<int, bool, bool>;  // digits so far, and whether they are the bounds' own

  static int Digit(const std::string& digits, int i) {
    return i < static_cast<int>(digits.size()) ? digits[static_cast<size_t>(i)] - '0' : 0;
  }

  // The digits that may come at place i of the bounds' digits.
  template <typename Next>
  void ForDigits(const std::string* low, const std::string* high, int i, int least, const Next& next) {
    const int first = std::max(least, low == nullptr ? 0 : Digit(*low, i));
    const int last = high == nullptr ? 9 : Digit(*high, i);
    for (int d = first; d <= last; ++d) {
      next(d, low != nullptr && d == Digit(*low, i), high != nullptr && d == Digit(*high, i));
    }
  }

  void Whole(State at, int i, bool low, bool high) {
    if (i == length_) return Point(at, low, high);
    const int least = i == 0 && length_ > 1 ? 1 : 0;
    ForDigits(low ? &low_->integer : nullptr, high ? &high_->integer : nullptr, i, least, [&](int d, bool l, bool h) {
      const auto [it, inserted] = whole_.try_emplace({i + 1, l, h}, 0);
      if (inserted) it->second = builder_->NewState();
      builder_->Bytes(at, static_cast<uint8_t>('0' + d), static_cast<uint8_t>('0' + d), it->second);
      if (inserted) Whole(it->second, i + 1, l, h);
    });
  }

  // What was written so far and nothing but zeros behind it is within the bounds.
  bool MayEnd(int fraction_digits, bool low, bool high) const {
    const auto rest_is_zero = [&](const std::string& digits) {
      return static_cast<int>(digits.size()) <= fraction_digits;
    };
    if (low && (!rest_is_zero(low_->fraction) || low_->exclusive)) return false;
    return !(high && rest_is_zero(high_->fraction) && high_->exclusive);
  }

  void Point(State at, bool low, bool high) {
    if (MayEnd(0, low, high)) builder_->Empty(at, end_);
    if (integer_) return;
    const auto [it, inserted] = fraction_.try_emplace({0, low, high}, 0);
    if (inserted) it->second = builder_->NewState();
    builder_->Bytes(at, '.', '.', it->second);
    if (inserted) Fraction(it->second, 0, low, high);
  }

  void Fraction(State at, int i, bool low, bool high) {
    if (i > 0 && MayEnd(i, low, high)) builder_->Empty(at, end_);
    if (i == kMaxFractionDigits) return;
    ForDigits(low ? &low_->fraction : nullptr, high ? &high_->fraction : nullptr, i, 0, [&](int d, bool l, bool h) {
      const auto [it, inserted] = fraction_.try_emplace({i + 1, l, h}, 0);
      if (inserted) it->second = builder_->NewState();
      builder_->Bytes(at, static_cast<uint8_t>('0' + d), static_cast<uint8_t>('0' + d), it->second);
      if (inserted) Fraction(it->second, i + 1, l, h);
    });
  }

  Builder* const builder_;
  const Decimal* const low_;
  const Decimal* const high_;
  const bool integer_;
  const State end_;
  int length_ = 0;
  std::map<Key, State> whole_, fraction_;
};

}  // namespace

std::optional<Decimal> ToDecimal(double value) {
  if (!(std::fabs(value) < 1e15)) return std::nullopt;
  std::array<char, 512> buffer;
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(value), std::chars_format::fixed);
  if (result.ec != std::errc()) return std::nullopt;
  const std::string_view digits(buffer.data(), static_cast<size_t>(result.ptr - buffer.data()));
  Decimal out;
  const size_t point = digits.find('.');
  out.integer = std::string(digits.substr(0, point));
  if (point != std::string_view::npos) out.fraction = std::string(digits.substr(point + 1));
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.fraction.size() > static_cast<size_t>(kMaxFractionDigits)) return std::nullopt;
  out.negative = value < 0;
  return out;
}

State AddNumberRange(Builder* builder, State from, const NumberBounds& bounds) {
  const State end = builder->NewState();
  const Decimal* low = bounds.low.has_value() ? &*bounds.low : nullptr;
  const Decimal* high = bounds.high.has_value() ? &*bounds.high : nullptr;
  // At or above zero.
  if (high == nullptr || !high->negative) {
    Magnitudes(builder, low != nullptr && !low->negative ? low : nullptr, high, bounds.integer, end).Add(from);
  }
  // Below zero: the magnitudes the other way round.
  if (low == nullptr || low->negative) {
    const State minus = builder->Literal(from, "-");
    const Decimal zero = {.exclusive = true};
    Magnitudes(builder, high != nullptr && high->negative ? high : &zero, low, bounds.integer, end).Add(minus);
  }
  return end;
}

}  // namespace baton::constraint
