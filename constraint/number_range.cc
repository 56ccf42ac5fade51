#include "constraint/number_range.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

#include "absl/numeric/int128.h"

namespace baton::constraint {
namespace {

constexpr int kMaxDigits = kMaxIntegerDigits + kMaxFractionDigits;

uint64_t PowerOfTen(int exponent) { return exponent == 0 ? 1 : 10 * PowerOfTen(exponent - 1); }

// Remainders by a divisor, of numbers of which only the first digits are known.
class Remainders {
 public:
  explicit Remainders(uint64_t divisor) : divisor_(divisor) {
    power_[0] = 1 % divisor;
    common_[0] = 1;
    for (size_t i = 1; i <= kMaxDigits; ++i) {
      power_[i] = power_[i - 1] * 10 % divisor;
      common_[i] = std::gcd(divisor, common_[i - 1] * 10);
    }
  }

  uint64_t Append(uint64_t remainder, int digit) const {
    return (remainder * 10 + static_cast<uint64_t>(digit)) % divisor_;
  }
  // Whether zeros in the `left` places to come make a multiple.
  bool Divides(uint64_t remainder, int left) const { return WithZeros(remainder, left) == 0; }
  // What of the remainder matters when `left` digits are to come; nullopt: none of them make a multiple.
  std::optional<uint64_t> Reduce(uint64_t remainder, int left) const {
    const uint64_t zeros = WithZeros(remainder, left);
    const uint64_t missing = zeros == 0 ? 0 : divisor_ - zeros;
    if (left <= kMaxIntegerDigits && missing >= PowerOfTen(left)) return std::nullopt;
    return remainder % (divisor_ / common_[static_cast<size_t>(left)]);
  }

 private:
  uint64_t WithZeros(uint64_t remainder, int left) const {
    return static_cast<uint64_t>(absl::uint128(remainder) * power_[static_cast<size_t>(left)] % divisor_);
  }

  const uint64_t divisor_;
  std::array<uint64_t, kMaxDigits + 1> power_;   // 10^i modulo divisor_
  std::array<uint64_t, kMaxDigits + 1> common_;  // greatest common divisor of 10^i and divisor_
};

class Magnitudes {
 public:
  Magnitudes(Builder* builder, const NumberForm& form, State end)
      : builder_(builder), form_(form), remainders_(form.divisor), end_(end) {}

  // Those from `low` to `high` (nullptr: no end), for one number of digits before the point after the other.
  void Add(State from, const Decimal* low, const Decimal* high) {
    low_ = low, high_ = high;
    bounded_fraction_.clear();
    for (int length = 1; length <= kMaxIntegerDigits && builder_->ok(); ++length) {
      const int low_length = low_ == nullptr ? 0 : static_cast<int>(low_->integer.size());
      const int high_length = high_ == nullptr ? kMaxIntegerDigits + 1 : static_cast<int>(high_->integer.size());
      if (length < low_length || length > high_length) continue;
      length_ = length;
      bounded_whole_.clear();
      Whole(from, length, {length == low_length, length == high_length, 0});
    }
  }

 private:
  // Whether the digits so far are the bounds' own, and their remainder.
  struct Prefix {
    bool low, high;
    uint64_t remainder;
    auto operator<=>(const Prefix&) const = default;
  };
  using States = std::map<std::pair<int, Prefix>, State>;  // by number of digits, to come or written

  static int Digit(const std::string& digits, int i) {
    return i < static_cast<int>(digits.size()) ? digits[static_cast<size_t>(i)] - '0' : 0;
  }

  // The digits that may come at place i of the bounds' digits, when `left` are to come behind it.
  template <typename Next>
  void ForDigits(const std::string* low, const std::string* high, int i, int least, uint64_t remainder, int left,
                 const Next& next) {
    const int first = std::max(least, low == nullptr ? 0 : Digit(*low, i));
    const int last = high == nullptr ? 9 : Digit(*high, i);
    for (int d = first; d <= last && builder_->ok(); ++d) {
      const std::optional<uint64_t> reduced = remainders_.Reduce(remainders_.Append(remainder, d), left);
      if (!reduced.has_value()) continue;
      next(d, Prefix{low != nullptr && d == Digit(*low, i), high != nullptr && d == Digit(*high, i), *reduced});
    }
  }

  // A byte to the state of `key`, which `fill` goes on from when it is new.
  template <typename Fill>
  void Step(State at, int byte, States* states, const std::pair<int, Prefix>& key, const Fill& fill) {
    const auto [it, inserted] = states->try_emplace(key, 0);
    if (inserted) it->second = builder_->NewState();
    const State to = it->second;
    builder_->Bytes(at, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to);
    if (inserted) fill(to);
  }

  void Whole(State at, int left, const Prefix& so_far) {
    if (left == 0) return Point(at, so_far);
    const int i = length_ - left;
    const int least = i == 0 && length_ > 1 ? 1 : 0;
    ForDigits(so_far.low ? &low_->integer : nullptr, so_far.high ? &high_->integer : nullptr, i, least, so_far.remainder,
              left - 1 + form_.fraction_digits, [&](int d, const Prefix& next) {
                Step(at, '0' + d, next.low || next.high ? &bounded_whole_ : &free_whole_, {left - 1, next}, [&](State to) { Whole(to, left - 1, next); });
              });
  }

  // What was written so far and nothing but zeros behind it is within the bounds, and a multiple.
  bool MayEnd(int fraction_digits, const Prefix& so_far) const {
    const auto rest_is_zero = [&](const std::string& digits) {
      return static_cast<int>(digits.size()) <= fraction_digits;
    };
    if (!remainders_.Divides(so_far.remainder, form_.fraction_digits - fraction_digits)) return false;
    if (so_far.low && (!rest_is_zero(low_->fraction) || low_->exclusive)) return false;
    return !(so_far.high && rest_is_zero(high_->fraction) && high_->exclusive);
  }

  void Point(State at, const Prefix& so_far) {
    if (MayEnd(0, so_far)) builder_->Empty(at, end_);
    if (form_.fraction_digits == 0) return;
    Step(at, '.', FractionsFor(so_far), {0, so_far}, [&](State to) { Fraction(to, 0, so_far); });
  }

  void Fraction(State at, int i, const Prefix& so_far) {
    if (i > 0 && MayEnd(i, so_far)) builder_->Empty(at, end_);
    if (i == form_.fraction_digits) return;
    ForDigits(so_far.low ? &low_->fraction : nullptr, so_far.high ? &high_->fraction : nullptr, i, 0, so_far.remainder,
              form_.fraction_digits - i - 1, [&](int d, const Prefix& next) {
                Step(at, '0' + d, FractionsFor(next), {i + 1, next}, [&](State to) { Fraction(to, i + 1, next); });
              });
  }

  States* FractionsFor(const Prefix& prefix) { return prefix.low || prefix.high ? &bounded_fraction_ : &free_fraction_; }

  Builder* const builder_;
  const NumberForm form_;
  const Remainders remainders_;
  const State end_;
  const Decimal* low_ = nullptr;
  const Decimal* high_ = nullptr;
  int length_ = 0;
  // Before the point, by digits to come, and behind it, by digits written. Away from the bounds it matters neither which these
  // are nor how many digits there are in all.
  States bounded_whole_, bounded_fraction_, free_whole_, free_fraction_;
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

std::optional<NumberForm> MultiplesOf(double value, bool integer) {
  const std::optional<Decimal> decimal = ToDecimal(value);
  if (!decimal.has_value() || decimal->integer.size() + decimal->fraction.size() > static_cast<size_t>(kMaxDigits) / 2) {
    return std::nullopt;
  }
  NumberForm form;
  form.divisor = std::stoull(decimal->integer + decimal->fraction);
  form.fraction_digits = static_cast<int>(decimal->fraction.size());
  if (integer) {
    // An integer n is a multiple of a / 10^k where a divides n * 10^k.
    form.divisor /= std::gcd(form.divisor, PowerOfTen(form.fraction_digits));
    form.fraction_digits = 0;
  }
  return form;
}

bool HasFewRemainders(const NumberForm& form) {
  uint64_t rest = form.divisor;
  for (const uint64_t factor : {uint64_t{2}, uint64_t{5}}) {
    while (rest % factor == 0) rest /= factor;
  }
  return rest <= kMaxRemainders;
}

State AddNumberRange(Builder* builder, State from, const NumberBounds& bounds) {
  const State end = builder->NewState();
  const Decimal* low = bounds.low.has_value() ? &*bounds.low : nullptr;
  const Decimal* high = bounds.high.has_value() ? &*bounds.high : nullptr;
  Magnitudes magnitudes(builder, bounds.form, end);
  // At or above zero.
  if (high == nullptr || !high->negative) magnitudes.Add(from, low != nullptr && !low->negative ? low : nullptr, high);
  // Below zero: the magnitudes the other way round.
  if (low == nullptr || low->negative) {
    const State minus = builder->Literal(from, "-");
    const Decimal zero = {.exclusive = true};
    magnitudes.Add(minus, high != nullptr && high->negative ? high : &zero, low);
  }
  return end;
}

}  // namespace baton::constraint
