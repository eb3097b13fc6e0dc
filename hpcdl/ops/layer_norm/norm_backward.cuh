#pragma once
// The GPU kernels of the gradients of layer_norm and rms_norm (.cu files): kCentered subtracts the mean. Rows that a
// team holds (cuda/rows.cuh) are read once; the gradients of the parameters are summed in the same pass, each team over
// its share of rows. H200, us, layer_norm's gradients of odd rows (element by element, as forward and backward less
// forward | packs through shared memory), bf16 4099x5001 153 | 70, 8191x8193 563 | 242, 16384x3001 256 | 126, 65536x257
// 113 | 107, 100000x99 71 | 80; f32 4099x5001 202 | 80; rows of whole packs that took sweeps before: f32 2048x5120 101 |
// 42, bf16 4104x8200 170 | 85.

#include <cuda_pipeline_primitives.h>

#include "hpcdl/cuda/columns.cuh"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/rows.cuh"
#include "hpcdl/ops/layer_norm/norm.h"

namespace hpcdl::cuda {

struct NormGradients {
  void *dx, *dresidual;
  const void *h, *dy, *dh;
  Parameter gamma;
  const float *mean, *rstd;
  float* partial;  // (parts, 2, cols): sums for dgamma and dbeta
  std::int64_t rows, cols, parts, dx_stride, dresidual_stride, h_stride, dy_stride, dh_stride;
  bool add_dx, add_dresidual;
  bool shifted;  // packs lie on 16-byte boundaries of a contiguous matrix (cuda/rows.cuh); the number of parts is a
                 // multiple of the elements of a pack, or that of the rows
  bool aligned;  // of shifted rows: packs can be copied as such
  float gamma_offset;
};

/// One row's statistics in the form that backward needs.
struct NormRow {
  float mean, rstd;
};
template <bool kCentered> __device__ NormRow norm_row(const NormGradients& o, std::int64_t row) {
  return {kCentered ? o.mean[row] : 0.0f, o.rstd[row]};
}

/// The number of rows in flight through shared memory in backward, including the current one; measured on an H200.
template <bool kCentered, class Team>
inline constexpr int kNormStages = Team::kPacks * Team::kBlockThreads > 1536 ? 2
                                   : kCentered || Team::kPacks > 1           ? 3
                                                                             : 4;

/// The rows of part blockIdx.x: neighbours, or every parts-th row if they are shifted, so that all of them begin at the
/// same element of a pack.
template <bool kWhole> struct NormPart {
  std::int64_t first, apart, count;

  __device__ explicit NormPart(const NormGradients& o) {
    if (!kWhole && o.shifted) {
      first = blockIdx.x, apart = o.parts, count = (o.rows - first + o.parts - 1) / o.parts;
    } else {
      first = o.rows * blockIdx.x / o.parts, apart = 1, count = o.rows * (blockIdx.x + 1) / o.parts - first;
    }
  }
  __device__ std::int64_t row(std::int64_t n) const { return first + n * apart; }
};

/// Block p sums its rows' share of the parameters' gradients into part p; a team processes every kRows-th of them.
/// Packs pass through shared memory, several rows ahead; a thread reads only what it copied itself, so that no thread
/// waits for others.
template <bool kCentered, class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kPacks > 1 ? 1 : 1024 / Team::kBlockThreads)
    norm_backward(NormGradients o) {
  constexpr int N = kLanes<T>, K = Team::kPacks, kRows = Team::kRows, kStages = kNormStages<kCentered, Team>;
  /// Of rows with more packs, values are computed twice.
  constexpr bool kKeep = kWhole && K * Team::kBlockThreads <= 1024;
  __shared__ float2 memory[2][kWarp];
  const NormPart<kWhole> part(o);
  const RowShare<T, Team, kWhole> share(o.shifted ? blockIdx.x : 0, o.cols);
  const float over = 1.0f / static_cast<float>(o.cols);
  Lanes<N> gamma[K], dgamma[K], dbeta[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    gamma[k] = o.gamma.load<N, kWhole>(share.col(k), share.from(k), share.to(k)) + Lanes<N>(o.gamma_offset);
    dgamma[k] = dbeta[k] = Lanes<N>(0.0f);
  }
  const int count = o.dh ? 3 : 2;
  extern __shared__ uint4 ring[];
  const auto slot = [&](int turn, int operand, int k) {
    return ring + ((turn % kStages * count + operand) * K + k) * Team::kBlockThreads + threadIdx.x;
  };
  const auto bring_one = [&](int turn, int operand, const void* from, std::int64_t at) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!share.some(k)) break;
      const T* const pack = static_cast<const T*>(from) + at + share.col(k);
      uint4* const to = slot(turn, operand, k);
      if constexpr (kWhole) {
        __pipeline_memcpy_async(to, pack, 16);
      } else if (o.aligned) {
        const int here = share.to(k) < N ? share.to(k) : N;  // the others are zeros
        __pipeline_memcpy_async(to, pack, 16, static_cast<std::size_t>(N - here) * sizeof(T));
      } else {
        *to = __builtin_bit_cast(uint4, cuda::read<N>(pack, share.from(k), share.to(k), T{}));
      }
    }
  };
  const auto bring = [&](std::int64_t n, int turn) {
    if (n < part.count) {
      const std::int64_t row = part.row(n);
      bring_one(turn, 0, o.h, row * o.h_stride), bring_one(turn, 1, o.dy, row * o.dy_stride);
      if (o.dh) bring_one(turn, 2, o.dh, row * o.dh_stride);
    }
    __pipeline_commit();
  };
  const auto brought = [&](int turn, int operand, int k) {
    auto p = __builtin_bit_cast(Pack<T, N>, *slot(turn, operand, k));
    if (int from = share.from(k); !kWhole && from > 0) {
      asm volatile("" : "+r"(from));  // else the N comparisons are kept for the next row
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < from) p.set(i, T{});
    }
    return widen(p);
  };
  // All threads of a warp execute the same number of iterations, because they reduce together. A thread without a row
  // processes none.
  const std::int64_t own = kRows > 1 ? threadIdx.x / Team::kThreads : 0;
  for (int i = 0; i < kStages * count; ++i)  // packs after the end of the row
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (!share.some(k)) *slot(i / count, i % count, k) = uint4{};
  for (int turn = 0; turn + 1 < kStages; ++turn) bring(own + turn * kRows, turn);
  const auto statistics = [&](std::int64_t n) {
    return n < part.count ? norm_row<kCentered>(o, part.row(n)) : NormRow{0, 0};
  };
  auto next = statistics(own);
  int turn = 0;
  for (std::int64_t base = 0; base < part.count; base += kRows, ++turn) {
    const std::int64_t n = base + own, row = part.row(n);
    const bool exists = n < part.count;
    const auto stat = next;
    next = statistics(n + kRows);
    __pipeline_wait_prior(kStages - 2);
    const auto normal_of = [&](int k) { return (brought(turn, 0, k) - Lanes<N>(stat.mean)) * Lanes<N>(stat.rstd); };
    Lanes<N> normal[kKeep ? K : 1], d[kKeep ? K : 1];
    float sum_g = 0, sum_gn = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      auto x = normal_of(k), g = brought(turn, 1, k);  // absent elements of g are 0
      if (exists) {
        dgamma[k] = fma(g, x, dgamma[k]);
        if constexpr (kCentered) dbeta[k] = dbeta[k] + g;  // without centring there is no beta
      }
      g = g * gamma[k];
      sum_g += sum(g), sum_gn += sum(g * x);
      if constexpr (kKeep) normal[k] = x, d[k] = g;
    }
    bring(n + (kStages - 1) * kRows, turn + kStages - 1);
    Team::sum_both(sum_g, sum_gn, memory[turn % 2]);
    const float mean_g = kCentered ? sum_g * over : 0.0f, mean_gn = sum_gn * over;
    if (!exists) continue;
    T* dx = o.dx ? static_cast<T*>(o.dx) + row * o.dx_stride : nullptr;
    T* dresidual = o.dresidual ? static_cast<T*>(o.dresidual) + row * o.dresidual_stride : nullptr;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto x = kKeep ? normal[kKeep ? k : 0] : normal_of(k),
                 g = kKeep ? d[kKeep ? k : 0] : brought(turn, 1, k) * gamma[k];
      auto v = Lanes<N>(stat.rstd) * (g - Lanes<N>(mean_g) - x * Lanes<N>(mean_gn));
      if (o.dh) v = v + brought(turn, 2, k);
      if (dx) share.write(dx, k, v, o.add_dx);
      if (dresidual) share.write(dresidual, k, v, o.add_dresidual);
    }
  }
  float* to = o.partial + std::int64_t{blockIdx.x} * 2 * o.cols;
  if constexpr (kRows == 1) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      write(to + share.col(k), pack<float>(dgamma[k]), share.from(k), share.to(k));
      if constexpr (kCentered) write(to + o.cols + share.col(k), pack<float>(dbeta[k]), share.from(k), share.to(k));
    }
  } else {  // the teams of the block, in order
    __shared__ float sums[kRows][Team::kThreads * N];
    const int team = static_cast<int>(threadIdx.x) / Team::kThreads;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; ++i)
          sums[team][i * Team::kThreads + Team::thread()] = (which == 0 ? dgamma : dbeta)[k].v[i];
        __syncthreads();
        if (team != 0) continue;
        Lanes<N> all(0.0f);
        for (int r = 0; r < kRows; ++r)
          all = all + map<N>([&](int i) { return sums[r][i * Team::kThreads + Team::thread()]; });
        write(to + which * o.cols + share.col(k), pack<float>(all), share.from(k), share.to(k));
      }
  }
}

/// Rows that no team can hold, or gradients of h only.
template <bool kCentered, class T> __global__ void __launch_bounds__(1024) norm_backward_in_sweeps(NormGradients o) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = blockIdx.x;
  const auto stat = norm_row<kCentered>(o, row);
  const T* dh = o.dh ? static_cast<const T*>(o.dh) + row * o.dh_stride : nullptr;
  const auto sweep = [&](auto&& f) {
    for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < o.cols; at += kThreads * N) {
      const int n = static_cast<int>(o.cols - at < N ? o.cols - at : N);
      const auto normal =
          (load<N>(static_cast<const T*>(o.h) + row * o.h_stride + at, n) - Lanes<N>(stat.mean)) * Lanes<N>(stat.rstd);
      const auto g = o.dy ? load<N>(static_cast<const T*>(o.dy) + row * o.dy_stride + at, n) *
                                (o.gamma.load<N>(at, 0, n) + Lanes<N>(o.gamma_offset))
                          : Lanes<N>(0.0f);
      f(at, normal, g, n);  // absent elements have g = 0
    }
  };
  float sum_g = 0, sum_gn = 0;
  sweep([&](std::int64_t, const Lanes<N>& normal, const Lanes<N>& g, int) {
    sum_g += sum(g), sum_gn += sum(g * normal);
  });
  const float over = 1.0f / static_cast<float>(o.cols);
  const float mean_g = kCentered ? block_reduce<kThreads>(sum_g, Sum{}, memory[0]) * over : 0.0f;
  const float mean_gn = block_reduce<kThreads>(sum_gn, Sum{}, memory[1]) * over;
  sweep([&](std::int64_t at, const Lanes<N>& normal, const Lanes<N>& g, int n) {
    auto v = Lanes<N>(stat.rstd) * (g - Lanes<N>(mean_g) - normal * Lanes<N>(mean_gn));
    if (dh) v = v + load<N>(dh + at, n);
    const auto out = [&](void* to, std::int64_t stride, bool accumulate) {
      if (!to) return;
      T* place = static_cast<T*>(to) + row * stride + at;
      store(place, accumulate ? v + load<N>(static_cast<const T*>(place), n) : v, n);
    };
    out(o.dx, o.dx_stride, o.add_dx);
    out(o.dresidual, o.dresidual_stride, o.add_dresidual);
  });
}

/// Block (column tile, part): sums its rows' share of the parameters' gradients.
template <bool kCentered, class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads) norm_columns(NormGradients o) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N, part = blockIdx.y;
  const int n = static_cast<int>(o.cols - col < N ? o.cols - col : N);
  Lanes<N> dgamma(0.0f), dbeta(0.0f);
  if (n > 0 && o.dy)
    for (std::int64_t r = o.rows * part / o.parts + threadIdx.y; r < o.rows * (part + 1) / o.parts; r += kRowThreads) {
      const auto dy = load<N>(static_cast<const T*>(o.dy) + r * o.dy_stride + col, n);
      const auto h = load<N>(static_cast<const T*>(o.h) + r * o.h_stride + col, n);
      const auto stat = norm_row<kCentered>(o, r);
      dgamma = fma(dy, (h - Lanes<N>(stat.mean)) * Lanes<N>(stat.rstd), dgamma);
      dbeta = dbeta + dy;
    }
  dgamma = sum_over_row_threads(dgamma);
  dbeta = sum_over_row_threads(dbeta);
  if (threadIdx.y != 0 || n <= 0) return;
  float* to = o.partial + part * 2 * o.cols + col;
  store(to, dgamma, n);
  store(to + o.cols, dbeta, n);
}

/// A team for backward, by the number of packs per row; false if none can hold it. norm_parts() relies on each team's
/// number of threads. `shifted`: as in NormGradients; only then bits may differ from those of whole packs.
template <class T, bool kWhole, class F> bool with_backward_team(std::int64_t packs, bool shifted, F&& f) {
  const auto run = [&]<class Team>() {
    f.template operator()<Team>();
    return true;
  };
  if (packs <= 32) return run.template operator()<Team<32, 1, 4>>();
  if (packs <= 64) return run.template operator()<Team<64, 1>>();
  if (packs <= 96) return run.template operator()<Team<96, 1>>();
  if (packs <= 128) return run.template operator()<Team<128, 1>>();
  if (packs <= 192) return run.template operator()<Team<192, 1>>();
  if (packs <= 256) return run.template operator()<Team<256, 1>>();
  if constexpr (!kWhole)
    if (shifted && packs <= 384) return run.template operator()<Team<384, 1>>();
  if (packs <= 512) return run.template operator()<Team<512, 1>>();
  if constexpr (!kWhole)
    if (shifted && packs <= 640) return run.template operator()<Team<640, 1>>();
  if (packs <= 1024) return run.template operator()<Team<512, 2>>();
  if (packs <= 1536) return run.template operator()<Team<768, 2>>();
  if constexpr (sizeof(T) == 4)
    if (packs <= 2048) return run.template operator()<Team<1024, 2>>();
  return false;
}

template <bool kCentered> void run_norm(Stream& s, const NormBackward& b, const char* name) {
  const auto stride = [](const View& v) { return v ? v.row_stride() : std::int64_t{0}; };
  NormGradients o{b.dx.data(),
                  b.dresidual.data(),
                  b.h.data(),
                  b.dy.data(),
                  b.dh_in.data(),
                  Parameter(b.gamma),
                  b.mean ? b.mean.ptr<float>() : nullptr,
                  b.rstd.ptr<float>(),
                  b.partial.ptr<float>(),
                  b.h.rows(),
                  b.h.cols(),
                  norm_parts(b.h),
                  stride(b.dx),
                  stride(b.dresidual),
                  stride(b.h),
                  stride(b.dy),
                  stride(b.dh_in),
                  b.dx.accumulate(),
                  b.dresidual.accumulate(),
                  false,
                  false,
                  b.gamma_offset};
  visit_dtype(b.h.dtype(), [&]<class T>() {
    constexpr int N = kLanes<T>;
    if (o.rows == 0) return;
    const bool whole = o.gamma.whole() && whole_packs<T>(o.cols, {{o.dx, o.dx_stride},
                                                                  {o.dresidual, o.dresidual_stride},
                                                                  {o.h, o.h_stride},
                                                                  {o.dy, o.dy_stride},
                                                                  {o.dh, o.dh_stride}});
    if (o.cols % N != 0 && o.dy && (o.parts >= N || o.parts == o.rows)) {
      const auto dense = [&](const void* data, std::int64_t apart) {
        return !data || (reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && apart == o.cols);
      };
      if (o.parts < o.rows) o.parts = o.parts / N * N;
      o.shifted = true;
      o.aligned = dense(o.h, o.h_stride) && dense(o.dy, o.dy_stride) && dense(o.dh, o.dh_stride);
    }
    const auto run = [&]<bool kWhole>() {
      return with_backward_team<T, kWhole>((o.cols + N - 1) / N + (o.shifted ? 1 : 0), o.shifted, [&]<class Team>() {
        const auto kernel = norm_backward<kCentered, T, Team, kWhole>;
        const int shared = kNormStages<kCentered, Team> * (o.dh ? 3 : 2) * Team::kPacks * Team::kBlockThreads * 16;
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), name);
        kernel<<<blocks_for(o.parts, 1), Team::kBlockThreads, static_cast<std::size_t>(shared), queue(s)>>>(o);
        launched(name);
      });
    };
    const bool done = o.dy && (whole ? run.template operator()<true>() : run.template operator()<false>());
    if (done) return;
    if (b.dx || b.dresidual) {
      norm_backward_in_sweeps<kCentered, T><<<blocks_for(o.rows, 1), 1024, 0, queue(s)>>>(o);
      launched(name);
    }
    if (b.dgamma || b.dbeta) {
      const dim3 grid(blocks_for(o.cols, kColumnThreads * kLanes<T>), static_cast<unsigned>(o.parts));
      norm_columns<kCentered, T><<<grid, dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(o);
      launched(name);
    }
  });
  sum_parts(s, b.dgamma, b.dbeta, o.partial, o.rows == 0 ? 0 : o.parts, 2 * o.cols);
}

}  // namespace hpcdl::cuda
