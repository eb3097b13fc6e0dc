// The ops' kernels behind a C interface, so that a Python driver can run them on the very memory that PyTorch computes on,
// in the same process and the same rounds. Every function returns 0, or 1 after printing what was wrong.

#include <emmintrin.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "hpcdl/core/pool.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/core/tensor.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
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

int hb_bias_gelu(void* y, const void* x, const void* bias, std::int64_t rows, std::int64_t cols, int is_bf16) {
  return guarded([&](Stream& s) {
    BiasGelu::forward(s, tensor(y, {rows, cols}, is_bf16), view(x, {rows, cols}, is_bf16), view(bias, {cols}, is_bf16), {});
  });
}

/// Forward and backward. mean, rstd: (rows) f32; gamma, beta and their gradients: (cols) f32.
int hb_layer_norm(void* y, float* mean, float* rstd, void* dx, float* dgamma, float* dbeta, const void* x, const float* gamma,
                  const float* beta, const void* dy, std::int64_t rows, std::int64_t cols, int is_bf16) {
  return guarded([&](Stream& s) {
    const Shape shape{rows, cols};
    const View vx = view(x, shape, is_bf16), g = view(gamma, {cols}, 0), b = view(beta, {cols}, 0);
    const Tensor tm = tensor(mean, {rows}, 0), tr = tensor(rstd, {rows}, 0);
    LayerNorm::forward(s, tensor(y, shape, is_bf16), tm, tr, vx, g, b, {});
    if (!dx) return;
    const Spec scratch = LayerNorm::backward_scratch(vx.spec(), g.spec(), b.spec(), {})[0];
    static std::vector<float> partial;
    partial.resize(static_cast<std::size_t>(scratch.size()));
    const auto overwrite = [](Tensor t) { return Grad(t, Write::overwrite); };
    LayerNorm::backward(s, overwrite(tensor(dx, shape, is_bf16)), overwrite(tensor(dgamma, {cols}, 0)),
                        overwrite(tensor(dbeta, {cols}, 0)), vx, g, tm, tr, view(dy, shape, is_bf16),
                        Tensor(partial.data(), scratch, {}), {});
  });
}

/// Summed loss and its gradient, scaled by dloss. lse, row_loss: (rows) scratch. dlogits may be logits.
int hb_cross_entropy(float* loss, void* dlogits, float* lse, float* row_loss, const void* logits, const std::int32_t* targets,
                     float dloss, std::int64_t rows, std::int64_t vocab, int is_bf16) {
  return guarded([&](Stream& s) {
    float count = 0;
    const View x = view(logits, {rows, vocab}, is_bf16), t(targets, Spec{{rows}, DType::i32});
    CrossEntropy::forward(s, tensor(loss, {1}, 0), tensor(&count, {1}, 0), tensor(lse, {rows}, 0), x, t, tensor(row_loss, {rows}, 0), {});
    CrossEntropy::backward(s, Grad(tensor(dlogits, {rows, vocab}, is_bf16), Write::overwrite), x, t, view(lse, {rows}, 0),
                           view(&dloss, {1}, 0), {});
  });
}

/// One step over `count` tensors of `sizes` elements; every tensor decays. betas 0.9, 0.95; eps 1e-8.
int hb_adamw(void** p, void** g, void** m, void** v, const std::int64_t* sizes, std::int64_t count, float lr, float decay,
             std::int64_t step) {
  return guarded([&](Stream& s) {
    std::vector<Grad> operands;
    for (std::int64_t i = 0; i < count; ++i) {
      for (void* t : {p[i], g[i], m[i], v[i]}) operands.emplace_back(tensor(t, {sizes[i]}, 0), Write::overwrite);
      operands.emplace_back();
    }
    const std::vector<std::uint8_t> decays(static_cast<std::size_t>(count), 1);
    the_params.lr = lr, the_params.step = step;
    const AdamW::Step factors = AdamW::step({.weight_decay = decay}, the_params);
    on(s, [&](auto isa, Pool& pool) { cpu::adamw(isa, pool, operands.data(), decays.data(), count, factors); });
  });
}

/// q, k, v, out and their gradients: (B, T, H * D). lse: (B, H, T). Backward runs when dq is given.
int hb_attention(void* out, float* lse, const void* q, const void* k, const void* v, void* dq, void* dk, void* dv, const void* dout,
                 void* scratch, std::int64_t batch, std::int64_t context, std::int64_t heads, std::int64_t width, int is_bf16) {
  return guarded([&](Stream& s) {
    const Shape shape{batch, context, heads * width};
    const Attention::Args a{.heads = static_cast<int>(heads)};
    const View vq = view(q, shape, is_bf16), vk = view(k, shape, is_bf16), vv = view(v, shape, is_bf16);
    const Tensor o = tensor(out, shape, is_bf16), l = tensor(lse, {batch, heads, context}, 0);
    if (!dq) return Attention::forward(s, o, l, vq, vk, vv, a);
    const Spec spec = Attention::backward_scratch(vq.spec(), vk.spec(), vv.spec(), a)[0];
    const auto grad = [&](void* t) { return Grad(tensor(t, shape, is_bf16), Write::overwrite); };
    Attention::backward(s, grad(dq), grad(dk), grad(dv), vq, vk, vv, o, l, view(dout, shape, is_bf16), Tensor(scratch, spec, {}), a);
  });
}

}  // extern "C"
