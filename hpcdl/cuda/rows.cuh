#pragma once
// Row-wise kernels (softmax, norms, gradients of both): a team of threads holds one row in registers, so that it is
// read once. A team is a part of a warp, a warp, a block, or the blocks of a cluster, for long rows. Each of its
// threads holds kPacks packs of 16 bytes, all of them loaded before the first is used.
//
// Packs lie on 16-byte boundaries of a contiguous matrix, whatever the length of its rows: a row that begins between
// two of them (most do, where the length is odd) begins inside its first pack. Only the first and the last pack of a
// row are then written element by element, and read so where what lies around the row may not be. Which thread holds
// what depends on the row's number and length, not on addresses: so do the bits of sums.

#include <cooperative_groups.h>

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/whole_packs.cuh"

namespace hpcdl::cuda {

/// kThreads: per row and block, a part of a warp (a power of two) or whole warps; kRows rows share a block. kBlocks >
/// 1: a cluster per row (kRows is 1).
template <int kThreads_, int kPacks_, int kRows_ = 1, int kBlocks_ = 1> struct Team {
  static constexpr int kThreads = kThreads_, kPacks = kPacks_, kBlocks = kBlocks_, kRows = kRows_,
                       kBlockThreads = kThreads * kRows;
  /// Blocks that should fit a multiprocessor at least, for the compiler: 1024 threads, at 64 registers each.
  static constexpr int kMinBlocks = 1024 / kBlockThreads;
  /// A kernel of another team is empty: it is never launched on GPUs that this is compiled for.
  static constexpr bool kCompiled = kBlocks == 1 || HPCDL_CLUSTERS;
  static_assert(kRows == 1 || kThreads <= kWarp, "rows of one block do not wait for each other");

  /// The row of this thread; it may lie beyond the last one.
  __device__ static std::int64_t row() {
    if constexpr (kRows > 1) return std::int64_t{blockIdx.x} * kRows + threadIdx.x / kThreads;
    else return blockIdx.x / kBlocks;
  }
  /// Index of the thread in its team.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads + part() * kThreads * kPacks; }
  __device__ static int part() { return kBlocks > 1 ? static_cast<int>(blockIdx.x) % kBlocks : 0; }

  /// Over the team's threads in this block; all of them get the result. `memory`: 32 floats that are not shared
  /// with the previous call.
  template <class Op> __device__ static float reduce(float x, Op op, float* memory) {
    if constexpr (kThreads > kWarp) return block_reduce<kThreads>(x, op, memory);
    else return warp_reduce<kThreads>(x, op);
  }
  /// The sums of a and of b, at the cost of one.
  __device__ static void sum_both(float& a, float& b, float2* memory) {
    constexpr int kHere = kThreads < kWarp ? kThreads : kWarp, kWarps = kThreads / kHere;
    a = warp_reduce<kHere>(a, Sum{}), b = warp_reduce<kHere>(b, Sum{});
    if constexpr (kWarps > 1) {
      const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
      if (lane == 0) memory[warp] = {a, b};
      __syncthreads();
      const float2 part = lane < kWarps ? memory[lane] : float2{0, 0};
      a = warp_reduce<kWarp>(part.x, Sum{}), b = warp_reduce<kWarp>(part.y, Sum{});
    }
  }
};

/// The packs of T that one thread of a team holds of a row of `cols` elements. kWhole: see whole_packs(); it changes no
/// bits.
template <class T, class Team, bool kWhole> struct RowShare {
  static constexpr int N = kLanes<T>, K = Team::kPacks;
  using P = Pack<T, N>;
  int first, cols;  // column of the first pack; below 0 if the row begins inside it

  /// Packs begin at column 0.
  __device__ explicit RowShare(std::int64_t columns) : first(Team::thread() * N), cols(static_cast<int>(columns)) {}
  /// Packs begin at the 16-byte boundaries of a contiguous matrix.
  __device__ RowShare(std::int64_t row, std::int64_t columns)
      : first(Team::thread() * N - (kWhole ? 0 : static_cast<int>(row * columns % N))),
        cols(static_cast<int>(columns)) {}

  __device__ int col(int k) const { return first + k * Team::kThreads * N; }
  /// Elements of pack k that belong to the row are those with from <= i < to.
  __device__ int from(int k) const { return kWhole ? 0 : -col(k); }
  __device__ int to(int k) const { return cols - col(k); }
  __device__ bool some(int k) const { return to(k) > 0; }
  __device__ bool whole(int k) const { return kWhole ? some(k) : from(k) <= 0 && to(k) >= N; }

  /// Loads of the packs that reach into the first `limit` columns, all issued before any is used; cut() must follow.
  /// Precondition: the row and what lies around it may be read (inside()), and packs lie on 16-byte boundaries.
  __device__ void load_around(P (&v)[K], const T* row, int limit) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = P{};
      if (col(k) < limit && col(k) > -N) v[k] = read_aligned<N>(row + col(k));
    }
  }
  /// Replaces what lies before the row, or in columns from `limit` on, by `rest`.
  __device__ void cut(P (&v)[K], T rest, int limit) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      int begin = from(k), end = limit - col(k);
      if (begin <= 0 && end >= N) continue;
      asm volatile("" : "+r"(begin), "+r"(end));  // else the N comparisons are kept for the next row
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < begin || i >= end) v[k].set(i, rest);
    }
  }
  /// The row at `row`, up to its first `limit` columns; elsewhere `rest`. `inside`: whole packs may be read of it
  /// (inside()).
  __device__ void read(P (&v)[K], const T* row, T rest, int limit, bool inside = false) const {
    if constexpr (!kWhole) {
      if (inside && one_access<N>(row + first)) {
        load_around(v, row, limit);
        return cut(v, rest, limit);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = read(row, k, rest, limit);
  }
  /// Whether the packs at both ends of a row lie in readable memory, because there are rows after it.
  __device__ static bool inside(std::int64_t row, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    return row + 1 < rows && stride >= cols;
  }
  __device__ void read(P (&v)[K], const T* row) const { read(v, row, T{}, cols); }
  /// `limit` cuts a pack only if rows are causal.
  __device__ P read(const T* row, int k, T rest, int limit) const {
    if constexpr (kWhole) {
      P p;
#pragma unroll
      for (int i = 0; i < N; ++i) p.set(i, rest);
      if (col(k) < limit) p = read_aligned<N>(row + col(k));
      if (limit < cols) {
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (col(k) + i >= limit) p.set(i, rest);
      }
      return p;
    } else {
      return cuda::read<N>(row + col(k), from(k), limit - col(k), rest);
    }
  }
  __device__ P read(const T* row, int k) const { return read(row, k, T{}, cols); }
  /// From here on only the packs are kept: otherwise the compiler would keep the converted values, with twice the
  /// registers.
  __device__ static void hold(P& v) {
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) asm volatile("" : "+r"(v.w[i]));
  }
  __device__ void write(T* row, int k, const P& v) const {
    if constexpr (!kWhole) cuda::write(row + col(k), v, from(k), to(k));
    else if (some(k)) write_aligned(row + col(k), v);
  }
  /// Writes the values of pack k, or adds them.
  __device__ void write(T* row, int k, Lanes<N> v, bool add) const {
    if (add) v = v + widen(read(static_cast<const T*>(row), k));
    write(row, k, pack<T>(v));
  }
};

/// One launch of `kernel` over all rows. `overlap`: as in launch_overlapped().
template <class Team, class Kernel, class Operands>
void launch_rows(Stream& s, Kernel* kernel, std::int64_t rows, const Operands& o, const char* name,
                 bool overlap = false) {
  launch_overlapped(
      queue(s), overlap, kernel,
      {.grid = blocks_for(rows * Team::kBlocks, Team::kRows), .block = Team::kBlockThreads, .cluster = Team::kBlocks},
      name, o);
}

/// f.template operator()<Team>() with a team that holds a row of `cols` elements of T, kPacks accesses to a thread;
/// false if there is none. kMaxBlocks > 1: also clusters, if the GPU has them.
template <class T, int kPacks, int kMaxBlocks, class F> bool with_team(const Stream& s, std::int64_t cols, F&& f) {
  constexpr int N = kLanes<T>, P = kPacks;
  const std::int64_t packs = (cols + N - 1) / N + (cols % N == 0 || cols == 1 ? 0 : 1);
  const auto run = [&]<class Team>() {
    f.template operator()<Team>();
    return true;
  };
  if (packs <= 8) return run.template operator()<Team<8, 1, 32>>();
  if (packs <= 32) return run.template operator()<Team<8, 4, 32>>();
  if (packs <= 32 * P) return run.template operator()<Team<32, P, 8>>();
  if (packs <= 64 * P) return run.template operator()<Team<64, P>>();
  if (packs <= 128 * P) return run.template operator()<Team<128, P>>();
  if (packs <= 256 * P) return run.template operator()<Team<256, P>>();
  if (packs <= 512 * P) return run.template operator()<Team<512, P>>();
  // Long rows: half the threads and twice the packs leave room for a second block, which loads while the first one
  // stores.
  constexpr int kLong = kMaxBlocks > 1 ? 512 : 1024, L = P * 1024 / kLong;
  if (packs <= kLong * L) return run.template operator()<Team<kLong, L>>();
  if constexpr (kMaxBlocks == 1) {
    if (packs <= 2 * kLong * L) return run.template operator()<Team<kLong, 2 * L>>();
  } else {
    if (!has_clusters(s)) return false;
    if (packs <= 2 * kLong * L) return run.template operator()<Team<kLong, L, 1, 2>>();
    if (packs <= 4 * kLong * L) return run.template operator()<Team<kLong, L, 1, 4>>();
    if (packs <= 8 * kLong * L) return run.template operator()<Team<kLong, L, 1, 8>>();
    if constexpr (kMaxBlocks > 8)
      if (packs <= 16 * kLong * L) return run.template operator()<Team<1024, L, 1, 8>>();
  }
  return false;
}

/// Like with_team(), for rows whose length is not a multiple of a pack: teams of any number of warps, so that few of
/// their packs are empty; 3 to 8 packs of a thread. Microseconds of softmax of bf16 on an H200:
///
///   rows                     8191x8193  65536x513  8192x2049  16384x3001  4099x5001  100000x99  3000x50257
///   teams of powers of two         141         68         32          67         37         27         211
///   these teams                     84         49         23          50         23         18         188
///   a copy                          66         34         18          49         22         11         145
template <class T, int kMaxBlocks, class F> bool with_odd_team(const Stream& s, std::int64_t cols, F&& f) {
  constexpr int N = kLanes<T>;
  const std::int64_t packs = (cols + N - 1) / N + 1;
  bool done = false;
  const auto holds = [&]<class Team>() {
    if (done || packs > std::int64_t{Team::kThreads} * Team::kPacks * Team::kBlocks) return;
    done = true;
    f.template operator()<Team>();
  };
  const auto warps = [&]<int... kWarps>(std::integer_sequence<int, kWarps...>) {
    (holds.template operator()<Team<kWarps * kWarp, 4>>(), ...);
  };
  holds.template operator()<Team<8, 1, 32>>();
  holds.template operator()<Team<8, 2, 32>>();
  holds.template operator()<Team<8, 3, 32>>();
  holds.template operator()<Team<16, 3, 16>>();
  holds.template operator()<Team<16, 4, 16>>();
  holds.template operator()<Team<32, 3, 8>>();
  holds.template operator()<Team<32, 4, 8>>();
  holds.template operator()<Team<64, 3>>();
  warps(std::integer_sequence<int, 2, 3, 4, 5, 6, 8, 10, 12, 16>());
  holds.template operator()<Team<320, 8>>();
  holds.template operator()<Team<384, 8>>();
  holds.template operator()<Team<512, 8>>();
  if (kMaxBlocks == 1 || !has_clusters(s)) return done;
  holds.template operator()<Team<384, 8, 1, 2>>();
  holds.template operator()<Team<448, 8, 1, 2>>();
  holds.template operator()<Team<512, 8, 1, 2>>();
  holds.template operator()<Team<384, 8, 1, 4>>();
  holds.template operator()<Team<512, 8, 1, 4>>();
  holds.template operator()<Team<512, 8, 1, 8>>();
  if constexpr (kMaxBlocks > 8) holds.template operator()<Team<1024, 8, 1, 8>>();
  return done;
}

}  // namespace hpcdl::cuda
