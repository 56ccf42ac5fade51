// Elementary functions built from +, -, *, / and sqrt only, which IEEE 754 defines to the last bit. libm's differ in
// the last bit between versions and instruction sets; a forward pass whose bits must be equal on every host cannot use
// them.
//
// Accuracy: a few units in the last place of double, far below the float they are rounded to.
// Thread contract: pure functions.
#ifndef BATON_MODEL_EXACT_MATH_H_
#define BATON_MODEL_EXACT_MATH_H_

namespace baton::model {

// sin and cos of an angle in [0, 2^27].
void SinCos(double angle, double* sin, double* cos);

// The positive n-th root of x >= 1; n >= 1.
double Root(double x, int n);

// Hyperbolic tangent.
double Tanh(double x);

}  // namespace baton::model

#endif  // BATON_MODEL_EXACT_MATH_H_
