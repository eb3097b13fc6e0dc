#include "hpcdl/ops/sgd/sgd.h"

#include "hpcdl/ops/many_tensors.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

template <class Isa, class P, class G, class C>
void update(const Grad* t, std::int64_t begin, std::int64_t end, bool decay, const Sgd::Step& step) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  P* p = t[0].ptr<P>() + begin;
  const G* g = t[1].ptr<G>() + begin;
  float* m = t[2] ? t[2].ptr<float>() + begin : nullptr;
  C* copy = t[3] ? t[3].ptr<C>() + begin : nullptr;
  const V scale(step.grad_scale), decays(decay ? step.weight_decay : 0.0f), lr(step.lr), keep(step.momentum),
      rest(step.rest);
  const V ahead(step.look_ahead), along(step.along);
  loop<Isa>(end - begin, [&](std::int64_t i, auto k) {
    const V value = load<V>(p + i, k), grad = fma(decays, value, load<V>(g + i, k) * scale);
    V by = grad;
    if (m) {
      const V mi = step.first ? grad : fma(keep, load<V>(m + i, k), rest * grad);
      store(m + i, mi, k);
      by = fma(ahead, mi, along * grad);
    }
    const V out = value - lr * by;
    store(p + i, out, k);
    if (copy) store(copy + i, out, k);
  });
}

}  // namespace

template <class Isa>
void sgd(Isa, Pool& pool, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const Sgd::Step& step) {
  for_tensor_blocks(
      pool, count, [&](std::int64_t i) { return tensors[i * Sgd::kOperands].size(); },
      [&](std::int64_t i, std::int64_t begin, std::int64_t end, std::int64_t) {
        const Grad* t = tensors + i * Sgd::kOperands;
        visit_dtype(t[0].dtype(), [&]<class P>() {
          visit_dtype(t[1].dtype(), [&]<class G>() {
            const bool half = t[3] && t[3].dtype() == DType::f16;
            (half ? update<Isa, P, G, f16> : update<Isa, P, G, bf16>)(t, begin, end, decays[i] != 0, step);
          });
        });
      });
}

template void sgd(simd::Isa, Pool&, const Grad*, const std::uint8_t*, std::int64_t, const Sgd::Step&);

}  // namespace hpcdl::cpu
