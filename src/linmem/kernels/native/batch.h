// Batches of sequences: how they lie in memory, where they end, and how they are divided among threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace linmem {

// Numbers of the sequences b at the steps t, `width` of them side by side; null where nobody wants them.
template <class Real> struct Sequence {
  Real* data;
  std::ptrdiff_t time, batch;

  Real* at(int64_t t, int64_t b) const { return data + t * time + b * batch; }
  explicit operator bool() const { return data != nullptr; }
};

// The sequences [first, last) of a batch, which one thread works on. They go from long to short, so that those that
// are alive at a step are the first ones, and work on them never meets padding.
struct Share {
  int64_t first, last, steps;
  const int64_t* lengths;  // of the whole batch, or null where all have all steps

  int size() const { return int(last - first); }
  int64_t length(int row) const { return lengths ? lengths[first + row] : steps; }
  int64_t longest() const { return size() ? length(0) : 0; }

  // How many are alive at step t.
  int alive(int64_t t) const {
    if (!lengths) return t < steps ? size() : 0;
    const auto end = std::partition_point(lengths + first, lengths + last, [&](int64_t n) { return n > t; });
    return int(end - (lengths + first));
  }
};

// Shares of about equal work, one for each thread. The same number of threads gives the same shares.
inline std::vector<Share> shares(int64_t batch, int64_t steps, const int64_t* lengths, int64_t threads) {
  int64_t work = 0, done = 0;
  for (int64_t b = 0; b < batch; b++) work += lengths ? lengths[b] : steps;
  std::vector<Share> result;
  threads = std::max<int64_t>(1, std::min(threads, batch));
  for (int64_t i = 0, first = 0; i < threads; i++) {
    int64_t last = first;
    while (last < batch && (i == threads - 1 || done * threads < work * (i + 1))) {
      done += lengths ? lengths[last] : steps;
      last++;
    }
    result.push_back({first, last, steps, lengths});
    first = last;
  }
  return result;
}

// For every sequence of a share, the rows [from, to) of time that exist, as runs of rows that are equally far apart:
// run(t, row, n, across_batch), n sequences at one step or n steps of one sequence, whichever is longer.
template <class Run> void for_runs(const Share& share, int64_t from, int64_t to, Run run) {
  if (share.size() >= to - from) {
    for (int64_t t = from; t < to; t++) run(t, 0, share.alive(t), true);
  } else {
    for (int row = 0; row < share.size(); row++)
      run(from, row, int(std::max<int64_t>(0, std::min(to, share.length(row)) - from)), false);
  }
}

}  // namespace linmem
