// The input projection W_xh x^t + b_h: it does not wait for the recurrence, so it is done for many rows at a time.
#pragma once

#include "batch.h"
#include "panels.h"

namespace linmem {

constexpr int64_t forward_rows = 64;    // rows of x that are projected at a time
constexpr int64_t backward_rows = 128;  // rows whose gradients stay in the cache until the weights get theirs

// How many steps of a share make so many rows.
inline int64_t steps_of(int64_t rows, const Share& share) { return std::max<int64_t>(1, rows / share.size()); }

// Numbers that may be missing, with zeros instead, and readable in whole vectors.
template <class Real> Buffer<Real> or_zeros(const Real* numbers, int64_t n) {
  Buffer<Real> copy(n + lanes<Real>);
  copy.clear(n + lanes<Real>);
  if (numbers) std::copy(numbers, numbers + n, static_cast<Real*>(copy));
  return copy;
}

// out^t = W_xh x^t + b for the steps [t0, t1) of a share; x counts sequences of the whole batch, out those of the share.
template <class Real>
void project(const Share& share, int64_t t0, int64_t t1, Sequence<const Real> x, const Panels<Real>& w_xh, const Real* b,
             Sequence<Real> out) {
  for_runs(share, t0, t1, [&](int64_t t, int row, int count, bool across_batch) {
    const Term<Real> from{x.at(t, share.first + row), across_batch ? x.batch : x.time, w_xh.depth};
    Real* to = out.at(t - t0, row);
    const std::ptrdiff_t stride = across_batch ? out.batch : out.time;
    multiply(count, w_xh.columns, from, w_xh, [&](int r, int c, int width, Vector<Real> v) {
      store(to + r * stride + c, v + load(b + c), width);
    });
  });
}

// The rows of a chunk of steps [t0, t1): every step that exists, one row behind the other.
struct Chunk {
  struct Row {
    int64_t t, b;
  };
  std::vector<Row> rows;
  std::vector<int64_t> begins;  // the first row of each step

  void fill(const Share& share, int64_t t0, int64_t t1) {
    rows.clear();
    begins.clear();
    for (int64_t t = t0; t < t1; t++) {
      begins.push_back(int64_t(rows.size()));
      for (int row = 0; row < share.alive(t); row++) rows.push_back({t, share.first + row});
    }
  }
};

// What goes back to x, W_xh and b_h from d_h, the gradients of what the projection gave, chunk by chunk.
template <class Real> class ProjectionGradients {
 public:
  ProjectionGradients(int64_t most_rows, Sequence<const Real> x, Sequence<Real> g_x, const Panels<Real>& to_x, Real* g_w_xh,
                      Real* g_b_h)
      : x_(x), g_x_(g_x), to_x_(to_x), g_w_xh_(g_w_xh), g_b_h_(g_b_h), x_rows_(to_x.columns, int(most_rows)) {}

  void add(const Chunk& chunk, const Real* d_h) {
    const int N_x = to_x_.columns, N_h = to_x_.depth, count = int(chunk.rows.size());
    const auto& rows = chunk.rows;
    if (g_x_)
      multiply(count, N_x, {d_h, N_h, N_h}, to_x_, [&](int r, int c, int width, Vector<Real> v) {
        store(g_x_.at(rows[r].t, rows[r].b) + c, v, width);
      });
    const Term<Real> delta{d_h, N_h, count};
    if (g_w_xh_) {
      x_rows_.pack_rows(0, count, [&](int k) { return x_.at(rows[k].t, rows[k].b); });
      add_outer(g_w_xh_, N_x, N_h, delta, x_rows_);
    }
    add_rows(g_b_h_, N_h, delta);
  }

 private:
  const Sequence<const Real> x_;
  const Sequence<Real> g_x_;
  const Panels<Real>& to_x_;
  Real *const g_w_xh_, *const g_b_h_;
  Panels<Real> x_rows_;
};

// Gradients of weights, of which every thread sums its own: fields of G, with how many numbers each has. The first
// thread sums into the result.
template <class G, class Real> class SharedGradients {
 public:
  SharedGradients(G result, std::size_t threads) : of_thread{result} {
    std::size_t total = 0;
    result.for_each([&](Real*, std::size_t count) { total += count; });
    for (std::size_t i = 1; i < threads; i++) {
      memory_.emplace_back(total);
      memory_.back().clear(total);
      Real* at = memory_.back();
      G own = result;
      own.for_each([&](Real*& field, std::size_t count) {
        field = field ? at : nullptr;
        at += count;
      });
      of_thread.push_back(own);
    }
  }

  void sum() {
    for (std::size_t i = 1; i < of_thread.size(); i++) {
      Real* from = memory_[i - 1];
      of_thread[0].for_each([&](Real* field, std::size_t count) {
        for (std::size_t j = 0; field && j < count; j++) field[j] += from[j];
        from += count;
      });
    }
  }

  std::vector<G> of_thread;

 private:
  std::vector<Buffer<Real>> memory_;
};

}  // namespace linmem
