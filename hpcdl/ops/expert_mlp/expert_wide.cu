#include <algorithm>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/ops/expert_mlp/expert_wide.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kGatherThreads = 128;

/// blockIdx.y: an expert. A block copies every gridDim.x-th of its choices' rows.
__global__ void __launch_bounds__(kGatherThreads) gather(const __grid_constant__ Choices p, const uint4* from,
                                                         std::int64_t stride, int of_token, uint4* to, int pieces) {
  const int expert = static_cast<int>(blockIdx.y), before = choices_before(p, expert), count = p.count(expert);
  for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
    const uint4* const row = from + p.list(expert)[i] / of_token * stride;
    for (int j = static_cast<int>(threadIdx.x); j < pieces; j += kGatherThreads)
      to[std::int64_t{before + i} * pieces + j] = row[j];
  }
}

template <class S> void start(Stream& s, const WideProduct& p, int most_tiles) {
  constexpr int kBytes = WideMemory<S>::kBytes;
  allow_shared<expert_wide<S>>(s, kBytes);
  expert_wide<S><<<static_cast<unsigned>(std::min(most_tiles, multiprocessors(s))), S::kThreads, kBytes, queue(s)>>>(p);
  launched("expert_mlp");
}

}  // namespace

bool wide_fits(const Stream& s, int choices, int experts) {
  constexpr int kManyOfExpert = 96;
  return experts <= kMostWideExperts && choices >= kManyOfExpert * experts && has_sm90a(s);
}

void gather_choices(Stream& s, const MixtureProduct& p, DType type, void* to) {
  const int of_piece = 16 / static_cast<int>(dtype_bytes(type));
  const unsigned blocks = blocks_for(p.choices, p.mlps);
  gather<<<dim3(blocks, static_cast<unsigned>(p.mlps)), kGatherThreads, 0, queue(s)>>>(
      p, static_cast<const uint4*>(p.from), p.from_stride / of_piece, p.of_token, static_cast<uint4*>(to),
      p.k / of_piece);
  launched("expert_mlp");
}

void multiply_wide(Stream& s, const MixtureProduct& p, DType type, bool gated) {
  const auto with = [&]<class S>() {
    WideProduct w{};
    static_cast<Choices&>(w) = p;
    const auto rows = [&](const void* data, std::int64_t count, std::int64_t stride) {
      return tensor_map(data, type, {p.k, count}, {stride}, {S::kDepth, S::kHalf});
    };
    static_assert(S::kRows == S::kHalf);
    w.from = rows(p.from, p.choices, p.from_stride);
    for (int e = 0; e < p.mlps; ++e) {
      w.first[e] = rows(p.first.w[e], p.n, p.first.stride);
      if (gated) w.second[e] = rows(p.second.w[e], p.n, p.second.stride);
    }
    w.to = p.to, w.gate = p.gate, w.up = p.up, w.n = p.n, w.k = p.k,
    w.columns = static_cast<int>(blocks_for(p.n, S::kResults)), w.gelu = p.gelu;
    // Partial tiles: one of each expert.
    start<S>(s, w, (std::min(p.mlps, p.choices) + p.choices / S::kRows) * w.columns);
  };
  const auto with_type = [&]<class T>() {
    if (gated) with.template operator()<WideShape<T, true>>();
    else with.template operator()<WideShape<T, false>>();
  };
  if (type == DType::bf16) with_type.template operator()<bf16>();
  else with_type.template operator()<f16>();
}

}  // namespace hpcdl::cuda
