// The unrolled RNN:  h^t = σ(W_xh x^t + Σ_i W_i h^{t-i} + b_h),  i = 1 … k.
//
// The tape is not copied from step to step: hidden states lie one behind the other in time, those before the start in
// front of the first, and lag i is a term of the product that begins i steps earlier.
#pragma once

#include "activations.h"
#include "batch.h"
#include "panels.h"
#include "projection.h"
#include "single_row.h"
#include "threads.h"

namespace linmem {

// What kernels/native.py sends: the same fields in the same order. Arrays that nobody wants are null. h is
// (order + T, B, N_h) and comes with its first `order` steps filled.
template <class Real> struct UnrolledCall {
  int64_t T, B, N_x, N_h, order, threads;
  Nonlinearity nonlinearity;
  const int64_t* lengths;
  Sequence<const Real> x;
  const Real *w_xh, *w_hh, *b_h;
  Real* h;
};

// And for the way back. d_h comes as the gradient of h; its steps from the start on are turned into that of what σ is
// applied to, those before are completed.
template <class Real> struct UnrolledGradients {
  Real *d_h, *x, *w_xh, *w_hh, *b_h;
};

template <class Real> class Unrolled {
 public:
  explicit Unrolled(const UnrolledCall<Real>& call)
      : n(call), N_h(int(n.N_h)), order(int(n.order)), tape(order * N_h), b_h(or_zeros(n.b_h, n.N_h)) {}

  void forward() {
    if (n.T * n.B <= few_rows) return forward_unpacked();
    Panels<Real> w_xh(N_h, int(n.N_x)), w_hh(N_h, tape);
    w_xh.pack_transposed(n.w_xh, n.N_x, 0, int(n.N_x));
    w_hh.pack_transposed(n.w_hh, tape, 0, tape);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    in_parallel(parts.size(), [&](std::size_t i) { forward(parts[i], w_xh, w_hh); });
  }

  void backward(const UnrolledGradients<Real>& g) {
    // Depth i of the panels is lag i + 1, so that the steps behind t are its terms in the order of time.
    Panels<Real> to_x(int(n.N_x), N_h), to_h(N_h, tape);
    to_x.pack(n.w_xh, n.N_x, 0, N_h);
    for (int i = 0; i < order; i++) to_h.pack(n.w_hh + i * N_h, tape, i * N_h, N_h);
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    SharedGradients<Weights, Real> sums(Weights{n, g.w_xh, g.w_hh, g.b_h}, parts.size());
    in_parallel(parts.size(), [&](std::size_t i) { backward(parts[i], g, to_x, to_h, sums.of_thread[i]); });
    sums.sum();
  }

 private:
  static constexpr int64_t few_rows = 8;  // so few rows take less time than packing the weights does

  const UnrolledCall<Real>& n;
  const int N_h, order, tape;
  const Buffer<Real> b_h;

  struct Weights {
    const UnrolledCall<Real>& n;
    Real *w_xh, *w_hh, *b_h;

    template <class F> void for_each(F f) {
      f(w_xh, n.N_h * n.N_x);
      f(w_hh, n.N_h * n.N_h * n.order);
      f(b_h, n.N_h);
    }
  };

  // Threads only where the work is worth making them.
  int64_t threads() const { return n.T * n.B * N_h * (n.N_x + tape) < 500'000 ? 1 : n.threads; }

  // Step t of sequence b, from t = -order on.
  Real* at(Real* sequence, int64_t t, int64_t b) const { return sequence + ((order + t) * n.B + b) * N_h; }

  void forward(const Share& share, const Panels<Real>& w_xh, const Panels<Real>& w_hh) {
    if (share.size() == 0) return;
    const int64_t block = steps_of(forward_rows, share);
    std::vector<Term<Real>> lags(order);
    for (int64_t t0 = 0; t0 < share.longest(); t0 += block) {
      const int64_t t1 = std::min(share.longest(), t0 + block);
      const Sequence<Real> h{at(n.h, t0, share.first), n.B * N_h, N_h};
      project(share, t0, t1, n.x, w_xh, static_cast<const Real*>(b_h), h);
      for (int64_t t = t0; t < t1; t++) {
        Real* h_t = at(n.h, t, share.first);
        for (int i = 0; i < order; i++) lags[i] = {at(n.h, t - 1 - i, share.first), N_h, N_h};
        multiply(share.alive(t), N_h, lags.data(), order, w_hh, [&](int r, int c, int count, Vector<Real> v) {
          Real* to = h_t + r * N_h + c;
          store(to, activate<Real>(n.nonlinearity, v + load(to, count)), count);
        });
      }
    }
    clear_padding(share, n.h);
  }

  void forward_unpacked() {
    Buffer<Real> before(tape);
    for (int64_t b = 0; b < n.B; b++)
      for (int64_t t = 0; t < (n.lengths ? n.lengths[b] : n.T); t++) {
        for (int i = 0; i < order; i++)
          std::copy(at(n.h, t - 1 - i, b), at(n.h, t - 1 - i, b) + N_h, before + i * N_h);
        Real* h = at(n.h, t, b);
        const Weighted<Real> terms[] = {{n.w_xh, n.x.at(t, b), int(n.N_x)}, {n.w_hh, before, tape}};
        multiply_row(N_h, terms, 2, [&](int i, int count, const Real* sums) {
          for (int j = 0; j < count; j += lanes<Real>)
            store(h + i + j, activate<Real>(n.nonlinearity, load(sums + j) + load(b_h + i + j)), count - j);
        });
      }
    clear_padding({0, n.B, n.T, n.lengths}, n.h);
  }

  void clear_padding(const Share& share, Real* sequence) {
    if (!share.lengths) return;
    for (int64_t t = 0; t < n.T; t++)
      std::fill(at(sequence, t, share.first + share.alive(t)), at(sequence, t, share.last), Real(0));
  }

  void backward(const Share& share, const UnrolledGradients<Real>& g, const Panels<Real>& to_x,
                const Panels<Real>& to_h, Weights& sums) {
    const int rows = share.size();
    if (rows == 0) return;
    clear_padding(share, g.d_h);
    const int64_t steps = steps_of(backward_rows, share);
    Buffer<Real> d_h(steps * rows * N_h), copies(sums.w_hh ? steps * rows * tape : 0), zeros(N_h);
    zeros.clear(N_h);
    Panels<Real> tapes(tape, int(steps) * rows);
    ProjectionGradients<Real> projection(steps * rows, n.x, {g.x, n.B * n.N_x, n.N_x}, to_x, sums.w_xh, sums.b_h);
    Chunk chunk;
    for (int64_t t1 = share.longest(), t0; t1 > 0; t1 = t0) {
      t0 = std::max<int64_t>(0, t1 - steps);
      chunk.fill(share, t0, t1);
      for (int64_t t = t1 - 1; t >= t0; t--) {
        gather(share, t, g.d_h, to_h, zeros);
        const int alive = share.alive(t);
        const Real* h = at(n.h, t, share.first);
        Real* d = at(g.d_h, t, share.first);
        for (int64_t c = 0; c < int64_t(alive) * N_h; c += lanes<Real>) {
          const int left = int(std::min<int64_t>(lanes<Real>, alive * int64_t(N_h) - c));
          store(d + c, load(d + c, left) * slope<Real>(n.nonlinearity, load(h + c, left)), left);
        }
        std::copy(d, d + int64_t(alive) * N_h, d_h + chunk.begins[t - t0] * N_h);
      }
      projection.add(chunk, d_h);
      if (!sums.w_hh) continue;
      const int count = int(chunk.rows.size());
      for (int k = 0; k < count; k++)
        for (int i = 0; i < order; i++) {
          const Real* before = at(n.h, chunk.rows[k].t - 1 - i, chunk.rows[k].b);
          std::copy(before, before + N_h, copies + int64_t(k) * tape + i * N_h);
        }
      tapes.pack(copies, tape, 0, count);
      add_outer(sums.w_hh, tape, N_h, {d_h, N_h, count}, tapes);
    }
    for (int64_t t = -1; t >= -order; t--) gather(share, t, g.d_h, to_h, zeros);
  }

  // Add to the gradient of h^t what the steps behind it, as many as the order, have read of it. There are none before
  // the first step: zeros stand in for them.
  void gather(const Share& share, int64_t t, Real* d_h, const Panels<Real>& to_h, const Real* zeros) {
    std::vector<Term<Real>> lags;
    for (int64_t s = t + 1; s <= std::min(t + order, share.longest() - 1); s++)
      lags.push_back(s < 0 ? Term<Real>{zeros, 0, N_h} : Term<Real>{at(d_h, s, share.first), N_h, N_h});
    if (lags.empty()) return;
    Real* to = at(d_h, t, share.first);
    const int readers = share.alive(std::max<int64_t>(t + 1, 0));
    multiply(readers, N_h, lags.data(), int(lags.size()), to_h, [&](int r, int c, int count, Vector<Real> v) {
      store(to + r * N_h + c, v + load(to + r * N_h + c, count), count);
    });
  }
};

}  // namespace linmem
