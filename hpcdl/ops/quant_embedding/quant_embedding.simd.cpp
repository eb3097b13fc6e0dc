#include "hpcdl/ops/quant_embedding/quant_embedding.h"

#include "hpcdl/ops/quant_linear/decoders.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
namespace {

/// position(i): what is added to inputs i .. i + V::N of the row.
template <class Isa, class Decoder, class T, class Position>
void decode_row(T* to, const QuantMatrix& w, std::int64_t id, std::int64_t blocks, Position position) {
  using V = simd::Vec<Isa>;
  const Decoder row(w, id);
  for (std::int64_t b = 0; b < blocks; ++b)
    values_of_block<Isa>(row, b, [&](std::int64_t i, V v, std::int64_t j, V u) {
      const auto at = b * Decoder::kBlock;
      position(v, at + i).store(to + at + i), position(u, at + j).store(to + at + j);
    });
}

template <class Isa, class Decoder, class T, class P>
void decode_rows(Pool& pool, const Tensor& y, const View& ids, const QuantMatrix& w, const View& positions,
                 const View& places) {
  using V = simd::Vec<Isa>;
  const std::int64_t length = ids.cols(), k = y.cols(), blocks = k / Decoder::kBlock;
  for_rows(pool, ids.size(), k, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const std::int64_t id = ids.ptr<std::int32_t>()[i], at = places ? places.ptr<std::int32_t>()[i] : i % length;
      T* row = y.ptr<T>() + i * y.row_stride();
      if (id < 0 || id >= w.parts.codes[0] || (positions && (at < 0 || at >= positions[0]))) {
        for (std::int64_t c = 0; c < k; ++c) row[c] = T(__builtin_nanf(""));
      } else if (positions) {
        const P* p = positions.ptr<P>() + at * positions.row_stride();
        decode_row<Isa, Decoder>(row, w, id, blocks, [&](V v, std::int64_t c) { return v + V::load(p + c); });
      } else {
        decode_row<Isa, Decoder>(row, w, id, blocks, [](V v, std::int64_t) { return v; });
      }
    }
  });
}

}  // namespace

template <class Isa>
void quant_embedding(Isa, Pool& pool, Tensor y, View ids, const QuantMatrix& w, View positions, View places) {
  with_decoder<Isa>(w.format, [&]<class Decoder>() {
    visit_dtype(y.dtype(), [&]<class T>() {
      visit_dtype(positions.dtype(),
                  [&]<class P>() { decode_rows<Isa, Decoder, T, P>(pool, y, ids, w, positions, places); });
    });
  });
}

template void quant_embedding(simd::Isa, Pool&, Tensor, View, const QuantMatrix&, View, View);

}  // namespace hpcdl::cpu
