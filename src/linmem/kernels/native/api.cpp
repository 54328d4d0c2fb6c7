// The functions that kernels/native.py calls. They return 0, or 1 where memory ran out; nothing is thrown to the caller.

#include "clocked.h"
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
LINMEM_EXPORT int linmem_calls() { return 1; }

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
enum class Kind : int64_t { lmn, clocked, unrolled };

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
      case Kind::unrolled: return pass<Unrolled<Real>, UnrolledCall<Real>, UnrolledGradients<Real>>(call, gradients);
    }
  });
}

}  // namespace

namespace {

template <class Real> void set_clock(LmnCall<Real>&, int64_t) {}
template <class Real> void set_clock(ClockedCall<Real>& call, int64_t clock) { call.clock = clock; }

template <class Model, class Call, class Real>
void step(const void* prepared, int64_t rows, const Real* x, int64_t x_batch, const Real* start, Real* y, Real* end,
          int64_t clock) {
  Call call = *static_cast<const Call*>(prepared);
  call.T = 1;
  call.B = rows;
  call.x = {x, 0, x_batch};
  call.start = start;
  (call.h ? call.h : call.m) = y;
  call.end = end;
  set_clock(call, clock);
  Model(call).forward();
}

// One step with a call that was prepared before: everything but what changes from step to step is in it. Of h and m, it
// has the one that is wanted not null.
template <class Real>
int step(Kind kind, const void* prepared, int64_t rows, const Real* x, int64_t x_batch, const Real* start, Real* y,
         Real* end, int64_t clock) {
  return guarded([&] {
    if (kind == Kind::lmn)
      step<Lmn<Real>, LmnCall<Real>>(prepared, rows, x, x_batch, start, y, end, clock);
    else
      step<Clocked<Real>, ClockedCall<Real>>(prepared, rows, x, x_batch, start, y, end, clock);
  });
}

}  // namespace

LINMEM_EXPORT int linmem_run_float(Kind kind, const void* call, const void* gradients) {
  return run<float>(kind, call, gradients);
}

LINMEM_EXPORT int linmem_run_double(Kind kind, const void* call, const void* gradients) {
  return run<double>(kind, call, gradients);
}

LINMEM_EXPORT int linmem_step_float(Kind kind, const void* prepared, int64_t rows, const float* x, int64_t x_batch,
                                    const float* start, float* y, float* end, int64_t clock) {
  return step(kind, prepared, rows, x, x_batch, start, y, end, clock);
}

LINMEM_EXPORT int linmem_step_double(Kind kind, const void* prepared, int64_t rows, const double* x, int64_t x_batch,
                                     const double* start, double* y, double* end, int64_t clock) {
  return step(kind, prepared, rows, x, x_batch, start, y, end, clock);
}
