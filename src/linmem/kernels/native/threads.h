// Running the shares of a batch side by side.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace linmem {

// OpenMP's entry for "run this in so many threads", in the runtime that torch has loaded, or null. torch's threads spin
// for a while after every operation, to be there at once for the next; threads of our own would have to share their
// cores with them. Nobody links OpenMP for this: kernels/library.py looks the function up.
using Parallel = void (*)(void (*run)(void*), void* data, unsigned threads, unsigned flags);
inline Parallel parallel = nullptr;

// A forked child has none of the threads that the runtime believes in.
inline pid_t home = getpid();

// Run work(i) for every i < n, each in a thread of its own if there are enough.
template <class Work> void in_parallel(std::size_t n, Work work) {
  std::vector<std::exception_ptr> failures(n);
  std::atomic<std::size_t> next{0};
  auto run = [&] {
    for (std::size_t i; (i = next++) < n;) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  if (n < 2) {
    run();
  } else if (parallel && getpid() == home) {
    parallel([](void* data) { (*static_cast<decltype(run)*>(data))(); }, &run, unsigned(n), 0);
  } else {
    std::vector<std::thread> others;
    try {
      while (others.size() + 1 < n) others.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads to be had: those that are there do it all
    }
    run();
    for (std::thread& other : others) other.join();
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace linmem
