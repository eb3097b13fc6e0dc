#include "hpcdl/ops/kv_write/kv_write.h"

#include "hpcdl/ops/kv_write/codes.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kChunk = 64;  // elements that are rounded together

/// Row `token` of a head of a page: D codes, and their scale after the codes of all rows.
template <class Isa, class From, class To>
void store_codes(Isa, To* head, std::int64_t token, const From* from, std::int64_t d) {
  using V = simd::Vec<Isa>;
  float x[kChunk] = {};
  const auto for_chunks = [&](auto f) {
    for (std::int64_t begin = 0; begin < d; begin += kChunk) {
      const std::int64_t n = d - begin < kChunk ? d - begin : kChunk;
      simd::loop<Isa>(
          n, [&](std::int64_t i, auto lanes) { simd::store(x + i, simd::load<V>(from + begin + i, lanes), lanes); });
      f(begin, n);
    }
  };
  std::uint32_t largest = 0;
  for_chunks([&](std::int64_t, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) largest = largest < magnitude_bits(x[i]) ? magnitude_bits(x[i]) : largest;
  });
  const float scale = row_scale<To>(largest), inverse = 1 / scale;
  for_chunks([&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) head[token * d + begin + i] = code_of<To>(x[i], inverse);
  });
  reinterpret_cast<float*>(head + kPageTokens * d)[token] = scale;
}

template <class Isa> void write(Isa isa, Pool& pool, const Tensor& pages, const View& x, const View& slots) {
  using V = simd::Vec<Isa>;
  const std::int64_t heads = pages[1], d = x[2] / heads, page = pages.strides()[0], head = pages.strides()[1];
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_pool_dtype(pages.dtype(), [&]<class To>() {
      for_rows(pool, x.rows(), x.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) {
          const auto slot = slots.ptr<std::int64_t>()[r];
          if (slot < 0) continue;
          const From* from = x.ptr<From>() + r / x[1] * x.strides()[0] + r % x[1] * x.strides()[1];
          To* to = pages.ptr<To>() + slot / kPageTokens * page;
          for (std::int64_t h = 0; h < heads; ++h, from += d, to += head) {
            if constexpr (kHasScales<To>) {
              store_codes(isa, to, slot % kPageTokens, from, d);
            } else {
              simd::loop<Isa>(d, [&](std::int64_t i, auto lanes) {
                simd::store(to + slot % kPageTokens * d + i, simd::load<V>(from + i, lanes), lanes);
              });
            }
          }
        }
      });
    });
  });
}

}  // namespace

template <class Isa> void kv_write(Isa isa, Pool& pool, Tensor k_pool, Tensor v_pool, View k, View v, View slots) {
  write(isa, pool, k_pool, k, slots);
  write(isa, pool, v_pool, v, slots);
}

template void kv_write(simd::Isa, Pool&, Tensor, Tensor, View, View, View);

}  // namespace hpcdl::cpu
