#include "hpcdl/ops/adamw8/adamw8.h"

#include <algorithm>
#include <cstdint>

#include "hpcdl/ops/many_tensors.h"
#include "hpcdl/simd/root.h"
#include "hpcdl/simd/store8.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kBlock = AdamW8::kBlock;
static_assert(kTensorBlock % kBlock == 0);

/// Prefetch distance of values and gradients in bytes, as in adamw.simd.cpp. Codes are few.
constexpr std::int64_t kAhead = 2048;

/// What the squared code of m, and the fourth power of that of v, are multiplied by for a scale of 1.
constexpr float kUnitM = 1 / (AdamW8::kMostM * AdamW8::kMostM),
                kUnitV = 1 / (AdamW8::kMostV * AdamW8::kMostV * AdamW8::kMostV * AdamW8::kMostV);

/// The scale of a block whose elements are at most `most`; `bad` is NaN if one of them is not finite, else 0.
float scale_of(float most, float bad) { return (most > 0 ? std::max(most, AdamW8::kLeast) : 0.0f) + bad; }

/// 1 / scale; 0 where all codes are 0.
float inverse(float scale) { return scale > 0 ? 1 / scale : 0.0f; }

template <class Isa, class P, class G, class C> class Update {
  using V = simd::Vec<Isa>;

 public:
  Update(const Grad* t, bool decay, const AdamW::Step& step)
      : p_(t[0].ptr<P>()),
        g_(t[1].ptr<G>()),
        m_(t[2].ptr<std::int8_t>()),
        v_(t[3].ptr<std::uint8_t>()),
        copy_(t[4] ? t[4].ptr<C>() : nullptr),
        m_scale_(t[5].ptr<float>()),
        v_scale_(t[6].ptr<float>()),
        keep_(decay ? __builtin_fmaf(-step.lr, step.args.weight_decay, 1.0f) : 1.0f),
        scale_(step.grad_scale),
        b1_(static_cast<float>(step.args.beta1)),
        b2_(static_cast<float>(step.args.beta2)),
        rest1_(static_cast<float>(1 - step.args.beta1)),
        rest2_(static_cast<float>(1 - step.args.beta2)),
        eps_(step.args.eps),
        minus_rate_(-step.lr / step.correction1),
        root_(1.0f / __builtin_sqrtf(step.correction2)) {}

  /// Elements [begin, end), from the beginning of a block. One block is encoded after the step of the next, which hides the
  /// latency of its scales.
  void operator()(std::int64_t begin, std::int64_t end) {
    New two[2];
    std::int64_t at = begin;
    for (; at < end; at += kBlock) {
      step(at, std::min(at + kBlock, end), two[at / kBlock % 2]);
      if (at > begin) encode(at - kBlock, at, two[(at / kBlock + 1) % 2]);
    }
    if (at > begin) encode(at - kBlock, end, two[(at / kBlock + 1) % 2]);
  }

 private:
  /// Of a block: the new m and the root of the new v, which the update needs in any case.
  struct New {
    alignas(64) float m[kBlock], root_of_v[kBlock];
  };

  /// The update with the moments of the block, and the scales of the new ones.
  void step(std::int64_t begin, std::int64_t end, New& to) {
    // Copies: what is stored might be members otherwise.
    const V keep = keep_, scale = scale_, b1 = b1_, b2 = b2_, rest1 = rest1_, rest2 = rest2_, eps = eps_,
            minus_rate = minus_rate_, bias = root_;
    float &m_scale = m_scale_[begin / kBlock], &v_scale = v_scale_[begin / kBlock];
    const V of_m(m_scale * kUnitM), of_v(v_scale * kUnitV);
    V most_m(0.0f), most_v(0.0f), bad_m(0.0f), bad_v(0.0f);
    P* p = p_ + begin;
    C* copy = copy_ ? copy_ + begin : nullptr;
    const G* g = g_ + begin;
    const std::int8_t* m_codes = m_ + begin;
    const std::uint8_t* v_codes = v_ + begin;
    simd::loop<Isa>(end - begin, [&](std::int64_t i, auto k) {
      using namespace simd;
      for (const void* next : {static_cast<const void*>(p + i), static_cast<const void*>(g + i)})
        __builtin_prefetch(static_cast<const char*>(next) + kAhead, 0, 2);
      const V cm = load_codes<V>(m_codes + i, k), cv = load_codes<V>(v_codes + i, k), square = cv * cv;
      const V grad = load<V>(g + i, k) * scale;
      const V mi = fma(b1, cm * abs(cm) * of_m, rest1 * grad);
      const V vi = fma(b2, square * square * of_v, rest2 * grad * grad);
      const V root = sqrt(vi), out = fma(load<V>(p + i, k), keep, minus_rate * mi / fma(root, bias, eps));
      store(p + i, out, k);
      if (copy) store(copy + i, out, k);
      store(to.m + i, mi, k);
      store(to.root_of_v + i, root, k);
      most_m = max(abs(mi), most_m), most_v = max(vi, most_v);
      bad_m = bad_m + (mi - mi), bad_v = bad_v + (vi - vi);
    });
    m_scale = scale_of(reduce_max(most_m), reduce_add(bad_m));
    v_scale = scale_of(reduce_max(most_v), reduce_add(bad_v));
  }

  void encode(std::int64_t begin, std::int64_t end, const New& from) {
    const V of_m(inverse(m_scale_[begin / kBlock])), of_root(__builtin_sqrtf(inverse(v_scale_[begin / kBlock]))),
        most_m(AdamW8::kMostM), most_v(AdamW8::kMostV), zero(0.0f), one(1.0f);
    std::int8_t* m_codes = m_ + begin;
    std::uint8_t* v_codes = v_ + begin;
    simd::loop<Isa>(end - begin, [&](std::int64_t i, auto k) {
      using namespace simd;
      // No moment exceeds the scale, so no code its largest. Where an operand of max is NaN, the result is the second one.
      const V mi = load<V>(from.m + i, k), root = load<V>(from.root_of_v + i, k),
              size = max(round(rough_root(abs(mi) * of_m) * most_m), zero),
              code = max(round(rough_root(root * of_root) * most_v), one);
      store_codes(select(mi < zero, zero - size, size), m_codes + i, k);
      store_codes(select(zero < root, code, zero), v_codes + i, k);
    });
  }

  P* p_;
  const G* g_;
  std::int8_t* m_;
  std::uint8_t* v_;
  C* copy_;
  float *m_scale_, *v_scale_;
  V keep_, scale_, b1_, b2_, rest1_, rest2_, eps_, minus_rate_, root_;  // of lr * (m / c1) / (sqrt(v / c2) + eps)
};

}  // namespace

template <class Isa>
void adamw8(Isa, Pool& pool, const Grad* tensors, const std::uint8_t* decays, std::int64_t count,
            const AdamW::Step& step) {
  for_tensor_blocks(
      pool, count, [&](std::int64_t i) { return tensors[i * AdamW8::kOperands].size(); },
      [&](std::int64_t i, std::int64_t begin, std::int64_t end, std::int64_t) {
        const Grad* t = tensors + i * AdamW8::kOperands;
        const auto update = [&]<class P, class G, class C>() {
          Update<Isa, P, G, C> blocks(t, decays[i] != 0, step);
          blocks(begin, end);
        };
        visit_dtype(t[0].dtype(), [&]<class P>() {
          visit_dtype(t[1].dtype(), [&]<class G>() {
            if (t[4] && t[4].dtype() == DType::f16) update.template operator()<P, G, f16>();
            else update.template operator()<P, G, bf16>();
          });
        });
      });
}

template void adamw8(simd::Isa, Pool&, const Grad*, const std::uint8_t*, std::int64_t, const AdamW::Step&);

}  // namespace hpcdl::cpu
