#include "hpcdl/ops/quant_embedding/quant_embedding.h"

#include <algorithm>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/quant_linear/quant_device.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

struct Lookup {
  void* y;
  DType positions_type;
  const std::int32_t *ids, *places;  // places may be null
  const void* positions;             // may be null
  std::int64_t length, positions_known, y_stride, position_stride;
};

/// Blocks (token, pieces of its row).
template <QuantFormat format, int alignment, class Y>
__global__ void __launch_bounds__(kThreads) decode_rows(QuantWeights w, Lookup l) {
  const float* values = table_of_block<format>(w);
  const std::int64_t token = blockIdx.x;
  const unsigned p = blockIdx.y * kThreads + threadIdx.x;
  if (p >= w.k / 8) return;
  const std::int64_t id = l.ids[token], place = l.places ? l.places[token] : token % l.length;
  const bool known = id >= 0 && id < w.n && (!l.positions || (place >= 0 && place < l.positions_known));
  const Piece piece = known ? read_weights(QuantRow<format, alignment>(w, id, values), p) : Piece{8 * p, 8 * p + 4, {}};
  Lanes<4> run[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::int64_t at = i < 4 ? piece.first + i : piece.second + i - 4;
    float v = known ? piece.v[i] : __builtin_nanf("");
    if (known && l.positions) v += fetch(l.positions, l.positions_type, place * l.position_stride + at);
    run[i / 4].v[i % 4] = v;
  }
  Y* row = static_cast<Y*>(l.y) + token * l.y_stride;
  store(row + piece.first, run[0]), store(row + piece.second, run[1]);
}

}  // namespace

void quant_embedding(Stream& s, Tensor y, View ids, const QuantMatrix& w, View positions, View places) {
  if (y.size() == 0) return;
  const Lookup l{.y = y.data(),
                 .positions_type = positions.dtype(),
                 .ids = ids.ptr<std::int32_t>(),
                 .places = places ? places.ptr<std::int32_t>() : nullptr,
                 .positions = positions.data(),
                 .length = ids.cols(),
                 .positions_known = positions ? positions[0] : 0,
                 .y_stride = y.row_stride(),
                 .position_stride = positions ? positions.row_stride() : 0};
  const QuantWeights weights(w);
  const dim3 blocks(blocks_for(ids.size(), 1), blocks_for(weights.k / 8, kThreads));
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_quant_format(w, [&]<QuantFormat format, int alignment>() {
      decode_rows<format, alignment, Y><<<blocks, kThreads, 0, queue(s)>>>(weights, l);
      launched("quant_embedding");
    });
  });
}

}  // namespace hpcdl::cuda
