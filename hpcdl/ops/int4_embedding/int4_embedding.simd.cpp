#include "hpcdl/ops/int4_embedding/int4_embedding.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

/// Widens one row of its tile, 8 weights per dword; add(i, v) returns the final value of elements i .. i + lanes.
template <class Isa, class T, class Add> void widen_row(T* y, const int4::Weight& w, std::int64_t id, Add add) {
  using V = simd::Vec<Isa>;
  const std::int64_t tile = id / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, w.n()), r = id - tile;
  const std::uint8_t* q = w.packed.ptr<std::uint8_t>() + int4::packed_at(tile, w.k());
  const std::int64_t at = int4::scale_at(tile, w.groups()) + r, group = w.group();
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    const float scale = static_cast<float>(w.scale.ptr<bf16>()[at + g * rows]);
    const float offset = w.offset ? static_cast<float>(w.offset.ptr<bf16>()[at + g * rows]) : 0.0f;
    float v[128];
    for (std::int64_t i = 0; i < group; i += 4) {
      const std::uint8_t* p = q + int4::byte_of(rows, r, g * group + i);
      const int shift = int4::is_high(i) ? 4 : 0;
      for (int j = 0; j < 4; ++j) v[i + j] = static_cast<float>(((p[j] >> shift) & 15) - 8);
    }
    for (std::int64_t i = 0; i < group; i += V::N) {
      const std::int64_t k = g * group + i;
      add(k, fma(V::load(v + i), V(scale), V(offset))).store(y + k);
    }
  }
}

}  // namespace

template <class Isa>
void int4_embedding(Isa, Pool& pool, Tensor y, View ids, const int4::Weight& w, View positions, View places) {
  using V = simd::Vec<Isa>;
  const std::int64_t length = ids.cols();
  visit_dtype(y.dtype(), [&]<class T>() {
    visit_dtype(positions.dtype(), [&]<class P>() {
      for_rows(pool, ids.size(), w.k(), [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
          const std::int64_t id = ids.ptr<std::int32_t>()[i], at = places ? places.ptr<std::int32_t>()[i] : i % length;
          T* row = y.ptr<T>() + i * y.row_stride();
          if (id < 0 || id >= w.n() || (positions && (at < 0 || at >= positions[0]))) {
            for (std::int64_t k = 0; k < w.k(); ++k) row[k] = T(__builtin_nanf(""));
          } else if (positions) {
            const P* p = positions.ptr<P>() + at * positions.row_stride();
            widen_row<Isa>(row, w, id, [&](std::int64_t k, V v) { return v + V::load(p + k); });
          } else {
            widen_row<Isa>(row, w, id, [](std::int64_t, V v) { return v; });
          }
        }
      });
    });
  });
}

template void int4_embedding(simd::Isa, Pool&, Tensor, View, const int4::Weight&, View, View);

}  // namespace hpcdl::cpu
