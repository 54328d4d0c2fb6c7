// Products of a few rows with a weight matrix that is used again and again.
//
// A weight matrix is packed once into panels: at most as many columns as a register tile is wide, one line per unit of
// depth, so that a tile reads its panel from front to back. A tile of sums stays in registers for the whole depth, over
// several terms if need be ([h, m] [W_hm, W_mm]ᵀ is one product with two terms), and is then handed to `finish`, which
// adds, activates and stores it while it is in the nearest cache.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "vectors.h"

namespace linmem {

// Aligned scratch memory.
template <class Real> class Buffer {
 public:
  explicit Buffer(std::size_t n) {
    const std::size_t line = 64, bytes = std::max(line, (n * sizeof(Real) + line - 1) / line * line);
    data_.reset(static_cast<Real*>(std::aligned_alloc(line, bytes)));
    if (!data_) throw std::bad_alloc();
  }
  operator Real*() const { return data_.get(); }
  void clear(std::size_t n) { std::memset(data_.get(), 0, n * sizeof(Real)); }

 private:
  struct Free {
    void operator()(Real* p) const { std::free(p); }
  };
  std::unique_ptr<Real[], Free> data_;
};

// One factor of a product: its numbers, how far apart its rows are, and its share of the depth.
template <class Real> struct Term {
  const Real* data;
  std::ptrdiff_t stride;
  int depth;
};

template <class Real> class Panels {
 public:
  Panels(int columns, int depth)
      : columns(columns),
        depth(depth),
        vectors_((columns + lanes<Real> - 1) / lanes<Real>),
        count_((vectors_ + tile_vectors - 1) / tile_vectors),
        data_(std::size_t(vectors_) * lanes<Real> * depth) {}

  // The first column of a panel. Panels differ by one vector at most: three and one would take longer than two and two.
  int first(int i) const { return (i * (vectors_ / std::max(1, count_)) + std::min(i, vectors_ % std::max(1, count_))) * lanes<Real>; }
  // How many panels have the first `columns` columns.
  int panels(int columns) const {
    int i = 0;
    while (i < count_ && first(i) < columns) i++;
    return i;
  }
  int width(int i) const { return first(i + 1) - first(i); }
  const Real* panel(int i) const { return data_ + std::size_t(first(i)) * depth; }

  // The product with this will be x Wᵀ, where W is (columns, width) and fills the depth from `at` on.
  Panels& pack_transposed(const Real* W, std::ptrdiff_t stride, int at, int width) {
    for_each_panel([&](Real* to, int line, int first, int n) {
      for (int c = 0; c < line; c += lanes<Real>)
        for (int k = 0; k < width; k += lanes<Real>) {
          const int rows = n - c, columns = width - k;
          Vector<Real> block[lanes<Real>];
          for (int i = 0; i < lanes<Real>; i++)
            block[i] = i < rows ? load(W + (first + c + i) * stride + k, columns) : Vector<Real>{};
          transpose<Real>(block);
          for (int i = 0; i < lanes<Real> && i < columns; i++) store(to + std::ptrdiff_t(at + k + i) * line + c, block[i]);
        }
    });
    return *this;
  }

  // The product with this will be x W, where row(k) points to row k of W, (height, columns), which fills the depth from
  // `at` on.
  template <class Row> Panels& pack_rows(int at, int height, Row row) {
    for_each_panel([&](Real* to, int line, int first, int n) {
      for (int k = 0; k < height; k++) {
        const Real* from = row(k) + first;
        Real* out = to + std::size_t(at + k) * line;
        for (int c = 0; c < line; c += lanes<Real>) store(out + c, load(from + c, n - c));
      }
    });
    return *this;
  }

  Panels& pack(const Real* W, std::ptrdiff_t stride, int at, int height) {
    return pack_rows(at, height, [&](int k) { return W + k * stride; });
  }

  const int columns, depth;

 private:
  // Call f(panel, its width, its first column, how many of its columns there are).
  template <class F> void for_each_panel(F f) {
    for (int i = 0; i < count_; i++)
      f(data_ + std::size_t(first(i)) * depth, width(i), first(i), std::min(width(i), columns - first(i)));
  }

  const int vectors_, count_;
  Buffer<Real> data_;
};

// How the numbers of a term lie: `rows` has one row of the product after the other, as activations do; `columns` is
// the transposed of that, as activations are when gradients of weights are summed over them.
enum class Lie { rows, columns };

// `height` rows of a product with one panel, whose lines are `line` wide, into `out` with lines of tile_width.
// Kept apart from its callers: among their variables there would not be enough registers for its own.
template <Lie lie, int height, int vectors, class Real>
__attribute__((noinline)) void tile(const Term<Real>* terms, int n_terms, int row, const Real* panel, int line, Real* out) {
  // A small tile has too few sums to hide the latency of an addition, so there it is kept several times.
  constexpr int copies = height * vectors >= 8 ? 1 : height * vectors >= 4 ? 2 : height * vectors >= 2 ? 4 : 8;
  Vector<Real> sums[copies][height][vectors] = {};
  for (int term = 0; term < n_terms; term++) {
    const auto [data, stride, depth] = terms[term];
    const Real* a = lie == Lie::rows ? data + row * stride : data + row;
    const auto add = [&](Vector<Real>(&into)[height][vectors], int k) __attribute__((always_inline)) {
      Vector<Real> w[vectors];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) w[j] = load(panel + std::ptrdiff_t(k) * line + j * lanes<Real>);
#pragma GCC unroll 8
      for (int i = 0; i < height; i++) {
        const Real number = lie == Lie::rows ? a[i * stride + k] : a[k * stride + i];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) into[i][j] += number * w[j];
      }
    };
    int k = 0;
    for (; k + copies <= depth; k += copies)
#pragma GCC unroll 8
      for (int c = 0; c < copies; c++) add(sums[c], k + c);
    if (copies > 1)
      for (; k < depth; k++) add(sums[0], k);
    panel += std::ptrdiff_t(depth) * line;
  }
#pragma GCC unroll 4
  for (int half = copies / 2; half > 0; half /= 2)
#pragma GCC unroll 4
    for (int c = 0; c < half; c++)
#pragma GCC unroll 8
      for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[c][i][j] += sums[c + half][i][j];
#pragma GCC unroll 8
  for (int i = 0; i < height; i++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) store(out + (i * tile_vectors + j) * lanes<Real>, sums[0][i][j]);
}

// A tile of a height that is known at run time only.
template <Lie lie, int vectors, int height = tile_rows, class Real>
inline void tile_of(int rows, const Term<Real>* terms, int n_terms, int row, const Real* panel, int line, Real* out) {
  if constexpr (height > 1)
    if (rows < height) return tile_of<lie, vectors, height - 1>(rows, terms, n_terms, row, panel, line, out);
  tile<lie, height, vectors>(terms, n_terms, row, panel, line, out);
}

// The first `columns` columns of terms × panels, row by row and vector by vector into
// finish(row, column, n, vector), of which the first n lanes count. The depths of the terms must not exceed that
// of the panels together. Steps of a recurrence go through the panels to and fro (`reverse`): those that were read last
// are still in the nearest cache.
template <Lie lie = Lie::rows, class Real, class Finish>
void multiply(int rows, int columns, const Term<Real>* terms, int n_terms, const Panels<Real>& weights, Finish finish,
              bool reverse = false) {
  alignas(64) Real out[tile_rows * tile_vectors * lanes<Real>];
  const int tiles = (rows + tile_rows - 1) / tile_rows;  // of about the same height
  const int panels = weights.panels(columns);
  for (int q = 0; q < panels; q++) {
    const int p = reverse ? panels - 1 - q : q, column = weights.first(p);
    const Real* panel = weights.panel(p);
    const int line = weights.width(p), width = std::min(line, columns - column);
    for (int i = 0, row = 0; i < tiles; i++) {
      const int height = rows / tiles + (i < rows % tiles);
      if (tile_vectors >= 3 && width > 2 * lanes<Real>)
        tile_of<lie, std::min(3, tile_vectors)>(height, terms, n_terms, row, panel, line, out);
      else if (width > lanes<Real>)
        tile_of<lie, 2>(height, terms, n_terms, row, panel, line, out);
      else
        tile_of<lie, 1>(height, terms, n_terms, row, panel, line, out);
      for (int r = 0; r < height; r++, row++)
        for (int j = 0; j < width; j += lanes<Real>)
          finish(row, column + j, width - j, load(out + r * tile_vectors * lanes<Real> + j));
    }
  }
}

template <class Real, class Finish>
void multiply(int rows, int columns, Term<Real> term, const Panels<Real>& weights, Finish finish, bool reverse = false) {
  multiply(rows, columns, &term, 1, weights, finish, reverse);
}

// gradient += deltaᵀ values, over `depth` rows of both; the values are packed.
template <class Real>
void add_outer(Real* gradient, std::ptrdiff_t stride, int rows, Term<Real> delta, const Panels<Real>& values) {
  if (!gradient) return;
  multiply<Lie::columns>(rows, values.columns, &delta, 1, values, [&](int r, int c, int n, Vector<Real> v) {
    Real* to = gradient + r * stride + c;
    store(to, load(to, n) + v, n);
  });
}

// gradient += the sum of the rows of delta.
template <class Real> void add_rows(Real* gradient, int columns, Term<Real> delta) {
  if (!gradient) return;
  for (int k = 0; k < delta.depth; k++)
    for (int c = 0; c < columns; c += lanes<Real>)
      store(gradient + c, load(gradient + c, columns - c) + load(delta.data + k * delta.stride + c, columns - c),
            columns - c);
}

}  // namespace linmem
