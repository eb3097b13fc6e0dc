#include "hpcdl/ops/int4_embedding/int4_embedding.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

struct Lookup {
  void* y;
  const std::int32_t* ids;
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  const void* positions;
  const StepParams* params;
  std::int64_t n, k, groups, length, places, y_stride, position_stride;
};

/// A block widens one row; a thread, four neighbours of it.
template <class Y, class P> __global__ void __launch_bounds__(128) widen_rows(Lookup l) {
  const std::int64_t i = blockIdx.x, id = l.ids[i], place = i % l.length + (l.positions ? l.params->position : 0);
  Y* y = static_cast<Y*>(l.y) + i * l.y_stride;
  const bool known = id >= 0 && id < l.n && (!l.positions || (place >= 0 && place < l.places));
  const std::int64_t tile = id / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, l.n), group = l.k / l.groups;
  for (std::int64_t k = std::int64_t{threadIdx.x} * 4; k < l.k; k += 512) {
    Lanes<4> v(__builtin_nanf(""));
    if (known) {
      const std::uint8_t* q = l.packed + int4::packed_at(tile, l.k) + int4::byte_of(rows, id - tile, k);
      const std::int64_t at = int4::scale_at(tile, l.groups) + k / group * rows + id - tile;
      const float scale = widen(l.scale[at]), offset = l.offset ? widen(l.offset[at]) : 0.0f;
      const int shift = int4::is_high(k) ? 4 : 0;
      v = map<4>([&](int j) { return ::fmaf(static_cast<float>(((q[j] >> shift) & 15) - 8), scale, offset); });
      if (l.positions) v = v + load<4>(static_cast<const P*>(l.positions) + place * l.position_stride + k);
    }
    store(y + k, v);
  }
}

}  // namespace

void int4_embedding(Stream& s, Tensor y, View ids, const int4::Weight& w, View positions) {
  if (y.size() == 0) return;
  const Lookup l{y.data(), ids.ptr<std::int32_t>(), w.packed.ptr<std::uint8_t>(), w.scale.ptr<bf16>(), w.offset ? w.offset.ptr<bf16>() : nullptr,
                 positions.data(), s.kernel_params(), w.n(), w.k(), w.groups(), ids.cols(), positions ? positions[0] : 0, y.row_stride(),
                 positions ? positions.row_stride() : 0};
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
      widen_rows<Y, P><<<blocks_for(ids.size(), 1), 128, 0, queue(s)>>>(l);
      launched("int4_embedding");
    });
  });
}

}  // namespace hpcdl::cuda
