#include "model/exact_math.h"

#include <cmath>
#include <cstdint>

namespace baton::model {
namespace {

// pi/2 in three parts. The first two have 26 bits each, so that their products with a quadrant number below 2^27 are
// exact.
constexpr double kHalfPi1 = 0x1.921fb5p+0;
constexpr double kHalfPi2 = 0x1.110b46p-26;
constexpr double kHalfPi3 = 0x1.1a62633145c07p-54;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// Taylor series by Horner's rule, for |r| <= pi/4: the first omitted term is below 2^-55.
double SinSeries(double r) {
  const double z = r * r;
  double sum = 0;
  for (int n = 19; n >= 3; n -= 2) sum = (1 + sum) * (-z / (n * (n - 1)));
  return r + r * sum;
}

double CosSeries(double r) {
  const double z = r * r;
  double sum = 0;
  for (int n = 18; n >= 2; n -= 2) sum = (1 + sum) * (-z / (n * (n - 1)));
  return 1 + sum;
}

// e^x for x in [-700, 0].
double ExpOfNegative(double x) {
  const double k = std::nearbyint(x * kLog2E);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int n = 15; n >= 1; --n) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

}  // namespace

void SinCos(double angle, double* sin, double* cos) {
  const double quadrant = std::nearbyint(angle * kTwoOverPi);
  const double r = ((angle - quadrant * kHalfPi1) - quadrant * kHalfPi2) - quadrant * kHalfPi3;
  const double s = SinSeries(r);
  const double c = CosSeries(r);
  switch (static_cast<int64_t>(quadrant) & 3) {
    case 0:
      *sin = s;
      *cos = c;
      break;
    case 1:
      *sin = c;
      *cos = -s;
      break;
    case 2:
      *sin = -s;
      *cos = -c;
      break;
    default:
      *sin = -c;
      *cos = s;
      break;
  }
}

double Root(double x, int n) {
  if (n == 1 || x == 1) return x;
  // From above the root, Newton's steps on r^n - x fall monotonically, so they end when one no longer falls.
  double root = x;
  for (int power = 2; power <= n; power *= 2) root = std::sqrt(root);
  while (true) {
    double below = 1;  // r^(n-1)
    for (int i = 1; i < n; ++i) below *= root;
    const double next = root - (root - x / below) / n;
    if (!(next < root)) return root;
    root = next;
  }
}

double Tanh(double x) {
  if (x < 0) return -Tanh(-x);
  if (!(x <= 300)) return x > 300 ? 1 : x;    // NaN stays NaN
  if (x < 0x1p-14) return x - x * x * x / 3;  // 1 - e^-2x would cancel
  const double e = ExpOfNegative(-2 * x);
  return (1 - e) / (1 + e);
}

}  // namespace baton::model
