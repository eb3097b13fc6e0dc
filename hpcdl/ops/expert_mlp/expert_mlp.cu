#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <algorithm>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/expert_mlp/expert_tiles.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kTogether = 8;  // choices that share a pass over a row of weights

/// A block lists the choices of one expert, in their order. In each round a thread has kEach neighbours.
template <int kBlock>
__global__ void __launch_bounds__(kBlock)
    list(const std::int32_t* experts, int choices, std::int32_t* places, int place_stride) {
  constexpr int kWarpsOfBlock = kBlock / kWarp, kEach = 4;
  __shared__ int of_warp[2][kWarpsOfBlock];  // by turn, so that a round need not wait for the reads of the last one
  std::int32_t* const of_expert = places + std::int64_t{blockIdx.x} * place_stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int found = 0;
  for (int base = 0, turn = 0; base < choices; base += kBlock * kEach, turn ^= 1) {
    const int first = base + static_cast<int>(threadIdx.x) * kEach;
    unsigned mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (first + i < choices && experts[first + i] == static_cast<int>(blockIdx.x)) mine |= 1u << i;
    int end = __popc(mine);  // of this thread's, in those of the warp
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += other;
    }
    if (lane == kWarp - 1) of_warp[turn][warp] = end;
    __syncthreads();
    int at = found + end - __popc(mine);
    for (int w = 0; w < kWarpsOfBlock; ++w) at += w < warp ? of_warp[turn][w] : 0, found += of_warp[turn][w];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (mine >> i & 1) of_expert[1 + at++] = first + i;
  }
  if (threadIdx.x == 0) of_expert[0] = found;
}

/// dots[c] = a row of an expert's matrix . (row of `from` of choice c), for n choices.
template <class T, bool kGated, bool kInt4, int kMost>
__device__ void dots(float (&sum)[kMost], const ExpertWeights& of, int expert, int row, const MixtureProduct& p,
                     const int (&choices)[kMost], int n) {
  constexpr int N = kInt4 ? 8 : kLanes<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto weights = [&] {
    if constexpr (kInt4) return [packed = PackedRow(of, p, expert, row)](int k) { return packed.at(k).values(); };
    else
      return [from = static_cast<const T*>(of.w[expert]) + row * of.stride, end = p.k](int k) {
        return widen(read<N>(from + k, 0, end - k, T{}));
      };
  }();
#pragma unroll
  for (int c = 0; c < kMost; ++c) sum[c] = 0;
#pragma unroll(kMost == 1 ? 4 : 1)
  for (int k = lane * N; k < p.k; k += kWarp * N) {
    const Lanes<N> w = weights(k);
#pragma unroll
    for (int c = 0; c < kMost; ++c)
      if (c < n) {
        const T* const from = static_cast<const T*>(p.from) + p.row_of<kGated>(choices[c]) * p.from_stride;
        sum[c] += cuda::sum(w * widen(read<N>(from + k, 0, p.k - k, T{})));
      }
  }
#pragma unroll
  for (int c = 0; c < kMost; ++c) sum[c] = warp_reduce(sum[c], Sum{});
}

/// One column of the results of up to kMost choices of an expert.
template <class T, bool kGated, bool kInt4, int kMost>
__device__ void column_of(const MixtureProduct& p, int expert, int column, const int (&choices)[kMost], int n) {
  float first[kMost], second[kMost];
  dots<T, kGated, kInt4>(first, p.first, expert, column, p, choices, n);
  if constexpr (kGated) dots<T, kGated, kInt4>(second, p.second, expert, column, p, choices, n);
  if (threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    if (c >= n) break;
    const std::int64_t at = std::int64_t{choices[c]} * p.n + column;
    Lanes<1> v(widen(narrow<T>(first[c])));
    if constexpr (kGated) {
      const Lanes<1> up(widen(narrow<T>(second[c])));
      if (p.gate) static_cast<T*>(p.gate)[at] = narrow<T>(v.v[0]), static_cast<T*>(p.up)[at] = narrow<T>(up.v[0]);
      v = (p.gelu ? fuse::GeluTanh::value(v) : fuse::Silu::value(v)) * up;
    }
    static_cast<T*>(p.to)[at] = narrow<T>(v.v[0]);
  }
}

/// blockIdx.y: a choice. A warp has a column.
template <class T, bool kGated, bool kInt4>
__global__ void __launch_bounds__(kThreads) by_choice(const __grid_constant__ MixtureProduct p) {
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int choice[1] = {static_cast<int>(blockIdx.y)}, expert = p.experts[choice[0]];
  if (column < p.n && expert >= 0) column_of<T, kGated, kInt4>(p, expert, column, choice, 1);
}

/// blockIdx.y: an expert, whose choices share passes over its weights.
template <class T, bool kGated, bool kInt4>
__global__ void __launch_bounds__(kThreads) by_expert(const __grid_constant__ MixtureProduct p) {
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp,
            expert = static_cast<int>(blockIdx.y);
  if (column >= p.n) return;
  const std::int32_t* const list = p.list(expert);
  const int count = p.count(expert);
  for (int first = 0; first < count; first += kTogether) {
    const int n = ::min(kTogether, count - first);
    int choices[kTogether];
#pragma unroll
    for (int c = 0; c < kTogether; ++c) choices[c] = list[first + (c < n ? c : 0)];
    column_of<T, kGated, kInt4>(p, expert, column, choices, n);
  }
}

struct Adding {
  void* y;
  const void *base, *results;
  const float* weights;
  const std::int32_t* experts;
  std::int64_t y_stride, base_stride;
  int tokens, count, width;
};

/// y = base, if there is one, + the weighted results of each token's choices, in their order.
template <class T> __global__ void __launch_bounds__(kThreads) add_results(const __grid_constant__ Adding p) {
  constexpr int N = kLanes<T>;
  const int pieces = (p.width + N - 1) / N;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / pieces;
  if (token >= p.tokens) return;
  const int column = static_cast<int>(i - token * pieces) * N, n = ::min(N, p.width - column);
  Lanes<N> sum = p.base ? load<N>(static_cast<const T*>(p.base) + token * p.base_stride + column, n) : Lanes<N>(0.0f);
  for (int c = 0; c < p.count; ++c) {
    const std::int64_t choice = token * p.count + c;
    if (p.experts[choice] < 0) continue;
    sum =
        fma(Lanes<N>(p.weights[choice]), load<N>(static_cast<const T*>(p.results) + choice * p.width + column, n), sum);
  }
  store(static_cast<T*>(p.y) + token * p.y_stride + column, sum, n);
}

/// How the products of a mixture are divided.
enum class Division { choices, experts, tiles, wide_tiles };

template <class T, class S> void run_tiles(Stream& s, const MixtureProduct& p) {
  check(cudaFuncSetAttribute(expert_tiles<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes), "expert_mlp");
  const std::int64_t most = std::min(p.mlps, p.choices) + p.choices / S::kRows;  // partial tiles: one of each expert
  const unsigned columns = blocks_for(p.n, S::kResults);
  expert_tiles<T, S><<<blocks_for(most * columns, 1), S::kThreads, S::kBytes, queue(s)>>>(p, static_cast<int>(columns));
}

template <class T, bool kGated, bool kInt4> void run(Stream& s, const MixtureProduct& p, Division division) {
  const unsigned columns = blocks_for(p.n, kWarps);
  if (division == Division::choices)
    by_choice<T, kGated, kInt4><<<dim3(columns, static_cast<unsigned>(p.choices)), kThreads, 0, queue(s)>>>(p);
  else if (division == Division::experts)
    by_expert<T, kGated, kInt4><<<dim3(columns, static_cast<unsigned>(p.mlps)), kThreads, 0, queue(s)>>>(p);
  else if constexpr (sizeof(T) == 2) {
    constexpr int kManyOfExpert = 96;
    if (p.expected >= kManyOfExpert * p.mlps) run_tiles<T, ExpertTiles<128, kGated, kInt4>>(s, p);
    else run_tiles<T, ExpertTiles<64, kGated, kInt4>>(s, p);
  }
  launched("expert_mlp");
}

using Mlps = std::span<const ExpertMatrices<View>>;

/// The same matrix of all experts.
ExpertWeights weights_of(Mlps mlps, Matrix<View> ExpertMatrices<View>::* which) {
  ExpertWeights all{};
  for (std::size_t e = 0; e < mlps.size(); ++e) {
    const auto& m = mlps[e].*which;
    all.w[e] = m.w.data();
    if (!m.quantized()) continue;
    all.scale[e] = m.scale.ptr<bf16>();
    all.offset[e] = m.offset ? m.offset.ptr<bf16>() : nullptr;
  }
  all.stride = (mlps[0].*which).w.row_stride();
  return all;
}

void require_supported(const Matrix<View>& m, const Matrix<View>& first, DType type) {
  require(!m.bias, ExpertMlp::name, "a GPU needs experts without biases: use the CPU");
  require(
      m.quantized() || m.w.dtype() == type, ExpertMlp::name,
      "a GPU needs the matrices of experts in the type of the activations, {}, or INT4, got {}: use another --dtype, "
      "or the CPU",
      dtype_name(type), dtype_name(m.w.dtype()));
  require(m.quantized() == first.quantized() && m.w.row_stride() == first.w.row_stride() &&
              (!m.quantized() || m.scale.cols() == first.scale.cols()),
          ExpertMlp::name, "a GPU needs the matrices of all experts in one format, got {} and {}: convert them",
          to_string(first.w.spec()), to_string(m.w.spec()));
}

/// Whether rows can be read 16 bytes at a time.
bool in_pieces(const View& v, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0 && stride % 8 == 0 && v.cols() % 8 == 0;
}

/// Few choices mostly choose different experts, so that none of their weights is read twice.
Division division_of(const Stream& s, View x, Tensor hidden, Tensor gate, Tensor up, Mlps mlps, int choices,
                     int count) {
  const int experts = static_cast<int>(std::ssize(mlps));
  if (choices <= std::max(count, experts / 4)) return Division::choices;
  bool pieces = x.dtype() != DType::f32 && in_pieces(x, x.row_stride()), dense = true;
  for (const Tensor& t : {hidden, gate, up}) pieces = pieces && (!t || in_pieces(t, t.cols()));
  for (const auto& m : mlps)
    for (const auto* matrix : {&m.gate, &m.up, &m.down}) {
      dense = dense && !matrix->quantized();
      pieces = pieces && (matrix->quantized() || in_pieces(matrix->w, matrix->w.row_stride()));
    }
  if (!pieces) return Division::experts;
  return dense && wide_fits(s, choices, experts) ? Division::wide_tiles : Division::tiles;
}

}  // namespace

void list_choices(Stream& s, const View& experts, int mlps, Tensor places) {
  constexpr int kMany = 1024;
  const int choices = static_cast<int>(experts.size());
  const auto start = [&](auto kernel, int threads) {
    kernel<<<static_cast<unsigned>(mlps), static_cast<unsigned>(threads), 0, queue(s)>>>(
        experts.ptr<std::int32_t>(), choices, places.ptr<std::int32_t>(), static_cast<int>(places.cols()));
  };
  if (choices > kMany) start(list<kMany>, kMany);
  else start(list<kThreads>, kThreads);
  launched("expert_mlp");
}

void expert_mlp(Stream& s, Tensor y, Tensor gate, Tensor up, View base, View x, View weights, View experts, Mlps mlps,
                Tensor results, Tensor hidden, Tensor places, const ExpertMlp::Args& a) {
  for (const auto& m : mlps) {
    for (const auto* matrix : {&m.gate, &m.up}) require_supported(*matrix, mlps[0].gate, x.dtype());
    require_supported(m.down, mlps[0].down, x.dtype());
  }
  if (y.size() == 0) return;
  const int choices = static_cast<int>(experts.size()), count = static_cast<int>(experts.cols());
  MixtureProduct p{};
  p.experts = experts.ptr<std::int32_t>(), p.places = places.ptr<std::int32_t>();
  p.choices = choices, p.of_token = count;
  // Memory that has room for more choices must not change any bit.
  p.expected = a.choices > 0 ? static_cast<int>(a.choices) : choices;
  p.mlps = static_cast<int>(std::ssize(mlps)), p.place_stride = static_cast<int>(places.cols());
  p.gelu = a.gate == Swiglu::Gate::gelu_tanh;
  const Division division = division_of(s, x, hidden, gate, up, mlps, p.expected, count);
  if (division != Division::choices) list_choices(s, experts, p.mlps, places);
  const auto product = [&]<bool kGated>(View from, Tensor to) {
    using M = ExpertMatrices<View>;
    const auto& of = kGated ? mlps[0].gate : mlps[0].down;
    p.first = weights_of(mlps, kGated ? &M::gate : &M::down);
    if (kGated) p.second = weights_of(mlps, &M::up);
    p.from = from.data(), p.from_stride = from.row_stride(), p.to = to.data();
    p.n = static_cast<int>(to.cols()), p.k = static_cast<int>(from.cols());
    p.gate = kGated ? gate.data() : nullptr, p.up = kGated ? up.data() : nullptr;
    if (kGated && division == Division::wide_tiles) {
      gather_choices(s, p, x.dtype(), results.data());  // which are not needed before
      p.from = results.data(), p.from_stride = results.cols();
    }
    p.group = of.quantized() ? p.k / static_cast<int>(of.scale.cols()) : 0;
    if (division == Division::wide_tiles) return multiply_wide(s, p, x.dtype(), kGated);
    visit_dtype(x.dtype(), [&]<class T>() {
      if (of.quantized()) run<T, kGated, true>(s, p, division);
      else run<T, kGated, false>(s, p, division);
    });
  };
  product.template operator()<true>(x, hidden);
  product.template operator()<false>(hidden, results);
  const Adding adding{.y = y.data(),
                      .base = base.data(),
                      .results = results.data(),
                      .weights = weights.ptr<float>(),
                      .experts = p.experts,
                      .y_stride = y.row_stride(),
                      .base_stride = base.row_stride(),
                      .tokens = static_cast<int>(x.rows()),
                      .count = count,
                      .width = static_cast<int>(x.cols())};
  visit_dtype(x.dtype(), [&]<class T>() {
    const std::int64_t pieces = std::int64_t{adding.tokens} * ((adding.width + kLanes<T> - 1) / kLanes<T>);
    add_results<T><<<blocks_for(pieces, kThreads), kThreads, 0, queue(s)>>>(adding);
  });
  launched("expert_mlp");
}

}  // namespace hpcdl::cuda
