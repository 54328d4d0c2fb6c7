// Models whose state has modules with clocks. A module that fires at step t takes
//
//     MultiScale LMN   m_k^t = Σ_i W_ik m_i^{t-1} + W_hk h^t + b_k,   h^t = σ(W_xh x^t + Σ_i W_ih m_i^{t-1} + b_h)
//     Clockwork RNN    m_k^t = σ(Σ_i W_ik m_i^{t-1} + W_xk x^t + b_k)
//
// and keeps its state otherwise. They are one loop: what a module takes is fed by h^t in one, by x^t in the other.
//
// A module that does not fire goes on contributing the same, so its contribution is computed when it fires and kept.
// For groups of modules from fast to slow, S_i is what group i and all slower ones contribute together, to the hidden
// units and to the modules that hear them:  S_i = S_{i+1} + (contribution of group i).  When a group fires, its sum and
// those of faster groups are computed anew. With one group for all modules this is the dense recurrence.
#pragma once

#include "activations.h"
#include "batch.h"
#include "layout.h"
#include "panels.h"
#include "projection.h"
#include "single_row.h"
#include "threads.h"

namespace linmem {

// What kernels/native.py sends: the same fields in the same order. Arrays that nobody wants are null. A Clockwork RNN has
// N_h = 0. w_u leads from h, or from x, to the modules; w_mm is packed.
template <class Real> struct ClockedCall {
  int64_t T, B, N_x, N_h, modules, threads;
  Nonlinearity nonlinearity;
  int64_t clock;
  const int64_t *layout, *lengths;
  Sequence<const Real> x;
  const Real *start, *w_xh, *w_mh, *w_u, *w_mm, *b_h, *b_m;
  Real *h, *m, *end;
};

// And for the way back: gradients that come, and those that go.
template <class Real> struct ClockedGradients {
  Sequence<const Real> h, m;
  const Real* end;
  Real *x, *start, *w_xh, *w_mh, *w_u, *w_mm, *b_h, *b_m;
};

template <class Real> class Clocked {
 public:
  explicit Clocked(const ClockedCall<Real>& call)
      : n(call),
        layout(n.layout, n.modules),
        has_h(n.N_h > 0),
        N_h(int(n.N_h)),
        N_u(int(has_h ? n.N_h : n.N_x)),
        width(layout.width),
        b_h(or_zeros(n.b_h, n.N_h)),
        b_m(or_zeros(n.b_m, width)) {}

  void forward() {
    if (n.T * n.B <= few_rows) return forward_unpacked();
    const Buffer<Real> weights = contributions();
    Panels<Real> w_xh(N_h, int(n.N_x)), w_u(width, N_u);
    if (has_h) w_xh.pack_transposed(n.w_xh, n.N_x, 0, n.N_x);
    w_u.pack_transposed(n.w_u, N_u, 0, N_u);
    std::vector<Panels<Real>> give;
    for (const Group& g : layout.groups) {
      give.emplace_back(N_h + g.reach, g.last - g.first);
      give.back().pack_transposed(weights + g.first, width, 0, g.last - g.first);
    }
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    in_parallel(parts.size(), [&](std::size_t i) { forward(parts[i], w_xh, w_u, give); });
  }

  void backward(const ClockedGradients<Real>& g) {
    const Buffer<Real> weights = contributions();
    Panels<Real> to_x(int(n.N_x), N_h), to_u(N_u, width);
    if (has_h) to_x.pack(n.w_xh, n.N_x, 0, N_h);
    to_u.pack(n.w_u, N_u, 0, width);
    std::vector<Panels<Real>> take;
    for (const Group& g : layout.groups) {
      take.emplace_back(g.last - g.first, N_h + g.reach);
      take.back().pack(weights + g.first, width, 0, N_h + g.reach);
    }
    Buffer<Real> g_weights((N_h + width) * width);
    g_weights.clear((N_h + width) * width);
    Weights result{n, width, g.w_xh, g.w_mh || g.w_mm ? g_weights + 0 : nullptr, g.w_u, g.b_h, g.b_m};
    const auto parts = shares(n.B, n.T, n.lengths, threads());
    SharedGradients<Weights, Real> sums(result, parts.size());
    in_parallel(parts.size(), [&](std::size_t i) { backward(parts[i], g, to_x, to_u, take, sums.of_thread[i]); });
    sums.sum();
    if (g.w_mh) std::copy(g_weights + 0, g_weights + N_h * width, g.w_mh);
    if (g.w_mm)
      for_slabs([&](int64_t unit, const Module& m, int64_t at) {
        const Real* line = g_weights + (N_h + unit) * width;
        std::copy(line + m.from, line + m.to, g.w_mm + at);
      });
  }

 private:
  static constexpr int64_t few_rows = 8;  // so few rows take less time than packing the weights does

  const ClockedCall<Real>& n;
  const Layout layout;
  const bool has_h;
  const int N_h, N_u, width;
  const Buffer<Real> b_h, b_m;

  struct Weights {
    const ClockedCall<Real>& n;
    int width;
    Real *w_xh, *weights, *w_u, *b_h, *b_m;

    template <class F> void for_each(F f) {
      f(w_xh, n.N_h * n.N_x);
      f(weights, (n.N_h + width) * width);
      f(w_u, width * (n.N_h > 0 ? n.N_h : n.N_x));
      f(b_h, n.N_h);
      f(b_m, width);
    }
  };

  // Threads only where the work is worth making them.
  int64_t threads() const {
    return n.T * n.B * (n.N_h * n.N_x + (2 * N_h + N_u) * width) < 500'000 ? 1 : n.threads;
  }

  // Call f(unit, its module, where its row begins in the packed weights).
  template <class F> void for_slabs(F f) const {
    for (const Module& m : layout.modules)
      for (int unit = m.first; unit < m.last; unit++) f(unit, m, m.weights + int64_t(unit - m.first) * (m.to - m.from));
  }

  // What every unit contributes to hidden units and modules, (N_h + width, width).
  Buffer<Real> contributions() const {
    Buffer<Real> all(int64_t(N_h + width) * width);
    if (has_h) std::copy(n.w_mh, n.w_mh + int64_t(N_h) * width, all + 0);
    std::fill(all + int64_t(N_h) * width, all + int64_t(N_h + width) * width, Real(0));
    for_slabs([&](int64_t unit, const Module& m, int64_t at) {
      std::copy(n.w_mm + at, n.w_mm + at + (m.to - m.from), all + (N_h + unit) * width + m.from);
    });
    return all;
  }

  // What a module makes of the sum of all it is fed.
  Vector<Real> take(Vector<Real> v) const { return has_h ? v : activate<Real>(n.nonlinearity, v); }

  // ------------------------------------------------------------------------------------------------ forward

  // The S_i of a share.
  struct Sums {
    std::vector<Buffer<Real>> of_group;
    std::vector<int> strides;

    Sums(const Layout& layout, int N_h, int rows) {
      for (const Group& g : layout.groups) {
        of_group.emplace_back(int64_t(rows) * (N_h + g.reach) + lanes<Real>);
        strides.push_back(N_h + g.reach);
      }
    }
    Real* row(int group, int r) { return of_group[group] + int64_t(r) * strides[group]; }
  };

  // Compute S_i anew for the first `groups` groups, from the memory of so many rows. Of the fastest sum, which will be
  // read at the next step only, the first `units` units are enough.
  void contribute(int groups, int units, int rows, const Real* memory, const std::vector<Panels<Real>>& give,
                  Sums& sums) const {
    for (int i = groups - 1; i >= 0; i--) {
      const Group& g = layout.groups[i];
      const int columns = N_h + (i == 0 ? std::min(units, g.reach) : g.reach);
      const bool slowest = i + 1 == int(layout.groups.size());
      multiply(rows, columns, {memory + g.first, width, g.last - g.first}, give[i],
               [&](int r, int c, int count, Vector<Real> v) {
                 if (!slowest) v += load(sums.row(i + 1, r) + c, count);
                 store(sums.row(i, r) + c, v, count);
               });
    }
  }

  void forward(const Share& share, const Panels<Real>& w_xh, const Panels<Real>& w_u,
               const std::vector<Panels<Real>>& give) {
    const int rows = share.size();
    if (rows == 0) return;
    const int64_t block = steps_of(forward_rows, share);
    Buffer<Real> hidden(n.h ? 0 : block * rows * N_h), memory(n.m ? 0 : 2 * rows * width);
    Sums sums(layout, N_h, rows);
    const Real* before = n.start + share.first * width;
    std::copy(before, before + int64_t(rows) * width, n.end + share.first * width);
    contribute(int(layout.groups.size()), width, rows, before, give, sums);
    Sequence<Real> h{};
    Firing firing = layout.at(n.clock);
    for (int64_t t = 0, t0 = 0; t < share.longest(); t++) {
      const int alive = share.alive(t), go_on = share.alive(t + 1);
      if (has_h) {
        if (t % block == 0) {
          t0 = t;
          h = n.h ? Sequence<Real>{n.h + (t0 * n.B + share.first) * N_h, n.B * N_h, N_h}
                  : Sequence<Real>{hidden, int64_t(rows) * N_h, N_h};
          project(share, t0, std::min(share.longest(), t0 + block), n.x, w_xh, static_cast<const Real*>(b_h), h);
        }
        for (int r = 0; r < alive; r++) {
          Real *to = h.at(t - t0, r), *from = sums.row(0, r);
          for (int c = 0; c < N_h; c += lanes<Real>)
            store(to + c, activate<Real>(n.nonlinearity, load(to + c, N_h - c) + load(from + c)), N_h - c);
        }
      }
      Real* m = n.m ? n.m + (t * n.B + share.first) * width : memory + (t % 2) * rows * width;
      for (int r = 0; r < alive; r++) {
        Real* to = m + int64_t(r) * width;
        for (int k = 0; k < firing.modules; k++) {
          const Module& module = layout.modules[k];
          const Real* from = sums.row(module.group, r) + N_h;
          for (int c = module.first; c < module.last; c += lanes<Real>)
            store(to + c, load(from + c) + load(b_m + c), module.last - c);
        }
      }
      const Term<Real> fed = has_h ? Term<Real>{h.at(t - t0, 0), N_h, N_h}
                                   : Term<Real>{n.x.at(t, share.first), n.x.batch, N_u};
      multiply(alive, firing.units, fed, w_u, [&](int r, int c, int count, Vector<Real> v) {
        Real* to = m + int64_t(r) * width + c;
        store(to, take(v + load(to, count)), count);
      });
      layout.for_held(firing, n.clock + t, [&](int first, int last) {
        for (int r = 0; r < alive; r++)
          std::copy(before + int64_t(r) * width + first, before + int64_t(r) * width + last, m + int64_t(r) * width + first);
      });
      std::copy(m + int64_t(go_on) * width, m + int64_t(alive) * width, n.end + (share.first + go_on) * width);
      const Firing next = layout.at(n.clock + t + 1);
      const bool every_step = layout.modules[0].period == 1;
      if (go_on) contribute(firing.groups, every_step ? next.units : width, go_on, m, give, sums);
      firing = next;
      before = m;
    }
    clear_padding(share);
  }

  void forward_unpacked() {
    Buffer<Real> hidden(N_h + lanes<Real>), next(width);
    for (int64_t b = 0; b < n.B; b++) {
      Real* state = n.end + b * width;
      std::copy(n.start + b * width, n.start + (b + 1) * width, state);
      for (int64_t t = 0; t < (n.lengths ? n.lengths[b] : n.T); t++) {
        Real* h = n.h ? n.h + (t * n.B + b) * N_h : hidden + 0;
        const Weighted<Real> to_h[] = {{n.w_xh, n.x.at(t, b), int(n.N_x)}, {n.w_mh, state, width}};
        multiply_row(N_h, to_h, 2, [&](int i, int count, const Real* sums) {
          for (int j = 0; j < count; j += lanes<Real>)
            store(h + i + j, activate<Real>(n.nonlinearity, load(sums + j) + load(b_h + i + j)), count - j);
        });
        const Real* fed = has_h ? h : n.x.at(t, b);
        const Firing firing = layout.at(n.clock + t);
        for (int k = 0; k < firing.modules; k++) {
          const Module& m = layout.modules[k];
          const Weighted<Real> to_m[] = {{n.w_u + int64_t(m.first) * N_u, fed, N_u},
                                         {n.w_mm + m.weights, state + m.from, m.to - m.from}};
          multiply_row(m.last - m.first, to_m, 2, [&](int i, int count, const Real* sums) {
            for (int j = 0; j < count; j += lanes<Real>)
              store(next + m.first + i + j, take(load(sums + j) + load(b_m + m.first + i + j)), count - j);
          });
        }
        layout.for_held(firing, n.clock + t,
                        [&](int first, int last) { std::copy(state + first, state + last, next + first); });
        std::copy(next + 0, next + width, state);
        if (n.m) std::copy(next + 0, next + width, n.m + (t * n.B + b) * width);
      }
    }
    clear_padding({0, n.B, n.T, n.lengths});
  }

  void clear_padding(const Share& share) {
    if (!share.lengths) return;
    for (int64_t t = 0; t < n.T; t++) {
      const int64_t from = t * n.B + share.first + share.alive(t), to = t * n.B + share.last;
      if (n.h) std::fill(n.h + from * N_h, n.h + to * N_h, Real(0));
      if (n.m) std::fill(n.m + from * width, n.m + to * width, Real(0));
    }
  }

  // ------------------------------------------------------------------------------------------------ backward

  // What a group collects backwards in time. While it holds its state, everything that reads its sum adds to one row of
  // `d_sum` for each sequence; when it fires, the row is complete and the next one opened. With the state that made the
  // contribution, and with `d_m`, the gradient of what the group took at that step, the rows give the gradients of
  // weights, many rows at a time.
  class Interval {
   public:
    Interval(const Group& g, int N_h, int N_u, int rows)
        : units(g.last - g.first),
          reach(N_h + g.reach),
          rows_(rows),
          capacity_(std::max<int64_t>(backward_rows, rows)),
          d_sum_(capacity_ * reach + lanes<Real>),
          d_m_(capacity_ * units + lanes<Real>),
          states_(units, int(capacity_)),
          fed_(N_u, int(capacity_)) {
      open();
    }

    Real* d_sum(int row) { return d_sum_ + (used_ + row) * reach; }
    Real* d_m(int row) { return d_m_ + (used_ + row) * units; }

    // The open rows are complete: state(row) and fed(row) are what they go with.
    template <class State, class Fed>
    void close(int rows, State state, Fed fed, Real* g_weights, int stride, Real* g_w_u, int N_u, Real* g_b_m) {
      for (int r = 0; r < rows; r++) {
        state_at_.push_back(state(r));
        fed_at_.push_back(fed(r));
      }
      used_ += rows;
      if (used_ + rows_ > capacity_) flush(g_weights, stride, g_w_u, N_u, g_b_m);
      open();
    }

    void flush(Real* g_weights, int stride, Real* g_w_u, int N_u, Real* g_b_m) {
      const int count = int(used_);
      if (g_weights) states_.pack_rows(0, count, [&](int k) { return state_at_[k]; });
      add_outer(g_weights, stride, reach, {d_sum_, reach, count}, states_);
      if (g_w_u) fed_.pack_rows(0, count, [&](int k) { return fed_at_[k]; });
      add_outer(g_w_u, N_u, units, {d_m_, units, count}, fed_);
      add_rows(g_b_m, units, {d_m_, units, count});
      state_at_.clear();
      fed_at_.clear();
      used_ = 0;
    }

    const int units, reach;
    int filled = 0;  // columns of the open rows behind which there are zeros only

   private:
    void open() {
      std::fill(d_sum(0), d_sum(rows_), Real(0));
      filled = 0;
    }

    const int rows_;
    const int64_t capacity_;
    int64_t used_ = 0;
    Buffer<Real> d_sum_, d_m_;
    std::vector<const Real*> state_at_, fed_at_;
    Panels<Real> states_, fed_;
  };

  void backward(const Share& share, const ClockedGradients<Real>& g, const Panels<Real>& to_x, const Panels<Real>& to_u,
                const std::vector<Panels<Real>>& take, Weights& sums) {
    const int rows = share.size(), groups = int(layout.groups.size());
    if (rows == 0) return;
    std::vector<Interval> intervals;
    for (const Group& group : layout.groups) intervals.emplace_back(group, N_h, N_u, rows);
    Buffer<Real> d_m(rows * width), taken(rows * width), zeros(std::max(width, N_u));
    d_m.clear(rows * width);
    zeros.clear(std::max(width, N_u));

    // Through the sums of the first `last` groups to their states.
    const auto through_sums = [&](int last, int count) {
      for (int i = 0; i < last; i++) {
        Interval& interval = intervals[i];
        if (interval.filled == 0) continue;
        Real* to = d_m + layout.groups[i].first;
        multiply(count, interval.units, {interval.d_sum(0), interval.reach, interval.filled}, take[i],
                 [&](int r, int c, int width_left, Vector<Real> v) {
                   Real* at = to + int64_t(r) * width + c;
                   store(at, v + load(at, width_left), width_left);
                 });
        if (i + 1 == groups) continue;
        for (int r = 0; r < count; r++) add(intervals[i + 1].d_sum(r), interval.d_sum(r), interval.filled);
        intervals[i + 1].filled = std::max(intervals[i + 1].filled, interval.filled);
      }
    };
    const auto close = [&](int i, int count, auto state, auto fed) {
      const Group& group = layout.groups[i];
      intervals[i].close(count, state, fed, sums.weights ? sums.weights + group.first : nullptr, width,
                         sums.w_u ? sums.w_u + int64_t(group.first) * N_u : nullptr, N_u, sums.b_m ? sums.b_m + group.first : nullptr);
    };

    const int64_t steps = steps_of(backward_rows, share);
    Buffer<Real> d_h(steps * rows * N_h + lanes<Real>);
    ProjectionGradients<Real> projection(has_h ? steps * rows : 0, n.x, {g.x, n.B * n.N_x, n.N_x}, to_x, sums.w_xh, sums.b_h);
    Chunk chunk;
    for (int64_t t1 = share.longest(), t0; t1 > 0; t1 = t0) {
      t0 = std::max<int64_t>(0, t1 - steps);
      if (has_h) chunk.fill(share, t0, t1);
      for (int64_t t = t1 - 1; t >= t0; t--) {
        const int alive = share.alive(t), go_on = share.alive(t + 1);
        if (g.end)
          for (int r = go_on; r < alive; r++) {
            const Real* end = g.end + (share.first + r) * width;
            std::copy(end, end + width, d_m + int64_t(r) * width);
          }
        if (g.m)
          for (int r = 0; r < alive; r++) add(d_m + int64_t(r) * width, g.m.at(t, share.first + r), width);
        const Firing firing = layout.at(n.clock + t);
        through_sums(firing.groups, go_on);

        // What fires took something new, and nothing of its own state went through.
        const Real* m = n.m + (t * n.B + share.first) * width;
        for (int r = 0; r < alive; r++) {
          Real *from = d_m + int64_t(r) * width, *to = taken + int64_t(r) * width;
          for (int c = 0; c < firing.units; c += lanes<Real>) {
            const int left = firing.units - c;
            Vector<Real> v = load(from + c, left);
            if (!has_h) v *= slope<Real>(n.nonlinearity, load(m + int64_t(r) * width + c, left));
            store(to + c, v, left);
          }
          for (int k = 0; k < firing.modules; k++) {
            const Module& module = layout.modules[k];
            const bool fires = layout.fires(module, n.clock + t);
            Real* gone = fires ? from : to;
            std::fill(gone + module.first, gone + module.last, Real(0));
          }
          for (int i = 0; i < firing.groups; i++) {
            const Group& group = layout.groups[i];
            const int last = std::min(group.last, firing.units);
            Real* d = intervals[i].d_m(r);
            std::copy(to + group.first, to + last, d);
            std::fill(d + (last - group.first), d + (group.last - group.first), Real(0));
          }
        }
        for (int i = 0; i < firing.groups; i++)
          close(
              i, alive, [&](int r) { return m + int64_t(r) * width + layout.groups[i].first; },
              [&](int r) {
                return has_h ? n.h + (t * n.B + share.first + r) * N_h : n.x.at(t, share.first + r);
              });

        if (has_h) {
          Real* d_h_t = d_h + chunk.begins[t - t0] * N_h;
          const Real* h = n.h + (t * n.B + share.first) * N_h;
          multiply(alive, N_h, {taken, width, firing.units}, to_u, [&](int r, int c, int count, Vector<Real> v) {
            if (g.h) v += load(g.h.at(t, share.first + r) + c, count);
            store(d_h_t + r * N_h + c, v * slope<Real>(n.nonlinearity, load(h + r * N_h + c, count)), count);
          });
          for (int r = 0; r < alive; r++) add(intervals[0].d_sum(r), d_h_t + r * N_h, N_h);
          intervals[0].filled = std::max(intervals[0].filled, N_h);
        } else if (g.x) {
          multiply(alive, N_u, {taken, width, firing.units}, to_u, [&](int r, int c, int count, Vector<Real> v) {
            store(g.x + (t * n.B + share.first + r) * n.N_x + c, v, count);
          });
        }
        for (int k = 0; k < firing.modules; k++) {
          const Module& module = layout.modules[k];
          Interval& interval = intervals[module.group];
          for (int r = 0; r < alive; r++)
            add(interval.d_sum(r) + N_h + module.first, taken + int64_t(r) * width + module.first, module.last - module.first);
          interval.filled = std::max(interval.filled, N_h + module.last);
        }
      }
      if (has_h) projection.add(chunk, d_h);
    }

    const int alive = share.alive(0);
    if (g.end)
      for (int r = alive; r < rows; r++) {
        const Real* end = g.end + (share.first + r) * width;
        std::copy(end, end + width, d_m + int64_t(r) * width);
      }
    through_sums(groups, alive);
    for (int i = 0; i < groups; i++) {
      for (int r = 0; r < alive; r++) std::fill(intervals[i].d_m(r), intervals[i].d_m(r + 1), Real(0));
      close(
          i, alive, [&](int r) { return n.start + (share.first + r) * width + layout.groups[i].first; },
          [&](int) { return static_cast<const Real*>(zeros); });
      const Group& group = layout.groups[i];
      intervals[i].flush(sums.weights ? sums.weights + group.first : nullptr, width,
                         sums.w_u ? sums.w_u + int64_t(group.first) * N_u : nullptr, N_u, sums.b_m ? sums.b_m + group.first : nullptr);
    }
    if (g.start) std::copy(d_m + 0, d_m + rows * width, g.start + share.first * width);
  }

  static void add(Real* to, const Real* from, int count) {
    for (int c = 0; c < count; c += lanes<Real>) store(to + c, load(to + c, count - c) + load(from + c, count - c), count - c);
  }
};

}  // namespace linmem
