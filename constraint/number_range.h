// JSON numbers between bounds, digit by digit.
//
// Thread contract: plain functions.
#ifndef BATON_CONSTRAINT_NUMBER_RANGE_H_
#define BATON_CONSTRAINT_NUMBER_RANGE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr int kMaxIntegerDigits = 15;   // of what is written; every such integer is exact as a double
inline constexpr int kMaxFractionDigits = 15;

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

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool integer = false;
};

// Adds the numbers within `bounds` (no exponents) behind `from`; returns where they end. There may be none.
State AddNumberRange(Builder* builder, State from, const NumberBounds& bounds);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_NUMBER_RANGE_H_
