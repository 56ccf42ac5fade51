// JSON numbers between bounds, and multiples of a number, digit by digit.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_NUMBER_RANGE_H_
#define BATON_CONSTRAINT_NUMBER_RANGE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr int kMaxIntegerDigits = 15;   // of what is written; every such integer is exact as a double
inline constexpr int kMaxFractionDigits = 15;
// Of a divisor without its factors 2 and 5, which need few states: each digit has a state for each remainder.
inline constexpr uint64_t kMaxRemainders = 1000;

// A bound in decimal digits.
struct Decimal {
  bool negative = false;
  std::string integer = "0";  // without leading zeros
  std::string fraction;       // without trailing zeros
  bool exclusive = false;

  bool IsZero() const { return integer == "0" && fraction.empty(); }
};

// The shortest digits that are `value`. nullopt: more digits than are ever written, on either side of the point.
std::optional<Decimal> ToDecimal(double value);

// What is written, as an integer over 10^fraction_digits, is divisible by `divisor`.
struct NumberForm {
  int fraction_digits = kMaxFractionDigits;  // at most; 0: integers
  uint64_t divisor = 1;                      // below 10^15
};

// Multiples of `value`, which is above 0. nullopt: it has more than 15 digits.
std::optional<NumberForm> MultiplesOf(double value, bool integer);
bool HasFewRemainders(const NumberForm& form);

struct NumberBounds {
  std::optional<Decimal> low, high;
  NumberForm form;
};

// Adds the numbers within `bounds` (no exponents) behind `from`; returns where they end. There may be none.
State AddNumberRange(Builder* builder, State from, const NumberBounds& bounds);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_NUMBER_RANGE_H_
