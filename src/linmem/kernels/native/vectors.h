// Vectors of the instruction set that this file is compiled for, and what the compiler's vector extensions lack:
// loads and stores of a part of a vector.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace linmem {

// A tile of a product is held in registers: tile_rows × tile_vectors sums, tile_vectors weights and one broadcast
// number must fit into the 32 (AVX-512, NEON) or 16 registers there are.
#if defined(__AVX512F__)
constexpr int vector_bytes = 64, tile_rows = 8, tile_vectors = 3;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32, tile_rows = 6, tile_vectors = 2;
#elif defined(__aarch64__)
constexpr int vector_bytes = 16, tile_rows = 8, tile_vectors = 3;
#else
constexpr int vector_bytes = 16, tile_rows = 4, tile_vectors = 2;
#endif

template <class Real> struct VectorTypes;
template <> struct VectorTypes<float> {
  typedef float vector __attribute__((vector_size(vector_bytes)));
  typedef int32_t integers __attribute__((vector_size(vector_bytes)));
};
template <> struct VectorTypes<double> {
  typedef double vector __attribute__((vector_size(vector_bytes)));
  typedef int64_t integers __attribute__((vector_size(vector_bytes)));
};

template <class Real> using Vector = typename VectorTypes<Real>::vector;
template <class Real> using Integers = typename VectorTypes<Real>::integers;
template <class Real> constexpr int lanes = vector_bytes / int(sizeof(Real));

template <class Real> inline Vector<Real> load(const Real* from) {
  Vector<Real> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Real> inline void store(Real* to, Vector<Real> v) { std::memcpy(to, &v, sizeof v); }

// The first n lanes, zeros behind them; nothing beyond is touched. Masks where the machine has them, because a copy
// of a length that is not known before costs more than the arithmetic beside it.
template <class Real> inline Vector<Real> load(const Real* from, int n) {
  if (n >= lanes<Real>) return load(from);
  Vector<Real> v = {};
  std::memcpy(&v, from, n * sizeof(Real));
  return v;
}

template <class Real> inline void store(Real* to, Vector<Real> v, int n) {
  if (n >= lanes<Real>) return store(to, v);
  std::memcpy(to, &v, n * sizeof(Real));
}

#if defined(__AVX512F__)

template <> inline Vector<float> load(const float* from, int n) {
  return n >= 16 ? load(from) : (Vector<float>)_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), from);
}
template <> inline Vector<double> load(const double* from, int n) {
  return n >= 8 ? load(from) : (Vector<double>)_mm512_maskz_loadu_pd(__mmask8((1u << n) - 1), from);
}
template <> inline void store(float* to, Vector<float> v, int n) {
  n >= 16 ? store(to, v) : _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1), (__m512)v);
}
template <> inline void store(double* to, Vector<double> v, int n) {
  n >= 8 ? store(to, v) : _mm512_mask_storeu_pd(to, __mmask8((1u << n) - 1), (__m512d)v);
}

#elif defined(__AVX2__)

// All bits of the first n lanes of 32 bits; 2 n of them are n lanes of 64.
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
template <> inline Vector<float> load(const float* from, int n) {
  return n >= 8 ? load(from) : (Vector<float>)_mm256_maskload_ps(from, first_lanes(n));
}
template <> inline Vector<double> load(const double* from, int n) {
  return n >= 4 ? load(from) : (Vector<double>)_mm256_maskload_pd(from, first_lanes(2 * n));
}
template <> inline void store(float* to, Vector<float> v, int n) {
  n >= 8 ? store(to, v) : _mm256_maskstore_ps(to, first_lanes(n), (__m256)v);
}
template <> inline void store(double* to, Vector<double> v, int n) {
  n >= 4 ? store(to, v) : _mm256_maskstore_pd(to, first_lanes(2 * n), (__m256d)v);
}

#endif

// The numbers of two vectors in turn, from the first or from the second half of both.
template <class Real, int from, int... i> inline Vector<Real> in_turn(Vector<Real> a, Vector<Real> b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (from + i / 2 + i % 2 * lanes<Real>)...);
}

// Rows become columns: in each round, rows from the upper half meet those from the lower.
template <class Real> inline void transpose(Vector<Real> (&rows)[lanes<Real>]) {
  constexpr int n = lanes<Real>;
  constexpr auto all = std::make_integer_sequence<int, n>();
  for (int round = 1; round < n; round *= 2) {
    Vector<Real> next[n];
    for (int i = 0; i < n / 2; i++) {
      next[2 * i] = in_turn<Real, 0>(rows[i], rows[i + n / 2], all);
      next[2 * i + 1] = in_turn<Real, n / 2>(rows[i], rows[i + n / 2], all);
    }
    std::copy(next, next + n, rows);
  }
}

template <class Real> inline Real sum(Vector<Real> v) {
  Real part[lanes<Real>];
  store(part, v);
  for (int width = lanes<Real> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) part[i] += part[i + width];
  return part[0];
}

// 1 / x. A division takes as long as a dozen multiplications where vectors are wide; an estimate and one step of
// Newton's method give all digits of a float but the last.
template <class Real> inline Vector<Real> reciprocal(Vector<Real> x) { return Real(1) / x; }

#if defined(__AVX512F__)

template <> inline float sum<float>(Vector<float> v) { return _mm512_reduce_add_ps((__m512)v); }
template <> inline double sum<double>(Vector<double> v) { return _mm512_reduce_add_pd((__m512d)v); }
template <> inline Vector<float> reciprocal<float>(Vector<float> x) {
  const Vector<float> y = (Vector<float>)_mm512_rcp14_ps((__m512)x);
  return y * (2.0f - x * y);
}

#elif defined(__AVX2__)

template <> inline Vector<float> reciprocal<float>(Vector<float> x) {
  const Vector<float> y = (Vector<float>)_mm256_rcp_ps((__m256)x);
  return y * (2.0f - x * y);
}

#endif

}  // namespace linmem
