#pragma once
// The GPU kernels of layer_norm and rms_norm (.cu files): kCentered subtracts the mean. Rows that a team holds
// (cuda/rows.cuh) are read once.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/rows.cuh"
#include "hpcdl/ops/layer_norm/norm.h"

namespace hpcdl::cuda {

struct NormOperands {
  void *h, *y;
  float *mean, *rstd;
  const void *x, *residual;
  Parameter gamma, beta;
  std::int64_t rows, cols, h_stride, y_stride, x_stride, residual_stride;
  float eps, gamma_offset;
};

/// The mean of a row and its sum of squared deviations from it; v becomes the deviations, 0 beyond the row. Warps
/// compute both for their own elements and then combine them (Chan, Golub, LeVeque, 1979), so that they synchronise
/// once.
template <class Team, class Share, int N, int K>
__device__ float2 center(Lanes<N> (&v)[K], const Share& share, float over, float2* memory) {
  constexpr int kHere = Team::kThreads < kWarp ? Team::kThreads : kWarp, kWarps = Team::kThreads / kHere;
  const auto deviations = [&](float mean) {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      int from = share.from(k), to = share.to(k);
      v[k] = v[k] - Lanes<N>(mean);
      if (share.whole(k)) {
        squares += sum(v[k] * v[k]);
      } else {
        asm volatile("" : "+r"(from), "+r"(to));  // else the N comparisons are kept for the next row
#pragma unroll
        for (int i = 0; i < N; ++i) squares += i >= from && i < to ? v[k].v[i] * v[k].v[i] : 0.0f;
      }
    }
    return warp_reduce<kHere>(squares, Sum{});
  };
  float total = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) total += sum(v[k]);  // absent elements are 0
  total = warp_reduce<kHere>(total, Sum{});
  if constexpr (kWarps == 1) {
    const float mean = total * over;
    return {mean, deviations(mean)};
  } else {
    // The number of elements of the row that warp w holds.
    const int lead = static_cast<int>(threadIdx.x) * N - share.first;
    const auto count = [&](int w) {
      int n = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int begin = (k * Team::kThreads + w * kWarp) * N - lead,
                  end = begin + kWarp * N < share.cols ? begin + kWarp * N : share.cols;
        n += end > begin ? end - (begin > 0 ? begin : 0) : 0;
      }
      return static_cast<float>(n > 0 ? n : 1);
    };
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    const float own = total / count(warp), squares = deviations(own);
    if (lane == 0) memory[warp] = {total, squares};
    __syncthreads();
    const float2 part = lane < kWarps ? memory[lane] : float2{0, 0};
    const float mean = warp_reduce<kWarp>(part.x, Sum{}) * over, n = count(lane),
                apart = lane < kWarps ? part.x / n - mean : 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = v[k] + Lanes<N>(own - mean);
    return {mean, warp_reduce<kWarp>(part.y + n * apart * apart, Sum{})};
  }
}

/// kWhole: only whole packs (whole_packs.h). Parameters of type P, or of any type (void). kSum: normalises x +
/// residual, which is stored to h.
template <bool kCentered, class T, class P, bool kSum, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kMinBlocks) norm_forward(NormOperands o) {
  constexpr int N = kLanes<T>, K = Team::kPacks;
  __shared__ float2 memory[kWarp];
  let_next_begin();
  await_previous();
  const std::int64_t row = Team::row();
  const bool exists = row < o.rows;
  const RowShare<T, Team, kWhole> share(row, exists ? o.cols : 0);
  const float over = 1.0f / static_cast<float>(o.cols);
  Lanes<N> v[K];
  {
    Pack<T, N> in[K], more[K];
    const auto fetch = [&](Pack<T, N>(&to)[K], const void* from, std::int64_t stride) {
      share.read(to, static_cast<const T*>(from) + row * stride, T{}, share.cols,
                 share.inside(row, o.rows, o.cols, stride));
    };
    fetch(in, o.x, o.x_stride);
    if constexpr (kSum) fetch(more, o.residual, o.residual_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = kSum ? widen(in[k]) + widen(more[k]) : widen(in[k]);
  }
  const auto parameter = [&](const Parameter& p, int k) {
    if constexpr (kWhole) return widen(read_aligned<N>(static_cast<const P*>(p.data) + share.col(k)));
    else if constexpr (std::is_void_v<P>) return p.load<N>(share.col(k), share.from(k), share.to(k));
    else return load_odd<N>(static_cast<const P*>(p.data), share.col(k), share.from(k), share.to(k), share.cols);
  };
  float mean = 0, squares = 0;
  if constexpr (kCentered) {
    const float2 both = center<Team>(v, share, over, memory);
    mean = both.x, squares = both.y;
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) squares += sum(v[k] * v[k]);
    squares = Team::reduce(squares, Sum{}, reinterpret_cast<float*>(memory));
  }
  const float rstd = 1.0f / sqrtf(squares * over + o.eps);
  if (exists && Team::thread() == 0) {
    if (kCentered && o.mean) o.mean[row] = mean;
    if (o.rstd) o.rstd[row] = rstd;
  }
  T* y = static_cast<T*>(o.y) + row * o.y_stride;
  T* h = kSum ? static_cast<T*>(o.h) + row * o.h_stride : nullptr;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!share.some(k)) break;
    auto out = v[k] * Lanes<N>(rstd) * (parameter(o.gamma, k) + Lanes<N>(o.gamma_offset));
    if (kCentered && o.beta.data) out = out + parameter(o.beta, k);
    share.write(y, k, pack<T>(out));
    if constexpr (kSum) share.write(h, k, pack<T>(v[k] + Lanes<N>(mean)));
  }
}

/// Threads per multiprocessor of norm_forward_odd.
inline constexpr int kOddThreads = 768;

/// Rows whose length is not a multiple of a pack. gridDim.x times Team::kRows is a multiple of a pack, so all rows of a
/// team begin at the same element of a pack: it loads its part of the parameters once. It loads the next row while it
/// computes.
template <bool kCentered, class T, bool kSum, class Team>
__global__ void __launch_bounds__(Team::kBlockThreads, kOddThreads / Team::kBlockThreads)
    norm_forward_odd(NormOperands o) {
  constexpr int N = kLanes<T>, K = Team::kPacks;
  __shared__ float2 memory[2][kWarp];
  let_next_begin();
  await_previous();
  const std::int64_t begin = std::int64_t{blockIdx.x} * Team::kRows, own = Team::row() - begin,
                     step = std::int64_t{gridDim.x} * Team::kRows;
  const RowShare<T, Team, false> share(Team::row(), o.cols);
  const float over = 1.0f / static_cast<float>(o.cols);
  Pack<T, N> in[K], more[K], gamma[K], beta[K] = {};
  const auto fetch_one = [&](Pack<T, N>(&to)[K], const void* from, std::int64_t stride, std::int64_t row) {
    const T* const at = static_cast<const T*>(from) + row * stride;
    if (share.inside(row, o.rows, o.cols, stride) && one_access<N>(at + share.first))
      share.load_around(to, at, share.cols);
    else share.read(to, at);
  };
  const auto fetch = [&](std::int64_t row) {
    if (row >= o.rows) return;
    fetch_one(in, o.x, o.x_stride, row);
    if constexpr (kSum) fetch_one(more, o.residual, o.residual_stride, row);
  };
  fetch(begin + own);
  const auto parameter = [&](Pack<T, N>(&to)[K], const Parameter& p) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      to[k] = pack<T>(load_odd<N>(static_cast<const T*>(p.data), share.col(k), share.from(k), share.to(k), share.cols));
  };
  parameter(gamma, o.gamma);
  if (kCentered && o.beta.data) parameter(beta, o.beta);
  int turn = 0;
  for (std::int64_t base = begin; base < o.rows; base += step, turn ^= 1) {
    const std::int64_t row = base + own;
    const bool exists = row < o.rows;
    Lanes<N> v[K];
    share.cut(in, T{}, share.cols);
    if constexpr (kSum) share.cut(more, T{}, share.cols);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = kSum ? widen(in[k]) + widen(more[k]) : widen(in[k]);
    fetch(row + step);
    float mean = 0, squares = 0;
    if constexpr (kCentered) {
      const float2 both = center<Team>(v, share, over, memory[turn]);
      mean = both.x, squares = both.y;
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) squares += sum(v[k] * v[k]);
      squares = Team::reduce(squares, Sum{}, reinterpret_cast<float*>(memory[turn]));
    }
    if (!exists) continue;
    const float rstd = 1.0f / sqrtf(squares * over + o.eps);
    if (Team::thread() == 0) {
      if (kCentered && o.mean) o.mean[row] = mean;
      if (o.rstd) o.rstd[row] = rstd;
    }
    T* y = static_cast<T*>(o.y) + row * o.y_stride;
    T* h = kSum ? static_cast<T*>(o.h) + row * o.h_stride : nullptr;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!share.some(k)) break;
      share.hold(gamma[k]), share.hold(beta[k]);
      auto out = v[k] * Lanes<N>(rstd) * (widen(gamma[k]) + Lanes<N>(o.gamma_offset));
      if (kCentered && o.beta.data) out = out + widen(beta[k]);
      share.write(y, k, pack<T>(out));
      if constexpr (kSum) share.write(h, k, pack<T>(v[k] + Lanes<N>(mean)));
    }
  }
}

/// Rows that no team can hold: read three times.
template <bool kCentered, class T> __global__ void __launch_bounds__(1024) norm_forward_in_sweeps(NormOperands o) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(o.x) + row * o.x_stride;
  const T* residual = o.residual ? static_cast<const T*>(o.residual) + row * o.residual_stride : nullptr;
  const auto sweep = [&](auto&& f) {
    for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < o.cols; at += kThreads * N) {
      const int n = static_cast<int>(o.cols - at < N ? o.cols - at : N);
      const auto v = load<N>(x + at, n);
      f(at, residual ? v + load<N>(residual + at, n) : v, n);
    }
  };
  const float over = 1.0f / static_cast<float>(o.cols);
  float mean = 0, part = 0;
  if constexpr (kCentered) {
    sweep([&](std::int64_t, const Lanes<N>& v, int) { part += sum(v); });
    mean = block_reduce<kThreads>(part, Sum{}, memory[0]) * over;
    part = 0;
  }
  sweep([&](std::int64_t, const Lanes<N>& v, int n) {
#pragma unroll
    for (int i = 0; i < N; ++i) part += i < n ? (v.v[i] - mean) * (v.v[i] - mean) : 0.0f;
  });
  const float rstd = 1.0f / sqrtf(block_reduce<kThreads>(part, Sum{}, memory[1]) * over + o.eps);
  if (threadIdx.x == 0) {
    if (kCentered && o.mean) o.mean[row] = mean;
    if (o.rstd) o.rstd[row] = rstd;
  }
  sweep([&](std::int64_t at, const Lanes<N>& v, int n) {
    auto out = (v - Lanes<N>(mean)) * Lanes<N>(rstd) * (o.gamma.load<N>(at, 0, n) + Lanes<N>(o.gamma_offset));
    if (o.beta.data) out = out + o.beta.load<N>(at, 0, n);
    store(static_cast<T*>(o.y) + row * o.y_stride + at, out, n);
    if (o.h) store(static_cast<T*>(o.h) + row * o.h_stride + at, v, n);
  });
}

/// Rows that no team can hold, in the shared memory of a block: the aligned 16-byte packs that cover the row, with its
/// ends masked. Read once. H200, us, layer_norm of bf16 (in three sweeps | this way | a copy): 3000x50257 673 | 240 |
/// 145, 3000x50264 364 | 260 | 145, 2000x100001 809 | 497 | 190; f32 3000x50264, one block at a time: 601 | 647.
template <bool kCentered, class T> __global__ void __launch_bounds__(1024, 2) norm_forward_in_shared(NormOperands o) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  extern __shared__ __align__(16) unsigned char held[];
  __shared__ float memory[2][kWarp];
  auto* const packs = reinterpret_cast<Pack<T, N>*>(held);
  const std::int64_t row = blockIdx.x;
  const int cols = static_cast<int>(o.cols), lead = static_cast<int>(row * o.cols % N),
            count = (lead + cols + N - 1) / N;
  const T* x = static_cast<const T*>(o.x) + row * o.x_stride - lead;
  const bool whole = row + 1 < o.rows && o.x_stride >= o.cols && one_access<N>(x);
  const float over = 1.0f / static_cast<float>(cols);
  float part = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int from = lead - i * N, to = lead + cols - i * N;
    Pack<T, N> v;
    if (whole) {
      v = read_aligned<N>(x + i * N);
      if (from > 0 || to < N) {
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (j < from || j >= to) v.set(j, T{});
      }
    } else {
      v = read<N>(x + i * N, from, to, T{});
    }
    packs[i] = v;
    if constexpr (kCentered) part += sum(widen(v));
  }
  float mean = 0;
  if constexpr (kCentered) {
    mean = block_reduce<kThreads>(part, Sum{}, memory[0]) * over;
    part = 0;
  }
  const auto each = [&](auto&& f) {  // a thread reads only what it copied itself
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
      f(i, widen(packs[i]) - Lanes<N>(mean), lead - i * N, lead + cols - i * N);
  };
  each([&](int, const Lanes<N>& v, int from, int to) {
    if (from <= 0 && to >= N) part += sum(v * v);
    else
#pragma unroll
      for (int j = 0; j < N; ++j) part += j >= from && j < to ? v.v[j] * v.v[j] : 0.0f;
  });
  const float rstd = 1.0f / sqrtf(block_reduce<kThreads>(part, Sum{}, memory[1]) * over + o.eps);
  if (threadIdx.x == 0) {
    if (kCentered && o.mean) o.mean[row] = mean;
    if (o.rstd) o.rstd[row] = rstd;
  }
  T* y = static_cast<T*>(o.y) + row * o.y_stride - lead;
  each([&](int i, const Lanes<N>& v, int from, int to) {
    auto out =
        v * Lanes<N>(rstd) *
        (load_odd<N>(static_cast<const T*>(o.gamma.data), i * N - lead, from, to, cols) + Lanes<N>(o.gamma_offset));
    if (kCentered && o.beta.data)
      out = out + load_odd<N>(static_cast<const T*>(o.beta.data), i * N - lead, from, to, cols);
    write(y + i * N, pack<T>(out), from, to);
  });
}

/// Whether both parameters have type T.
template <class T> bool of_type(const NormOperands& o) {
  return o.gamma.dtype == dtype_of<T> && (!o.beta.data || o.beta.dtype == dtype_of<T>);
}

/// Returns whether it handled the rows.
template <bool kCentered, class T> bool norm_in_shared(Stream& s, const NormOperands& o, const char* name) {
  const std::int64_t bytes = (o.cols + 2 * kLanes<T>)*static_cast<std::int64_t>(sizeof(T));
  // Two blocks per multiprocessor; one at a time is better than three sweeps if those would access single elements.
  const std::int64_t most = sizeof(T) == 2 && o.cols % kLanes<T> != 0 ? 220 << 10 : 110 << 10;
  if (o.residual || !has_sm90a(s) || bytes > most || !of_type<T>(o)) return false;
  auto* kernel = norm_forward_in_shared<kCentered, T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
  kernel<<<blocks_for(o.rows, 1), 1024, static_cast<std::size_t>(bytes), queue(s)>>>(o);
  launched(name);
  return true;
}

/// f.template operator()<Team>() with the team for a row of this many elements of T; false if none can hold it. Few
/// threads with several packs each are best: the work that each thread does once per row, and waits for, matters.
/// Measured on an H200.
template <bool kCentered, class T, class F> bool with_norm_team(std::int64_t cols, F&& f) {
  constexpr int N = kLanes<T>;
  const std::int64_t packs = (cols + N - 1) / N + (cols % N == 0 || cols == 1 ? 0 : 1);
  const auto run = [&]<class Team>() {
    f.template operator()<Team>();
    return true;
  };
  if (packs <= 8) return run.template operator()<Team<8, 1, 32>>();
  if (packs <= 32) return run.template operator()<Team<32, 1, 8>>();
  if (packs <= 64) return run.template operator()<Team<32, 2, 8>>();
  if (packs <= 96) return run.template operator()<Team<32, 3, 4>>();
  if (packs <= 128) return run.template operator()<Team<32, 4, 4>>();
  if (packs <= 192) return run.template operator()<Team<64, 3>>();
  if (packs <= 256) return run.template operator()<Team<64, 4>>();
  if (packs <= 512) return run.template operator()<std::conditional_t<kCentered, Team<128, 4>, Team<256, 2>>>();
  if (packs <= 1024) return run.template operator()<Team<256, 4>>();
  if (packs <= 2048) return run.template operator()<Team<512, 4>>();
  if (packs <= 4096) return run.template operator()<Team<1024, 4>>();
  return false;
}

/// The same for rows whose length is not a multiple of a pack, up to the length that norm_in_shared() supports: teams
/// of any number of warps, so that few of their packs are empty. Those with at most two packs per thread run
/// norm_forward_odd(), which needs registers for the parameters and the next row. H200, us, layer_norm of bf16 (a row at
/// a time | norm_forward_odd | cudaMemcpy): 4099x5001 36 | 31 | 33, 16384x3001 76 | 65 | 49, 16384x1001 31 | 28 | 18,
/// 8191x8193 115 | 110 | 100, 65536x257 42 | 50 | 18; f32 4099x5001 55 | 52 | 62.
template <class T, class F> bool with_odd_norm_team(std::int64_t cols, F&& f) {
  constexpr int N = kLanes<T>;
  const std::int64_t packs = (cols + N - 1) / N + 1;
  bool done = false;
  const auto holds = [&]<class Team>() {
    if (done || packs > std::int64_t{Team::kThreads} * Team::kPacks) return;
    done = true;
    f.template operator()<Team>();
  };
  const auto warps = [&]<int kPacks, int... kWarps>(std::integer_sequence<int, kWarps...>) {
    (holds.template operator()<Team<kWarps * kWarp, kPacks>>(), ...);
  };
  holds.template operator()<Team<8, 1, 32>>();
  holds.template operator()<Team<8, 2, 32>>();
  holds.template operator()<Team<16, 2, 16>>();
  holds.template operator()<Team<16, 3, 16>>();
  holds.template operator()<Team<32, 2, 8>>();
  warps.template operator()<2>(std::integer_sequence<int, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24>());
  warps.template operator()<4>(std::integer_sequence<int, 16, 24, 32>());
  return done;
}

template <bool kCentered, class T, class Team>
void run_odd_norm(Stream& s, const NormOperands& o, bool residual, const char* name) {
  if constexpr (Team::kPacks > 2) {
    launch_rows<Team>(
        s,
        residual ? norm_forward<kCentered, T, T, true, Team, false> : norm_forward<kCentered, T, T, false, Team, false>,
        o.rows, o, name, overlaps(s, o.rows));
  } else {
    const std::int64_t all = (o.rows + Team::kRows - 1) / Team::kRows,
                       most =
                           multiprocessors(s) * std::int64_t{kOddThreads / Team::kBlockThreads} / kLanes<T> * kLanes<T>;
    launch_overlapped(
        queue(s), overlaps(s, o.rows),
        residual ? norm_forward_odd<kCentered, T, true, Team> : norm_forward_odd<kCentered, T, false, Team>,
        {.grid = static_cast<unsigned>(all < most ? all : most), .block = Team::kBlockThreads}, name, o);
  }
}

template <bool kCentered> void run_norm(Stream& s, const NormOperands& o, DType dtype, const char* name) {
  visit_dtype(dtype, [&]<class T>() {
    const bool whole =
        o.gamma.whole() && o.beta.whole() &&
        whole_packs<T>(o.cols,
                       {{o.h, o.h_stride}, {o.y, o.y_stride}, {o.x, o.x_stride}, {o.residual, o.residual_stride}});
    if (o.cols % kLanes<T> != 0 && o.cols > 1 && of_type<T>(o)) {
      const auto run = [&]<class Team>() { run_odd_norm<kCentered, T, Team>(s, o, o.residual != nullptr, name); };
      if (with_odd_norm_team<T>(o.cols, run)) return;
    }
    const bool done = with_norm_team<kCentered, T>(o.cols, [&]<class Team>() {
      const auto pick = [&]<class P, bool kWhole>() {
        return o.residual ? norm_forward<kCentered, T, P, true, Team, kWhole>
                          : norm_forward<kCentered, T, P, false, Team, kWhole>;
      };
      const auto kernel = whole && o.gamma.dtype == dtype_of<T>  ? pick.template operator()<T, true>()
                          : whole && o.gamma.dtype == DType::f32 ? pick.template operator()<float, true>()
                                                                 : pick.template operator()<void, false>();
      launch_rows<Team>(s, kernel, o.rows, o, name, overlaps(s, o.rows));
    });
    if (done || norm_in_shared<kCentered, T>(s, o, name)) return;
    norm_forward_in_sweeps<kCentered, T><<<blocks_for(o.rows, 1), 1024, 0, queue(s)>>>(o);
    launched(name);
  });
}

template <bool kCentered> void run_norm(Stream& s, const NormForward& f, const char* name) {
  const NormOperands o{f.h.data(),
                       f.y.data(),
                       f.mean ? f.mean.ptr<float>() : nullptr,
                       f.rstd ? f.rstd.ptr<float>() : nullptr,
                       f.x.data(),
                       f.residual.data(),
                       Parameter(f.gamma),
                       Parameter(f.beta),
                       f.x.rows(),
                       f.x.cols(),
                       f.h ? f.h.row_stride() : 0,
                       f.y.row_stride(),
                       f.x.row_stride(),
                       f.residual ? f.residual.row_stride() : 0,
                       f.eps,
                       f.gamma_offset};
  if (o.rows == 0) return;
  const auto dtype = f.x.dtype();
  const auto bytes = dtype_bytes(dtype);
  constexpr int kPackBytes = 16;
  if (!s.numerics().row_invariant || o.cols * bytes % kPackBytes == 0) return run_norm<kCentered>(s, o, dtype, name);
  // The other rows begin within a pack, and the order of their sums depends on where.
  for (std::int64_t row = 0; row < o.rows; ++row) {
    const auto at = [&](const void* data, std::int64_t stride) {
      return data ? static_cast<std::byte*>(const_cast<void*>(data)) + row * stride * bytes : nullptr;
    };
    auto one = o;
    one.rows = 1;
    one.h = at(o.h, o.h_stride), one.y = at(o.y, o.y_stride);
    one.x = at(o.x, o.x_stride), one.residual = at(o.residual, o.residual_stride);
    one.mean = o.mean ? o.mean + row : nullptr, one.rstd = o.rstd ? o.rstd + row : nullptr;
    run_norm<kCentered>(s, one, dtype, name);
  }
}

}  // namespace hpcdl::cuda
