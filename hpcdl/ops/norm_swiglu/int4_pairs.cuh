#pragma once
// The same (paired_rows.h) with INT4 weights on Hopper (.cu files): a block has 16 pairs, the rows of two tiles, and a
// warp for each 256 of K, whose weights are loaded directly into registers (int4_direct.h). Each warp normalises its
// part of the row and rounds it to 8 bits.

#include <span>

#include "hpcdl/ops/int4_linear/int4_direct.cuh"
#include "hpcdl/ops/norm_swiglu/paired_rows.cuh"

namespace hpcdl::cuda {

template <class Pairs> struct Int4Pairs {
  NormedRow in;
  const std::uint8_t* packed[kMostMatrices];
  const bf16 *scale[kMostMatrices], *offset[kMostMatrices];
  Pairs pairs;
  bool aligned;  // weights, scales and offsets are aligned to 16 bytes
};

/// One matrix, in the form that DirectChunk reads.
struct Int4Rows {
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  std::int64_t k;
  bool aligned;
};

#if HPCDL_SM90A
/// v[0] + v[apart] + ... of `warps` values, all of which are loaded before the first is added.
__device__ inline float sum_of_warps(const float* v, int warps, int apart = 1) {
  float each[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) each[i] = i < warps ? v[i * apart] : 0;
  return quant4::sum_in_pairs<16>(each);
}
#endif

template <class E, int kGroup, class Pairs>
__global__ void __launch_bounds__(512, 2) int4_pairs(const __grid_constant__ Int4Pairs<Pairs> p) {
#if HPCDL_SM90A
  using F = quant4::Direct<kGroup, 1>;
  __shared__ float parts[F::kWarps][F::kRows], memory[F::kWarps], shared[Pairs::kShared];
  const unsigned lane = threadIdx.x % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp,
            first = static_cast<int>(blockIdx.x) * 16, at = warp * quant4::kChunk + static_cast<int>(lane) * 8;
  let_next_begin();
  if (!p.in.constant) await_previous();
  const PairPlace place = p.pairs.place(first);
  const bool second = lane >= 16;
  const int m = second ? place.matrix[1] : place.matrix[0];
  const Int4Rows rows{p.packed[m], p.scale[m], p.offset[m], p.in.k, p.aligned};
  const quant4::DirectChunk<F> w(rows, static_cast<unsigned>(second ? place.row[1] : place.row[0]),
                                 static_cast<unsigned>(warp), lane);
  const Lanes<8> gamma = p.in.weights(at);
  if (p.in.constant) p.pairs.prepare(shared);
  await_previous();
  if (!p.in.constant) p.pairs.prepare(shared);
  const auto x = widen(read_aligned<8>(static_cast<const E*>(p.in.x) + at));
  const float part = warp_reduce(sum(x * x), Sum{});
  if (lane == 0) memory[warp] = part;
  __syncthreads();
  const Lanes<8> rstd(p.in.rstd(sum_of_warps(memory, warps)));
  float step;
  const int2 q = quant4::round_inputs<kGroup / 8>(widen(pack<E>(x * rstd * gamma)), step);
  quant4::multiply<F>(parts[warp], w, p.offset[0] != nullptr, q, step, lane);
  __syncthreads();
  if (warp != 0) return;
  const float sum = sum_of_warps(&parts[0][lane], warps, F::kRows);
  const float other = __shfl_xor_sync(~0u, sum, 16);
  if (!second) p.pairs.finish(shared, first + static_cast<int>(lane), sum, other);
#endif
}

/// For matrices of the same type, group and symmetry, whose pairs come in groups of sixteen, each from one tile of 16
/// rows. False if there is no kernel for them.
template <class E, class Pairs>
bool start_int4_pairs(Stream& s, const NormedRow& in, std::span<const Matrix<View>> matrices, const Pairs& pairs,
                      const char* name) {
  Int4Pairs<Pairs> p{in, {}, {}, {}, pairs, true};
  std::int64_t group = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto& m = matrices[i];
    const std::int64_t here = in.k / m.scale[1];
    if ((group && here != group) || static_cast<bool>(m.offset) != static_cast<bool>(matrices[0].offset) ||
        m.w[0] % int4::kTileRows != 0 || m.w[0] * in.k >= (std::int64_t{1} << 32))
      return false;
    group = here;
    p.packed[i] = m.w.ptr<std::uint8_t>(), p.scale[i] = m.scale.ptr<bf16>();
    p.offset[i] = m.offset ? m.offset.ptr<bf16>() : nullptr;
    for (const View* v : {&m.w, &m.scale, &m.offset})
      p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(v->data()) % 16 == 0;
  }
  if (!has_sm90a(s) || in.k % quant4::kChunk != 0 || in.k > quant4::Direct<32, 1>::kMostK || pairs.count % 16 != 0)
    return false;
  const auto start = [&]<int kGroup>() {
    launch_overlapped(
        queue(s), true, int4_pairs<E, kGroup, Pairs>,
        {.grid = blocks_for(pairs.count, 16), .block = static_cast<unsigned>(in.k / quant4::kChunk * kWarp)}, name, p);
  };
  if (group == 32) start.template operator()<32>();
  else if (group == 64) start.template operator()<64>();
  else start.template operator()<128>();
  return true;
}

}  // namespace hpcdl::cuda
