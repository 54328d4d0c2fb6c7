// The linear memory:  m^t = W_xm x^t + W_mm m^{t-1} + b_m.
//
// The input does not wait for the memory: forward it is projected for many steps at a time, and what is left of a step
// is one product. Backward, d_m^t = g^t + W_mmᵀ d_m^{t+1} is one product as well, and all else is done for a chunk of
// steps at a time: nothing but d_m has to be kept for it.
#pragma once

#include "batch.h"
#include "panels.h"
#include "projection.h"
#include "single_row.h"
#include "threads.h"

namespace linmem {

// What kernels/native.py sends: the same fields in the same order. Arrays that nobody wants are null. m is (T, B, N_m);
// start and end (B, N_m).
template <class Real> struct LinearCall {
  int64_t T, B, N_x, N_m, threads;
  const int64_t* lengths;
  Sequence<const Real> x;
  const Real *start, *w_xm, *w_mm, *b_m;
  Real *m, *end;
};

// And for the way back: gradients that come, and those that go.
template <class Real> struct LinearGradients {
  Sequence<const Real> m;
  const Real* end;
  Real *x, *start, *w_xm, *w_mm, *b_m;
};

template <class Real> class Linear {
 public:
  explicit Linear(const LinearCall<Real>& call) : n(call), N_m(int(n.N_m)), b_m(or_zeros(n.b_m, n.N_m)) {}

  void forward() {
    if (n.T * n.B <= few_rows) return forward_unpacked();
    Panels<Real> from_x(N_m, int(n.N_x)), from_m(N_m, N_m);
    from_x.pack_transposed(n.w_xm, n.N_x, 0, int(n.N_x));
    from_m.pack_transposed(n.w_mm, n.N_m, 0, N_m);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    in_parallel(parts.size(), [&](std::size_t i) { forward(parts[i], from_x, from_m); });
  }

  void backward(const LinearGradients<Real>& g) {
    Panels<Real> to_m(N_m, N_m), to_x(int(n.N_x), N_m);
    to_m.pack(n.w_mm, N_m, 0, N_m);
    to_x.pack(n.w_xm, n.N_x, 0, N_m);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    SharedGradients<Weights, Real> sums(Weights{n, g.w_xm, g.w_mm, g.b_m}, parts.size());
    in_parallel(parts.size(), [&](std::size_t i) { backward(parts[i], g, to_m, to_x, sums.of_thread[i]); });
    sums.sum();
  }

 private:
  static constexpr int64_t few_rows = 8;  // so few rows take less time than packing the weights does

  const LinearCall<Real>& n;
  const int N_m;
  const Buffer<Real> b_m;

  struct Weights {
    const LinearCall<Real>& n;
    Real *w_xm, *w_mm, *b_m;

    template <class F> void for_each(F f) {
      f(w_xm, n.N_m * n.N_x);
      f(w_mm, n.N_m * n.N_m);
      f(b_m, n.N_m);
    }
  };

  // Threads only where the work is worth making them.
  int64_t threads() const { return n.T * n.B * n.N_m * (n.N_x + n.N_m) < 500'000 ? 1 : n.threads; }

  void forward_unpacked() {
    Buffer<Real> next(N_m);
    for (int64_t b = 0; b < n.B; b++) {
      Real* state = n.end + b * N_m;
      std::copy(n.start + b * N_m, n.start + (b + 1) * N_m, state);
      for (int64_t t = 0; t < (n.lengths ? n.lengths[b] : n.T); t++) {
        const Weighted<Real> terms[] = {{n.w_xm, n.x.at(t, b), int(n.N_x)}, {n.w_mm, state, N_m}};
        multiply_row(N_m, terms, 2, [&](int i, int count, const Real* sums) {
          for (int j = 0; j < count; j++) next[i + j] = sums[j] + b_m[i + j];
        });
        std::copy(next + 0, next + N_m, state);
        std::copy(next + 0, next + N_m, n.m + (t * n.B + b) * N_m);
      }
    }
    clear_padding({0, n.B, n.T, n.lengths});
  }

  void forward(const Share& share, const Panels<Real>& from_x, const Panels<Real>& from_m) {
    if (share.size() == 0) return;
    const int64_t block = steps_of(forward_rows, share);
    const Real* before = n.start + share.first * N_m;
    std::copy(before, n.start + share.last * N_m, n.end + share.first * N_m);
    for (int64_t t0 = 0; t0 < share.longest(); t0 += block) {
      const int64_t t1 = std::min(share.longest(), t0 + block);
      project(share, t0, t1, n.x, from_x, static_cast<const Real*>(b_m), memory(share, t0));
      for (int64_t t = t0; t < t1; t++) {
        const int alive = share.alive(t), go_on = share.alive(t + 1);
        Real* m = memory(share, t).data;
        multiply(alive, N_m, {before, N_m, N_m}, from_m, [&](int r, int c, int width, Vector<Real> v) {
          Real* to = m + int64_t(r) * N_m + c;
          store(to, v + load(to, width), width);
        }, t % 2);
        std::copy(m + int64_t(go_on) * N_m, m + int64_t(alive) * N_m, n.end + (share.first + go_on) * N_m);
        before = m;
      }
    }
    clear_padding(share);
  }

  // The memories of a share from step t on.
  Sequence<Real> memory(const Share& share, int64_t t) const {
    return {n.m + (t * n.B + share.first) * N_m, n.B * N_m, N_m};
  }

  void clear_padding(const Share& share) {
    if (!share.lengths) return;
    for (int64_t t = 0; t < n.T; t++)
      std::fill(n.m + (t * n.B + share.first + share.alive(t)) * N_m, n.m + (t * n.B + share.last) * N_m, Real(0));
  }

  // d_m is the gradient of m.
  void backward(const Share& share, const LinearGradients<Real>& g, const Panels<Real>& to_m, const Panels<Real>& to_x,
                Weights& sums) {
    const int rows = share.size();
    if (rows == 0) return;
    const int64_t steps = steps_of(backward_rows, share);
    Buffer<Real> d_m(steps * rows * N_m), later(rows * N_m);  // `later`: of the first step of the chunk behind
    Panels<Real> m_rows(N_m, int(steps) * rows);
    ProjectionGradients<Real> projection(steps * rows, n.x, {g.x, n.B * n.N_x, n.N_x}, to_x, sums.w_xm, sums.b_m);
    Chunk chunk;
    for (int64_t t1 = share.longest(), t0; t1 > 0; t1 = t0) {
      t0 = std::max<int64_t>(0, t1 - steps);
      chunk.fill(share, t0, t1);
      const Real* after = later;
      for (int64_t t = t1 - 1; t >= t0; t--) {
        const int alive = share.alive(t), go_on = share.alive(t + 1);
        // What will be read next comes from far away, once, and is sent for while there is work to do.
        const int64_t next = std::max<int64_t>(0, t - 1);
        Real* d = d_m + chunk.begins[t - t0] * N_m;
        multiply(go_on, N_m, {after, N_m, N_m}, to_m, [&](int r, int c, int width, Vector<Real> v) {
          if (g.m) {
            v += load(g.m.at(t, share.first + r) + c, width);
            __builtin_prefetch(g.m.at(next, share.first + r) + c);
          }
          __builtin_prefetch(memory(share, next).at(0, r) + c);
          store(d + int64_t(r) * N_m + c, v, width);
        }, t % 2);
        for (int r = go_on; r < alive; r++) {
          const Real *end = g.end ? g.end + (share.first + r) * N_m : nullptr, *own = g.m ? g.m.at(t, share.first + r) : nullptr;
          for (int c = 0; c < N_m; c++) d[int64_t(r) * N_m + c] = (end ? end[c] : 0) + (own ? own[c] : 0);
        }
        after = d;
      }
      const int count = int(chunk.rows.size());
      projection.add(chunk, d_m);
      if (sums.w_mm)
        m_rows.pack_rows(0, count, [&](int k) {
          const auto [t, b] = chunk.rows[k];
          return t ? n.m + ((t - 1) * n.B + b) * N_m : n.start + b * N_m;
        });
      add_outer(sums.w_mm, N_m, N_m, {d_m, N_m, count}, m_rows);
      std::copy(d_m + 0, d_m + int64_t(share.alive(t0)) * N_m, later + 0);
    }
    if (!g.start) return;
    if (g.end) std::copy(g.end + share.first * N_m, g.end + share.last * N_m, g.start + share.first * N_m);
    multiply(share.alive(0), N_m, {later, N_m, N_m}, to_m, [&](int r, int c, int width, Vector<Real> v) {
      store(g.start + (share.first + r) * N_m + c, v, width);
    });
  }
};

}  // namespace linmem
