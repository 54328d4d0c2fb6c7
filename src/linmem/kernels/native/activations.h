// The nonlinearities on whole vectors, and their derivatives from their own values.
#pragma once

#include "vectors.h"

namespace linmem {

// In the order of NONLINEARITIES in reference.py.
enum class Nonlinearity : int64_t { tanh, relu, sigmoid, identity };

// A comparison with NaN is false, so NaN passes through.
template <class Real> inline Vector<Real> clamp(Vector<Real> x, Real low, Real high) {
  x = x < low ? low - Vector<Real>{} : x;
  return x > high ? high - Vector<Real>{} : x;
}

template <class Real, int n> inline Vector<Real> polynomial(Vector<Real> x, const Real (&coefficients)[n]) {
  Vector<Real> y = coefficients[n - 1] - Vector<Real>{};
  for (int i = n - 2; i >= 0; i--) y = y * x + coefficients[i];
  return y;
}

// exp(x) = 2^k exp(r) with x = k log 2 + r: adding a large number rounds x / log 2 to the integer k and leaves it in
// the low bits, from where it is shifted into the exponent.
inline Vector<float> exponential(Vector<float> x) {
  x = clamp(x, -87.0f, 88.0f);
  const Vector<float> shifted = x * 1.44269504f + 12582912.0f, k = shifted - 12582912.0f;
  const Vector<float> r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  const float series[] = {1.0f, 1.0f, 1 / 2.0f, 1 / 6.0f, 1 / 24.0f, 1 / 120.0f, 1 / 720.0f, 1 / 5040.0f};
  const Integers<float> exponent = ((Integers<float>)shifted << 23) + 0x3f800000;
  return polynomial(r, series) * (Vector<float>)exponent;
}

inline Vector<double> exponential(Vector<double> x) {
  x = clamp(x, -708.0, 709.0);
  const Vector<double> shifted = x * 1.4426950408889634 + 6755399441055744.0, k = shifted - 6755399441055744.0;
  const Vector<double> r = (x - k * 6.93145751953125e-1) - k * 1.42860682030941723212e-6;
  const double series[] = {1.0,         1.0,          1 / 2.0,       1 / 6.0,        1 / 24.0,        1 / 120.0,       1 / 720.0,
                           1 / 5040.0,  1 / 40320.0,  1 / 362880.0,  1 / 3628800.0,  1 / 39916800.0,  1 / 479001600.0,
                           1 / 6227020800.0};
  const Integers<double> exponent = ((Integers<double>)shifted << 52) + 0x3ff0000000000000;
  return polynomial(r, series) * (Vector<double>)exponent;
}

// A quotient of polynomials that was fitted to the smallest largest relative error on [0, 9.02], 7e-9; rounding makes
// it 3e-7. Beyond, tanh is 1 in single precision.
inline Vector<float> hyperbolic_tangent(Vector<float> x) {
  const float upper[] = {9.999999932e-01f,  1.308316054e-01f, 3.103005458e-03f, 1.114429925e-05f,
                         -2.018414295e-08f, 5.257861907e-11f, -8.436251459e-14f};
  const float lower[] = {1.0f, 4.641648751e-01f, 2.449139737e-02f, 2.544757180e-04f};
  x = clamp(x, -9.02f, 9.02f);
  const Vector<float> square = x * x;
  return clamp(x * polynomial(square, upper) * reciprocal<float>(polynomial(square, lower)), -1.0f, 1.0f);
}

// Near zero 1 - 2 / (exp(2 x) + 1) would cancel; there the continued fraction x / (1 + x² / (3 + x² / (5 + ...)))
// converges fast, and written as one quotient it costs one division.
inline Vector<double> hyperbolic_tangent(Vector<double> x) {
  const Vector<double> square = x * x;
  const double upper[] = {34459425.0, 4729725.0, 135135.0, 990.0, 1.0};
  const double lower[] = {34459425.0, 16216200.0, 945945.0, 13860.0, 45.0};
  const Vector<double> near = x * polynomial(square, upper) / polynomial(square, lower);
  const Vector<double> far = 1.0 - 2.0 / (exponential(2.0 * x) + 1.0);
  return square < 0.25 ? near : far;
}

template <class Real> inline Vector<Real> activate(Nonlinearity kind, Vector<Real> x) {
  switch (kind) {
    case Nonlinearity::tanh: return hyperbolic_tangent(x);
    case Nonlinearity::relu: return x < 0 ? Vector<Real>{} : x;
    case Nonlinearity::sigmoid: return reciprocal<Real>(Real(1) + exponential(-x));
    default: return x;
  }
}

// The derivative at the point where the nonlinearity has the value h.
template <class Real> inline Vector<Real> slope(Nonlinearity kind, Vector<Real> h) {
  const Vector<Real> one = Real(1) - Vector<Real>{};
  switch (kind) {
    case Nonlinearity::tanh: return one - h * h;
    case Nonlinearity::relu: return h > 0 ? one : Vector<Real>{};
    case Nonlinearity::sigmoid: return h * (one - h);
    default: return one;
  }
}

}  // namespace linmem
