// The ops' kernels behind a C interface, so that a Python driver can run them on the very memory that PyTorch computes on,
// in the same process and the same rounds. Every function returns 0, or 1 after printing what was wrong.

#include <emmintrin.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "hpcdl/core/pool.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/core/tensor.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace {

using namespace hpcdl;

std::unique_ptr<Pool> the_pool;
StepParams the_params;

template <class F> int guarded(F&& f) {
  try {
    Stream stream(*the_pool, &the_params);
    f(stream);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

Tensor tensor(void* p, Shape shape, int is_bf16) { return Tensor(p, Spec{shape, is_bf16 ? DType::bf16 : DType::f32}, {}); }
View view(const void* p, Shape shape, int is_bf16) { return View(p, Spec{shape, is_bf16 ? DType::bf16 : DType::f32}); }

void copy_streaming(char* y, const char* x, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(y + i + k), _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i + k)));
  std::memcpy(y + i, x + i, static_cast<std::size_t>(n - i));
  _mm_sfence();
}

}  // namespace

extern "C" {

void hb_init(int threads) { the_pool = std::make_unique<Pool>(threads); }

/// Roofs of the same run: a plain and a streaming copy of `bytes`, split over the pool. Precondition: y 16-byte aligned.
int hb_copy(void* y, const void* x, std::int64_t bytes, int streaming) {
  return guarded([&](Stream& s) {
    parallel_for(s.pool(), bytes / 64, 1024, [&](std::int64_t b, std::int64_t e) {
      char* to = static_cast<char*>(y) + b * 64;
      const char* from = static_cast<const char*>(x) + b * 64;
      if (streaming) copy_streaming(to, from, (e - b) * 64);
      else std::memcpy(to, from, static_cast<std::size_t>((e - b) * 64));
    });
  });
}

int hb_softmax(void* y, const void* x, std::int64_t rows, std::int64_t cols, int is_bf16) {
  return guarded([&](Stream& s) { Softmax::forward(s, tensor(y, {rows, cols}, is_bf16), view(x, {rows, cols}, is_bf16), {}); });
}

/// y (m, n) = act(x (m, k) w (n, k)^T + bias) + residual; activation as in hpcdl::Activation; bias and residual may be null.
int hb_linear(void* y, const void* x, const void* w, const void* bias, const void* residual, std::int64_t m, std::int64_t n,
              std::int64_t k, int activation, int is_bf16) {
  return guarded([&](Stream& s) {
    const View b = bias ? view(bias, {n}, is_bf16) : View(), r = residual ? view(residual, {m, n}, is_bf16) : View();
    on(s, [&](auto isa, Pool& pool) {
      cpu::linear(isa, pool, tensor(y, {m, n}, is_bf16), Tensor(), view(x, {m, k}, is_bf16), view(w, {n, k}, is_bf16), b, r,
                  {.activation = static_cast<Activation>(activation)});
    });
  });
}

}  // extern "C"
