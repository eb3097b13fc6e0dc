#include "hpcdl/ops/expert_mlp/grouped_wide.cuh"

#include <algorithm>

#include "hpcdl/cuda/tensor_map.h"

namespace hpcdl::cuda {
namespace {

using S = GroupedShape;

template <class F> void with_type(DType type, F&& f) {
  if (type == DType::bf16) f.template operator()<bf16>();
  else f.template operator()<f16>();
}

/// f(expert) for the first expert of each launch, for which `p` has been set to its experts.
template <class F> void for_each_launch(GroupedExperts& p, const Choices& all, F&& f) {
  p.all = all;
  for (int first = 0; first < all.mlps; first += kMostWideExperts) {
    static_cast<Choices&>(p) = all;
    p.places += std::int64_t{first} * all.place_stride;
    p.first_expert = first, p.mlps = std::min(all.mlps - first, kMostWideExperts);
    f(first);
  }
}

}  // namespace

bool grouped_fits(const Stream& s, DType type, int m, int n) {
  return (type == DType::bf16 || type == DType::f16) && m % 8 == 0 && n % 8 == 0 && has_sm90a(s);
}

void multiply_rows_wide(Stream& s, const RowsProduct& p, DType type) {
  WideRows w{};
  w.terms = p.terms, w.to = p.to, w.n = p.n, w.k = p.k, w.columns = static_cast<int>(blocks_for(p.n, S::kN));
  for (int t = 0; t < p.terms; ++t) w.from[t] = tensor_map(p.term[t].from, type, {p.k, p.rows}, {p.k}, {64, S::kM});
  // Partial tiles: one of each expert.
  const std::int64_t most = std::int64_t{p.rows / S::kM + p.mlps} * w.columns;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(most, multiprocessors(s)));
  with_type(type, [&]<class T>() {
    allow_shared<grouped_rows<T>>(s, GroupedMemory::kBytes);
    for_each_launch(w, p, [&](int first) {
      for (int t = 0; t < p.terms; ++t)
        for (int e = 0; e < w.mlps; ++e)
          w.w[t][e] = tensor_map(p.term[t].w[first + e], type, {p.n, p.k}, {p.term[t].stride}, {64, 64});
      grouped_rows<T><<<blocks, S::kThreads, GroupedMemory::kBytes, queue(s)>>>(w);
      launched("expert_mlp_backward");
    });
  });
}

void add_gradient_wide(Stream& s, const MatrixGradient& p, DType type, DType of_gradient) {
  WideGradient w{};
  w.left = tensor_map(p.left, type, {p.m, p.rows}, {p.m}, {64, 64});
  w.right = tensor_map(p.right, type, {p.n, p.rows}, {p.n}, {64, 64});
  w.m = p.m, w.n = p.n;
  w.tiles_m = static_cast<int>(blocks_for(p.m, S::kM)), w.tiles_n = static_cast<int>(blocks_for(p.n, S::kN));
  const auto start = [&]<class T, class G>() {
    allow_shared<grouped_gradient<T, G>>(s, GroupedMemory::kBytes);
    for_each_launch(w, p, [&](int first) {
      std::copy_n(p.to + first, w.mlps, w.to);
      std::copy_n(p.accumulate + first, w.mlps, w.accumulate);
      const int tiles = w.mlps * w.tiles_m * w.tiles_n;
      grouped_gradient<T, G><<<static_cast<unsigned>(std::min(tiles, multiprocessors(s))), S::kThreads,
                               GroupedMemory::kBytes, queue(s)>>>(w);
      launched("expert_mlp_backward");
    });
  };
  with_type(type, [&]<class T>() {
    if (of_gradient == DType::f32) start.template operator()<T, float>();
    else start.template operator()<T, T>();
  });
}

}  // namespace hpcdl::cuda
