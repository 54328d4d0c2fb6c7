// Products of a single row with weights as they lie in the model: nothing is packed, so nothing can be out of date.
#pragma once

#include "vectors.h"

namespace linmem {

// W x, where W is (rows, depth).
template <class Real> struct Weighted {
  const Real* W;
  const Real* x;
  int depth;
};

// finish(first, n, sums) for n rows at a time of the sum over all terms.
template <class Real, class Finish> void multiply_row(int rows, const Weighted<Real>* terms, int n_terms, Finish finish) {
  constexpr int height = 8;  // rows at a time: enough sums to hide the latency of an addition
  for (int row = 0; row < rows; row += height) {
    const int n = rows - row < height ? rows - row : height;
    Vector<Real> sums[height] = {};
    for (int term = 0; term < n_terms; term++) {
      const auto [W, x, depth] = terms[term];
      const Real* lines[height];
      for (int i = 0; i < height; i++) lines[i] = W + std::size_t(row + (i < n ? i : 0)) * depth;
      int k = 0;
      for (; k + lanes<Real> <= depth; k += lanes<Real>) {
        const Vector<Real> v = load(x + k);
#pragma GCC unroll 8
        for (int i = 0; i < height; i++) sums[i] += v * load(lines[i] + k);
      }
      if (k < depth) {
        const Vector<Real> v = load(x + k, depth - k);
#pragma GCC unroll 8
        for (int i = 0; i < height; i++) sums[i] += v * load(lines[i] + k, depth - k);
      }
    }
    alignas(64) Real totals[height + lanes<Real>];  // room to be read as whole vectors
    for (int i = 0; i < height; i++) totals[i] = sum<Real>(sums[i]);
    store(totals + height, Vector<Real>{});
    finish(row, n, totals);
  }
}

}  // namespace linmem
