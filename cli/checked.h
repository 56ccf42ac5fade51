// Unsigned arithmetic that remembers an overflow instead of wrapping, so that a formula can be written as a formula and
// checked once at its end.
#ifndef BATON_CLI_CHECKED_H_
#define BATON_CLI_CHECKED_H_

#include <cstdint>

namespace baton::cli {

class Checked {
 public:
  constexpr Checked(uint64_t value = 0) : value_(value) {}  // NOLINT: formulas mix in plain numbers

  // Meaningless when !ok().
  constexpr uint64_t value() const { return value_; }
  constexpr bool ok() const { return ok_; }

  friend Checked operator+(Checked a, Checked b) {
    Checked r;
    r.ok_ = !__builtin_add_overflow(a.value_, b.value_, &r.value_) && a.ok_ && b.ok_;
    return r;
  }
  friend Checked operator-(Checked a, Checked b) {
    Checked r;
    r.ok_ = !__builtin_sub_overflow(a.value_, b.value_, &r.value_) && a.ok_ && b.ok_;
    return r;
  }
  friend Checked operator*(Checked a, Checked b) {
    Checked r;
    r.ok_ = !__builtin_mul_overflow(a.value_, b.value_, &r.value_) && a.ok_ && b.ok_;
    return r;
  }
  // a * b / c with a 128-bit product. Rounds down, or up when `up`. A zero divisor counts as an overflow.
  static Checked MulDiv(Checked a, Checked b, Checked c, bool up = false) {
    Checked r;
    r.ok_ = a.ok_ && b.ok_ && c.ok_ && c.value_ != 0;
    if (!r.ok_) return r;
    unsigned __int128 product = static_cast<unsigned __int128>(a.value_) * b.value_;
    if (up) product += c.value_ - 1;
    const unsigned __int128 quotient = product / c.value_;
    r.ok_ = quotient <= UINT64_MAX;
    r.value_ = static_cast<uint64_t>(quotient);
    return r;
  }

 private:
  uint64_t value_ = 0;
  bool ok_ = true;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHECKED_H_
