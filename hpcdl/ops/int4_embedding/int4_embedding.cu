#include "hpcdl/ops/int4_embedding/int4_embedding.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

struct Lookup {
  void* y;
  const std::int32_t *ids, *places;  // places may be null
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  const void* positions;
  std::int64_t tokens, n, k, groups, length, positions_known, y_stride, position_stride;
  bool aligned;  // packed weights are aligned to 4 bytes
};

/// Threads per block, and tokens that one thread has in flight.
constexpr int kThreads = 256, kAtOnce = 4;

/// Eight neighbours of a row: the dword of the layout that holds them.
struct Eight {
  unsigned q;
  float scale, offset;
  std::int64_t place;
  bool known;

  /// Threads (blocks of 8 of a row, tokens).
  __device__ void fetch(const Lookup& l, std::int64_t i, int block, int group) {
    const std::int64_t id = i < l.tokens ? l.ids[i] : -1;
    place = !l.positions ? 0 : l.places && i < l.tokens ? l.places[i] : i % l.length;
    known = id >= 0 && id < l.n && (!l.positions || (place >= 0 && place < l.positions_known));
    if (!known) return;
    const std::int64_t tile = id / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, l.n);
    const std::uint8_t* p = l.packed + int4::packed_at(tile, l.k) + int4::byte_of(rows, id - tile, block * 8);
    const std::int64_t at = int4::scale_at(tile, l.groups) + group * rows + id - tile;
    q = l.aligned ? *reinterpret_cast<const unsigned*>(p)
                  : p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;
    scale = widen(l.scale[at]), offset = l.offset ? widen(l.offset[at]) : 0.0f;
  }
  __device__ Lanes<8> values() const {
    if (!known) return Lanes<8>(__builtin_nanf(""));
    return map<8>([&](int j) {
      return ::fmaf(static_cast<float>(static_cast<int>(q >> (j % 4 * 8 + j / 4 * 4) & 15) - 8), scale, offset);
    });
  }
};

template <class Y, class P> __global__ void __launch_bounds__(kThreads) widen_rows(Lookup l) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y) * kAtOnce;
  const int blocks = static_cast<int>(l.k / 8), group = static_cast<int>(l.k / l.groups / 8);
  for (int block = static_cast<int>(threadIdx.x); block < blocks; block += static_cast<int>(blockDim.x)) {
    Eight e[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) e[j].fetch(l, first + j, block, block / group);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= l.tokens) break;
      auto v = e[j].values();
      if (l.positions && e[j].known)
        v = v + load<8>(static_cast<const P*>(l.positions) + e[j].place * l.position_stride + block * 8);
      store(static_cast<Y*>(l.y) + (first + j) * l.y_stride + block * 8, v);
    }
  }
}

}  // namespace

void int4_embedding(Stream& s, Tensor y, View ids, const int4::Weight& w, View positions, View places) {
  if (y.size() == 0) return;
  const Lookup l{y.data(),
                 ids.ptr<std::int32_t>(),
                 places ? places.ptr<std::int32_t>() : nullptr,
                 w.packed.ptr<std::uint8_t>(),
                 w.scale.ptr<bf16>(),
                 w.offset ? w.offset.ptr<bf16>() : nullptr,
                 positions.data(),
                 ids.size(),
                 w.n(),
                 w.k(),
                 w.groups(),
                 ids.cols(),
                 positions ? positions[0] : 0,
                 y.row_stride(),
                 positions ? positions.row_stride() : 0,
                 reinterpret_cast<std::uintptr_t>(w.packed.data()) % 4 == 0};
  // A row is divided into the fewest iterations of equal size.
  const std::int64_t blocks = l.k / 8, turns = (blocks + kThreads - 1) / kThreads, x = (blocks + turns - 1) / turns;
  const dim3 threads(static_cast<unsigned>(x), static_cast<unsigned>(kThreads / x));
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
      widen_rows<Y, P><<<blocks_for(l.tokens, threads.y * kAtOnce), threads, 0, queue(s)>>>(l);
      launched("int4_embedding");
    });
  });
}

}  // namespace hpcdl::cuda
