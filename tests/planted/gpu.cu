// Kernels for a GPU as people write them, correct ones and ones with typical errors.

#include <cuda_fp16.h>

#include <algorithm>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

using std::int64_t;

cudaStream_t queue(const hpcdl_call* c) { return static_cast<cudaStream_t>(c->stream); }
unsigned blocks(int64_t n, int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }
int launched() { return cudaPeekAtLastError() == cudaSuccess ? HPCDL_OK : -1; }

// ---- softmax, a block for each row ----

enum class Flaw {
  none,
  no_mask,
  off_by_one,
  no_barrier,
  racing_sum,
  stale,
  whole_vectors,
  length_64,
  one_row_per_call
};

struct Rows {
  float* y;
  const float* x;
  int64_t rows, n, seen_first;  // rows of one matrix, columns, columns that row 0 sees
  float scale;
  bool causal;
};

Rows rows_of(const hpcdl_call* c) {
  const auto& t = c->inputs[0];
  const auto& a = args<hpcdl_softmax_args>(c);
  const int64_t r = t.rank > 1 ? t.shape[t.rank - 2] : 1;
  return {out<float>(c, 0), in<float>(c, 0), r, cols(t), cols(t) - r + 1, a.scale, a.causal != 0};
}

constexpr int kThreads = 128;

/// Tree over a block. Warps far from the first are late, as they are on a busy chip.
template <Flaw flaw, class F> __device__ float of_block(float v, float* shared, F join) {
  if (flaw == Flaw::no_barrier && threadIdx.x >= 32) __nanosleep(2000);
  shared[threadIdx.x] = v;
  if (flaw != Flaw::no_barrier) __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
    if (flaw != Flaw::no_barrier) __syncthreads();
  }
  const float all = shared[0];
  if (flaw != Flaw::no_barrier) __syncthreads();
  return all;
}

__device__ float last_sum = 1;  // of the row that came last

template <Flaw flaw> __global__ void softmax_rows(Rows p) {
  __shared__ float shared[kThreads];
  const int64_t row = blockIdx.x;
  const float* x = p.x + row * p.n;
  float* y = p.y + row * p.n;
  int64_t seen = p.causal ? row % p.rows + p.seen_first : p.n;
  if (flaw == Flaw::no_mask) seen = p.n;
  if (flaw == Flaw::off_by_one && p.causal) seen = min(p.n, seen + 1);
  if (flaw == Flaw::whole_vectors) seen = seen / 4 * 4;
  if (flaw == Flaw::length_64) seen = min(seen, int64_t{64});
  float top = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) {
    const float v = p.scale * x[i];
    top = v > top || v != v ? v : top;
  }
  const auto larger = [](float a, float b) { return a != a || a > b ? a : b; };
  top = of_block < flaw == Flaw::no_barrier ? Flaw::no_barrier : Flaw::none > (top, shared, larger);
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) sum += expf(p.scale * x[i] - top);
  if (flaw == Flaw::racing_sum) {
    __shared__ float together;
    if (threadIdx.x == 0) together = 0;
    __syncthreads();
    together += sum;  // every thread at once
    __syncthreads();
    sum = together;
  } else {
    sum = of_block < flaw == Flaw::no_barrier ? Flaw::no_barrier
                                              : Flaw::none > (sum, shared, [](float a, float b) { return a + b; });
  }
  const float divisor = flaw == Flaw::stale ? last_sum : sum;
  if (flaw == Flaw::stale) {
    __syncthreads();
    if (threadIdx.x == 0) last_sum = sum;
  }
  const int64_t written = flaw == Flaw::whole_vectors ? p.n / 4 * 4
                          : flaw == Flaw::length_64   ? min(p.n, int64_t{64})
                                                      : p.n;
  for (int64_t i = threadIdx.x; i < written; i += kThreads) y[i] = i < seen ? expf(p.scale * x[i] - top) / divisor : 0;
}

template <Flaw flaw> int softmax(const hpcdl_call* c) {
  const auto all = rows(c->inputs[0]);
  if (all > 0)
    softmax_rows<flaw>
        <<<static_cast<unsigned>(flaw == Flaw::one_row_per_call ? 1 : all), kThreads, 0, queue(c)>>>(rows_of(c));
  return launched();
}

/// Does not wait for the work of the caller, and the caller does not wait for it.
int own_stream(const hpcdl_call* c) {
  static cudaStream_t own = [] {
    cudaStream_t s = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
  }();
  if (const auto all = rows(c->inputs[0]); all > 0)
    softmax_rows<Flaw::none><<<static_cast<unsigned>(all), kThreads, 0, own>>>(rows_of(c));
  return launched();
}

/// A warp for each row, one pass for maximum and sum.
__global__ void softmax_warps(Rows p, int64_t all) {
  const int64_t row = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (row >= all) return;
  const int lane = threadIdx.x % 32;
  const float* x = p.x + row * p.n;
  const int64_t seen = p.causal ? row % p.rows + p.seen_first : p.n;
  float top = -INFINITY, sum = 0;
  const auto take = [&](float v, float weight) {
    const float higher = v != v || top != top ? NAN : fmaxf(top, v);
    sum = (top == -INFINITY ? 0 : sum * expf(top - higher)) + (v == -INFINITY ? 0 : weight * expf(v - higher));
    top = higher;
  };
  for (int64_t i = lane; i < seen; i += 32) take(p.scale * x[i], 1);
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, top, step), theirs = __shfl_xor_sync(~0u, sum, step);
    take(other, theirs);
  }
  if (top == -INFINITY && seen > 0) sum = NAN;  // nothing but -inf
  for (int64_t i = lane; i < p.n; i += 32) p.y[row * p.n + i] = i < seen ? expf(p.scale * x[i] - top) / sum : 0;
}
int by_warps(const hpcdl_call* c) {
  const auto all = rows(c->inputs[0]);
  if (all > 0) softmax_warps<<<blocks(all, 4), kThreads, 0, queue(c)>>>(rows_of(c), all);
  return launched();
}

// ---- element by element ----

template <class T, bool strided> __global__ void add_each(T* y, const T* a, const T* b, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += strided ? int64_t{gridDim.x} * blockDim.x : n)
    y[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}
template <class T> int add(const hpcdl_call* c, unsigned most, bool strided) {
  const auto n = size(c->inputs[0]);
  if (n == 0) return HPCDL_OK;
  const auto grid = std::min(most, blocks(n, kThreads));
  if (strided) add_each<T, true><<<grid, kThreads, 0, queue(c)>>>(out<T>(c, 0), in<T>(c, 0), in<T>(c, 1), n);
  else add_each<T, false><<<grid, kThreads, 0, queue(c)>>>(out<T>(c, 0), in<T>(c, 0), in<T>(c, 1), n);
  return launched();
}
int add_any(const hpcdl_call* c) {
  return with_type(c->inputs[0], [&]<class T>() { add<T>(c, ~0u, false); });
}
int add_strided(const hpcdl_call* c) {
  return with_type(c->inputs[0], [&]<class T>() { add<T>(c, 3, true); });
}
/// Launches as many blocks as fit, and leaves out the rest.
int add_first_blocks(const hpcdl_call* c) { return add<float>(c, 32, false); }

__global__ void add_vectors(float4* y, const float4* a, const float4* b, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) y[i] = make_float4(a[i].x + b[i].x, a[i].y + b[i].y, a[i].z + b[i].z, a[i].w + b[i].w);
}
/// Four at a time, rounded down or up: the last ones are left out, or memory after them is overwritten.
template <bool up> int add_fours(const hpcdl_call* c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  if (!aligned(out<float>(c, 0)) || !aligned(in<float>(c, 0)) || !aligned(in<float>(c, 1))) return add_any(c);
  const auto n = (size(c->inputs[0]) + (up ? 3 : 0)) / 4;
  if (n > 0)
    add_vectors<<<blocks(n, kThreads), kThreads, 0, queue(c)>>>(out<float4>(c, 0), in<float4>(c, 0), in<float4>(c, 1),
                                                                n);
  return launched();
}

// ---- matrices ----

struct Product {
  float* y;
  const float *a, *b;
  int64_t m, n, k, a_row, a_col, b_row, b_col;  // steps
  float scale;
};
Product product_of(const hpcdl_call* c) {
  const auto& a = args<hpcdl_matmul_args>(c);
  const auto &ta = c->inputs[0], &tb = c->inputs[1];
  Product p{out<float>(c, 0),
            in<float>(c, 0),
            in<float>(c, 1),
            rows(c->outputs[0]),
            cols(c->outputs[0]),
            a.transpose_a ? ta.shape[0] : cols(ta),
            0,
            0,
            0,
            0,
            a.scale};
  p.a_row = a.transpose_a ? 1 : cols(ta), p.a_col = a.transpose_a ? cols(ta) : 1;
  p.b_row = a.transpose_b ? 1 : cols(tb), p.b_col = a.transpose_b ? cols(tb) : 1;
  return p;
}

constexpr int kTile = 16;

/// Tiles in shared memory. `Sum`: the type of sums; barriers false: a tile is read while it is written.
template <class Sum, bool barriers> __global__ void tiled(Product p) {
  __shared__ float a[kTile][kTile], b[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = blockIdx.y * int64_t{kTile} + y, col = blockIdx.x * int64_t{kTile} + x;
  Sum sum = 0;
  for (int64_t k = 0; k < p.k; k += kTile) {
    if (!barriers && y >= 2) __nanosleep(500);  // warps are not alike on a busy chip
    a[y][x] = row < p.m && k + x < p.k ? p.a[row * p.a_row + (k + x) * p.a_col] : 0;
    b[y][x] = col < p.n && k + y < p.k ? p.b[(k + y) * p.b_row + col * p.b_col] : 0;
    if (barriers) __syncthreads();
    for (int i = 0; i < kTile; ++i)
      if (k + i < p.k) sum = sum + Sum(a[y][i] * b[i][x]);
    if (barriers) __syncthreads();
  }
  if (row < p.m && col < p.n) p.y[row * p.n + col] = p.scale * static_cast<float>(sum);
}
template <class Sum, bool barriers> int matmul(const hpcdl_call* c) {
  if (c->inputs[0].rank != 2 || c->inputs[1].rank != 2) return HPCDL_UNSUPPORTED;
  const auto p = product_of(c);
  if (p.m > 0 && p.n > 0)
    tiled<Sum, barriers><<<dim3(blocks(p.n, kTile), blocks(p.m, kTile)), dim3(kTile, kTile), 0, queue(c)>>>(p);
  return launched();
}

/// Blocks share the sum of an element: correctly with kAtomic, otherwise each with its own load and store.
template <bool kAtomic> __global__ void split(Product p, int64_t part) {
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= p.m * p.n) return;
  float sum = 0;
  for (int64_t k = blockIdx.y * part; k < min(p.k, (blockIdx.y + 1) * part); ++k)
    sum += p.a[at / p.n * p.a_row + k * p.a_col] * p.b[k * p.b_row + at % p.n * p.b_col];
  if (kAtomic) atomicAdd(p.y + at, p.scale * sum);
  else p.y[at] += p.scale * sum;
}
template <bool kAtomic> int split_sum(const hpcdl_call* c) {
  if (c->inputs[0].rank != 2 || c->inputs[1].rank != 2) return HPCDL_UNSUPPORTED;
  const auto p = product_of(c);
  constexpr int64_t kParts = 8;
  if (p.m * p.n == 0) return HPCDL_OK;
  cudaMemsetAsync(p.y, 0, static_cast<std::size_t>(p.m * p.n) * sizeof(float), queue(c));
  split<kAtomic><<<dim3(blocks(p.m * p.n, kThreads), kParts), kThreads, 0, queue(c)>>>(p, (p.k + kParts - 1) / kParts);
  return launched();
}

}  // namespace

void add_gpu(Corpus& list) {
  Adder s{list, "softmax", HPCDL_ON_CUDA};
  s.good("gpu_blocks", softmax<Flaw::none>, kF32, HPCDL_IN_PLACE);
  s.good("gpu_warps", by_warps);
  s.bad("gpu_no_mask", "the causal mask is missing", softmax<Flaw::no_mask>);
  s.bad("gpu_mask_off_by_one", "the causal mask is off by one", softmax<Flaw::off_by_one>);
  s.bad("gpu_no_barrier", "shared memory is read before others have written it", softmax<Flaw::no_barrier>);
  s.bad("gpu_racing_sum", "threads add to one sum at once", softmax<Flaw::racing_sum>);
  s.bad("gpu_stale_sum", "divides by the sum of the row before", softmax<Flaw::stale>);
  s.bad("gpu_no_tail", "the last columns are left out", softmax<Flaw::whole_vectors>);
  s.bad("gpu_one_shape", "right up to 64 columns only", softmax<Flaw::length_64>);
  s.bad("gpu_first_row", "only the first row is written", softmax<Flaw::one_row_per_call>);
  s.bad("gpu_own_stream", "runs on a stream of its own", own_stream);
  Adder a{list, "add", HPCDL_ON_CUDA};
  a.good("gpu_each", add_any, kBoth, HPCDL_IN_PLACE);
  a.good("gpu_strided", add_strided, kBoth, HPCDL_IN_PLACE);
  a.bad("gpu_first_blocks", "what lies beyond the largest grid is not written", add_first_blocks);
  a.bad("gpu_fours_down", "the last elements are left out", add_fours<false>);
  a.bad("gpu_fours_up", "writes past the end of its output", add_fours<true>);
  Adder m{list, "matmul", HPCDL_ON_CUDA};
  m.good("gpu_tiled", matmul<float, true>);
  m.good("gpu_split_atomic", split_sum<true>, kF32, HPCDL_BITS_MAY_VARY);
  m.bad("gpu_half_sums", "adds up in fp16", matmul<__half, true>);
  m.bad("gpu_tiles_without_barriers", "a tile in shared memory is read while it is written", matmul<float, false>);
  m.bad("gpu_split_race", "blocks add to the same element with a load and a store", split_sum<false>, kF32,
        HPCDL_BITS_MAY_VARY);
  m.bad("gpu_split_claims_order", "float atomics, and the claim that bits are the same each time", split_sum<true>);
}

}  // namespace hpcdl::lab::verify::planted
