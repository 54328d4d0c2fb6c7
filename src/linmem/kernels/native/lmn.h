// The Linear Memory Network:  h^t = σ(W_xh x^t + W_mh m^{t-1} + b_h),  m^t = W_hm h^t + W_mm m^{t-1} + b_m.
#pragma once

#include "activations.h"
#include "batch.h"
#include "panels.h"
#include "projection.h"
#include "single_row.h"
#include "threads.h"

namespace linmem {

// What kernels/native.py sends: the same fields in the same order. Arrays that nobody wants are null. h and m are
// (T, B, width); start and end (B, N_m).
template <class Real> struct LmnCall {
  int64_t T, B, N_x, N_h, N_m, threads;
  Nonlinearity nonlinearity;
  const int64_t* lengths;
  Sequence<const Real> x;
  const Real *start, *w_xh, *w_mh, *w_hm, *w_mm, *b_h, *b_m;
  Real *h, *m, *end;
};

// And for the way back: gradients that come, and those that go.
template <class Real> struct LmnGradients {
  Sequence<const Real> h, m;
  const Real* end;
  Real *x, *start, *w_xh, *w_mh, *w_hm, *w_mm, *b_h, *b_m;
};

template <class Real> class Lmn {
 public:
  explicit Lmn(const LmnCall<Real>& call) : n(call), b_h(or_zeros(n.b_h, n.N_h)), b_m(or_zeros(n.b_m, n.N_m)) {}

  void forward() {
    if (n.T * n.B <= few_rows) return forward_unpacked();
    Panels<Real> xh(n.N_h, n.N_x), mh(n.N_h, n.N_m), to_m(n.N_m, n.N_h + n.N_m);
    xh.pack_transposed(n.w_xh, n.N_x, 0, n.N_x);
    mh.pack_transposed(n.w_mh, n.N_m, 0, n.N_m);
    to_m.pack_transposed(n.w_hm, n.N_h, 0, n.N_h).pack_transposed(n.w_mm, n.N_m, n.N_h, n.N_m);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    in_parallel(parts.size(), [&](std::size_t i) { forward(parts[i], xh, mh, to_m); });
  }

  void backward(const LmnGradients<Real>& g) {
    Panels<Real> from_m(n.N_h, n.N_m), to_m(n.N_m, n.N_h + n.N_m), to_x(n.N_x, n.N_h);
    from_m.pack(n.w_hm, n.N_h, 0, n.N_m);
    to_m.pack(n.w_mh, n.N_m, 0, n.N_h).pack(n.w_mm, n.N_m, n.N_h, n.N_m);
    to_x.pack(n.w_xh, n.N_x, 0, n.N_h);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    SharedGradients<Weights, Real> sums(Weights{n, g.w_xh, g.w_mh, g.w_hm, g.w_mm, g.b_h, g.b_m}, parts.size());
    in_parallel(parts.size(), [&](std::size_t i) { backward(parts[i], g, from_m, to_m, to_x, sums.of_thread[i]); });
    sums.sum();
  }

 private:
  static constexpr int64_t few_rows = 8;  // so few rows take less time than packing the weights does

  const LmnCall<Real>& n;
  const Buffer<Real> b_h, b_m;

  struct Weights {
    const LmnCall<Real>& n;
    Real *w_xh, *w_mh, *w_hm, *w_mm, *b_h, *b_m;

    template <class F> void for_each(F f) {
      f(w_xh, n.N_h * n.N_x);
      f(w_mh, n.N_h * n.N_m);
      f(w_hm, n.N_m * n.N_h);
      f(w_mm, n.N_m * n.N_m);
      f(b_h, n.N_h);
      f(b_m, n.N_m);
    }
  };

  int64_t weights() const { return n.N_h * (n.N_x + 2 * n.N_m + 1) + n.N_m * (n.N_m + 1); }

  // Threads only where the work is worth making them.
  int64_t threads() const { return n.T * n.B * weights() < 500'000 ? 1 : n.threads; }

  void forward_unpacked() {
    Buffer<Real> hidden(n.N_h), next(n.N_m);
    for (int64_t b = 0; b < n.B; b++) {
      const Real* before = n.start + b * n.N_m;
      const int64_t length = n.lengths ? n.lengths[b] : n.T;
      for (int64_t t = 0; t < length; t++) {
        Real* h = n.h ? n.h + (t * n.B + b) * n.N_h : hidden;
        const Weighted<Real> to_h[] = {{n.w_xh, n.x.at(t, b), int(n.N_x)}, {n.w_mh, before, int(n.N_m)}};
        multiply_row(int(n.N_h), to_h, 2, [&](int i, int count, const Real* sums) {
          for (int j = 0; j < count; j += lanes<Real>)
            store(h + i + j, activate<Real>(n.nonlinearity, load(sums + j) + load(b_h + i + j, count - j)), count - j);
        });
        // The rolling memory is the final state itself, which is read until the whole next one is there.
        const Weighted<Real> to_m[] = {{n.w_hm, h, int(n.N_h)}, {n.w_mm, before, int(n.N_m)}};
        multiply_row(int(n.N_m), to_m, 2, [&](int i, int count, const Real* sums) {
          for (int j = 0; j < count; j++) next[i + j] = sums[j] + b_m[i + j];
        });
        std::copy(next + 0, next + n.N_m, n.end + b * n.N_m);
        if (n.m) std::copy(next + 0, next + n.N_m, n.m + (t * n.B + b) * n.N_m);
        before = n.end + b * n.N_m;
      }
      if (length == 0) std::copy(before, before + n.N_m, n.end + b * n.N_m);
    }
    clear_padding({0, n.B, n.T, n.lengths});
  }

  void forward(const Share& share, const Panels<Real>& xh, const Panels<Real>& mh, const Panels<Real>& to_m) {
    const int rows = share.size(), N_h = int(n.N_h), N_m = int(n.N_m);
    if (rows == 0) return;
    const int64_t block = steps_of(forward_rows, share);
    // What nobody wants as a whole is kept for a block of steps only.
    Buffer<Real> hidden(n.h ? 0 : block * rows * N_h), memory(n.m ? 0 : 2 * rows * N_m);
    const Real* before = n.start + share.first * N_m;
    std::copy(before, before + int64_t(rows) * N_m, n.end + share.first * N_m);
    for (int64_t t0 = 0; t0 < share.longest(); t0 += block) {
      const int64_t t1 = std::min(share.longest(), t0 + block);
      const Sequence<Real> h = n.h ? Sequence<Real>{n.h + (t0 * n.B + share.first) * N_h, n.B * N_h, N_h}
                                   : Sequence<Real>{hidden, int64_t(rows) * N_h, N_h};
      project(share, t0, t1, n.x, xh, static_cast<const Real*>(b_h), h);
      for (int64_t t = t0; t < t1; t++) {
        const int alive = share.alive(t);
        Real* h_t = h.at(t - t0, 0);
        multiply(alive, N_h, {before, N_m, N_m}, mh, [&](int r, int c, int width, Vector<Real> v) {
          Real* to = h_t + r * N_h + c;
          store(to, activate<Real>(n.nonlinearity, v + load(to, width)), width);
        }, t % 2);
        Real* m_t = n.m ? n.m + (t * n.B + share.first) * N_m : memory + (t % 2) * rows * N_m;
        const Term<Real> terms[] = {{h_t, N_h, N_h}, {before, N_m, N_m}};
        multiply(alive, N_m, terms, 2, to_m, [&](int r, int c, int width, Vector<Real> v) {
          store(m_t + r * N_m + c, v + load(b_m + c), width);
        }, t % 2);
        const int go_on = share.alive(t + 1);
        std::copy(m_t + go_on * N_m, m_t + alive * N_m, n.end + (share.first + go_on) * N_m);
        before = m_t;
      }
    }
    clear_padding(share);
  }

  void clear_padding(const Share& share) {
    if (!share.lengths) return;
    for (int64_t t = 0; t < n.T; t++) {
      const int64_t from = t * n.B + share.first + share.alive(t), to = t * n.B + share.last;
      if (n.h) std::fill(n.h + from * n.N_h, n.h + to * n.N_h, Real(0));
      if (n.m) std::fill(n.m + from * n.N_m, n.m + to * n.N_m, Real(0));
    }
  }

  // Gradients are named after what they are gradients of: d_h is that of what σ is applied to.
  void backward(const Share& share, const LmnGradients<Real>& g, const Panels<Real>& from_m, const Panels<Real>& to_m,
                const Panels<Real>& to_x, Weights& sums) {
    const int rows = share.size(), N_h = int(n.N_h), N_m = int(n.N_m);
    if (rows == 0) return;
    const int64_t steps = steps_of(backward_rows, share);
    Buffer<Real> d_h(steps * rows * N_h), d_m(steps * rows * N_m);
    Buffer<Real> later_h(rows * N_h), later_m(rows * N_m);  // those of the first step of the chunk behind
    Panels<Real> h_rows(N_h, int(steps) * rows), m_rows(N_m, int(steps) * rows);
    ProjectionGradients<Real> projection(steps * rows, n.x, {g.x, n.B * n.N_x, n.N_x}, to_x, sums.w_xh, sums.b_h);
    Chunk chunk;
    const auto& begins = chunk.begins;

    for (int64_t t1 = share.longest(), t0; t1 > 0; t1 = t0) {
      t0 = std::max<int64_t>(0, t1 - steps);
      chunk.fill(share, t0, t1);
      for (int64_t t = t1 - 1; t >= t0; t--) {
        const int alive = share.alive(t), go_on = share.alive(t + 1);
        Real *d_h_t = d_h + begins[t - t0] * N_h, *d_m_t = d_m + begins[t - t0] * N_m;
        const bool in_chunk = t + 1 < t1;
        const Term<Real> later[] = {{in_chunk ? d_h + begins[t + 1 - t0] * N_h : later_h + 0, N_h, N_h},
                                    {in_chunk ? d_m + begins[t + 1 - t0] * N_m : later_m + 0, N_m, N_m}};
        multiply(go_on, N_m, later, 2, to_m, [&](int r, int c, int width, Vector<Real> v) {
          if (g.m) v += load(g.m.at(t, share.first + r) + c, width);
          store(d_m_t + r * N_m + c, v, width);
        }, t % 2);
        for (int r = go_on; r < alive; r++) {
          const Real* end = g.end ? g.end + (share.first + r) * N_m : nullptr;
          for (int c = 0; c < N_m; c++)
            d_m_t[r * N_m + c] = (end ? end[c] : 0) + (g.m ? g.m.at(t, share.first + r)[c] : 0);
        }
        const Real* h_t = n.h + (t * n.B + share.first) * N_h;
        multiply(alive, N_h, {d_m_t, N_m, N_m}, from_m, [&](int r, int c, int width, Vector<Real> v) {
          if (g.h) v += load(g.h.at(t, share.first + r) + c, width);
          store(d_h_t + r * N_h + c, v * slope<Real>(n.nonlinearity, load(h_t + r * N_h + c, width)), width);
        }, t % 2);
      }
      const int count = int(chunk.rows.size());
      const Term<Real> sum_h{d_h, N_h, count}, sum_m{d_m, N_m, count};
      const auto at = [&](int k) { return chunk.rows[k].t * n.B + chunk.rows[k].b; };
      projection.add(chunk, d_h);
      if (sums.w_hm) h_rows.pack_rows(0, count, [&](int k) { return n.h + at(k) * N_h; });
      add_outer(sums.w_hm, N_h, N_m, sum_m, h_rows);
      if (sums.w_mh || sums.w_mm)
        m_rows.pack_rows(0, count, [&](int k) {
          const auto [t, b] = chunk.rows[k];
          return t ? n.m + ((t - 1) * n.B + b) * N_m : n.start + b * N_m;
        });
      add_outer(sums.w_mh, N_m, N_h, sum_h, m_rows);
      add_outer(sums.w_mm, N_m, N_m, sum_m, m_rows);
      add_rows(sums.b_m, N_m, sum_m);
      std::copy(d_h + 0, d_h + share.alive(t0) * N_h, later_h + 0);
      std::copy(d_m + 0, d_m + share.alive(t0) * N_m, later_m + 0);
    }
    if (!g.start) return;
    if (g.end) std::copy(g.end + share.first * N_m, g.end + share.last * N_m, g.start + share.first * N_m);
    const Term<Real> first[] = {{later_h, N_h, N_h}, {later_m, N_m, N_m}};
    multiply(share.alive(0), N_m, first, 2, to_m, [&](int r, int c, int width, Vector<Real> v) {
      store(g.start + (share.first + r) * N_m + c, v, width);
    });
  }
};

}  // namespace linmem
