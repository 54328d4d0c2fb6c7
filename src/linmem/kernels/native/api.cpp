// The functions that kernels/native.py calls. They return 0, or 1 where memory ran out; nothing is thrown to the caller.

#include "clocked.h"
#include "linear.h"
#include "lmn.h"
#include "unrolled.h"

#define LINMEM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

template <class Run> int guarded(Run run) noexcept {
  try {
    run();
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace

using namespace linmem;

// How calls are laid out in memory: counted up, here and in kernels/library.py, with every change of a structure.
LINMEM_EXPORT int linmem_calls() { return 3; }

// Run in the threads of this runtime from now on.
LINMEM_EXPORT void linmem_use_threads_of(Parallel runtime) { parallel = runtime; }

// The best level of vectors.h that this machine can run, by its name in CMakeLists.txt.
LINMEM_EXPORT const char* linmem_machine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    return "avx512";
  return avx2 ? "avx2" : "portable";
#elif defined(__aarch64__)
  return "neon";
#else
  return "portable";
#endif
}

// One function runs all models, so that the list of them stands here once: kernels/native.py names one by its number.
enum class Kind : int64_t { lmn, clocked, linear, unrolled };

namespace {

// Forward, or backward where there are gradients.
template <class Model, class Call, class Gradients> void pass(const void* call, const void* gradients) {
  Model model(*static_cast<const Call*>(call));
  gradients ? model.backward(*static_cast<const Gradients*>(gradients)) : model.forward();
}

template <class Real> int run(Kind kind, const void* call, const void* gradients) {
  return guarded([&] {
    switch (kind) {
      case Kind::lmn: return pass<Lmn<Real>, LmnCall<Real>, LmnGradients<Real>>(call, gradients);
      case Kind::clocked: return pass<Clocked<Real>, ClockedCall<Real>, ClockedGradients<Real>>(call, gradients);
      case Kind::linear: return pass<Linear<Real>, LinearCall<Real>, LinearGradients<Real>>(call, gradients);
      case Kind::unrolled: return pass<Unrolled<Real>, UnrolledCall<Real>, UnrolledGradients<Real>>(call, gradients);
    }
  });
}

}  // namespace

namespace {

// What changes from one call with the same weights to the next; the start, y and the end are contiguous.
template <class Real> struct Data {
  int64_t T, B, threads, clock;
  Sequence<const Real> x;
  const Real* start;
  Real *y, *end;
};

template <class Call, class Real> void set_output(Call& call, const Data<Real>& data) {
  (call.h ? call.h : call.m) = data.y;
}
template <class Real> void set_output(LinearCall<Real>& call, const Data<Real>& data) { call.m = data.y; }

template <class Call> void set_clock(Call&, int64_t) {}
template <class Real> void set_clock(ClockedCall<Real>& call, int64_t clock) { call.clock = clock; }

template <class Model, class Call, class Real> void forward(const void* prepared, const Data<Real>& data) {
  Call call = *static_cast<const Call*>(prepared);
  call.T = data.T;
  call.B = data.B;
  call.threads = data.threads;
  call.x = data.x;
  call.start = data.start;
  call.end = data.end;
  set_output(call, data);
  set_clock(call, data.clock);
  Model(call).forward();
}

// Forward with a call that was prepared before: its weights are in it and, of h and m, the one that is wanted not null.
template <class Real> int forward(Kind kind, const void* prepared, const Data<Real>& data) {
  return guarded([&] {
    switch (kind) {
      case Kind::lmn: return forward<Lmn<Real>, LmnCall<Real>>(prepared, data);
      case Kind::clocked: return forward<Clocked<Real>, ClockedCall<Real>>(prepared, data);
      case Kind::linear: return forward<Linear<Real>, LinearCall<Real>>(prepared, data);
      case Kind::unrolled: return;  // a tape is put together from what it returns, so it is not prepared
    }
  });
}

}  // namespace

LINMEM_EXPORT int linmem_run_float(Kind kind, const void* call, const void* gradients) {
  return run<float>(kind, call, gradients);
}

LINMEM_EXPORT int linmem_run_double(Kind kind, const void* call, const void* gradients) {
  return run<double>(kind, call, gradients);
}

LINMEM_EXPORT int linmem_forward_float(Kind kind, const void* prepared, int64_t T, int64_t B, int64_t threads,
                                       int64_t clock, const float* x, int64_t x_time, int64_t x_batch,
                                       const float* start, float* y, float* end) {
  return forward<float>(kind, prepared, {T, B, threads, clock, {x, x_time, x_batch}, start, y, end});
}

LINMEM_EXPORT int linmem_forward_double(Kind kind, const void* prepared, int64_t T, int64_t B, int64_t threads,
                                        int64_t clock, const double* x, int64_t x_time, int64_t x_batch,
                                        const double* start, double* y, double* end) {
  return forward<double>(kind, prepared, {T, B, threads, clock, {x, x_time, x_batch}, start, y, end});
}
