#include "hpcdl/comm/nccl/peer_reduce.h"
#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/overlap.cuh"

namespace hpcdl::comm {
namespace {

using cuda::narrow;
using cuda::widen;
using Word = unsigned long long;

constexpr int kThreads = 512;

// ---------------------------------------------------------------- messages between GPUs

/// Two halves of a line of 16 bytes. Each is written and read as a whole: 4 bytes of data with the number of the
/// call in the upper half, which shows that they have arrived. No flag, no fence, one trip (the idea of NCCL's LL
/// protocol).
__device__ inline void put_line(void* at, Word a, Word b) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(a), "l"(b) : "memory");
}
__device__ inline void get_line(const void* at, Word& a, Word& b) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}
__device__ inline void raise(unsigned* flag, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline unsigned look(const unsigned* flag) {
  unsigned v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}

/// Checks from time to time whether the host has given up.
struct Patience {
  const int* stop;
  unsigned asked = 0;
  __device__ bool left() { return (++asked & 0xfff) != 0 || *static_cast<const volatile int*>(stop) == 0; }
};

/// The number of this call, from 1. Every launch adds kUnits in total to the counter at the start of the block, its
/// blocks one by one as they end: the counter is a multiple of kUnits only when the launch is over, so all of its
/// blocks read the same number.
__device__ inline unsigned call_number(const std::byte* own) {
  Word n;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(own) : "memory");
  return static_cast<unsigned>(n / PeerBlocks::kUnits) + 1;
}
/// To be called after all threads of the block have read the number.
__device__ inline void count_block(std::byte* own) {
  const Word n = blockIdx.x == 0 ? PeerBlocks::kUnits + 1 - gridDim.x : 1;
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(own), "l"(n) : "memory");
}

// ---------------------------------------------------------------- elements

template <class T> struct Sum {
  using Acc = float;
  static __device__ float widened(T x) { return widen(x); }
  static __device__ T narrowed(float x) { return narrow<T>(x); }
};
template <> struct Sum<int> {
  using Acc = int;
  static __device__ int widened(int x) { return x; }
  static __device__ int narrowed(int x) { return x; }
};

template <class T, int B> struct alignas(B) Bytes {
  static constexpr int kCount = B / static_cast<int>(sizeof(T));
  T v[kCount];
};

/// Loads the elements from `at` on; those past the end are 0.
template <class P, class T> __device__ P load(const T* x, std::int64_t at, std::int64_t count) {
  if (at + P::kCount <= count) return *reinterpret_cast<const P*>(x + at);
  P p{};
#pragma unroll
  for (int i = 0; i < P::kCount; ++i)
    if (at + i < count) p.v[i] = x[at + i];
  return p;
}
template <class P, class T> __device__ void store(T* x, std::int64_t at, std::int64_t count, const P& p) {
  if (at + P::kCount <= count) {
    *reinterpret_cast<P*>(x + at) = p;
    return;
  }
#pragma unroll
  for (int i = 0; i < P::kCount; ++i)
    if (at + i < count) x[at + i] = p.v[i];
}

/// Sums the first `size` of N.
template <Reduce op, class P, class T, int N> __device__ P reduce(const P (&parts)[N], int size) {
  using S = Sum<T>;
  P out;
#pragma unroll
  for (int i = 0; i < P::kCount; ++i) {
    typename S::Acc acc = S::widened(parts[0].v[i]);
#pragma unroll
    for (int r = 1; r < N; ++r) {
      const auto x = S::widened(parts[r].v[i]);
      if (r >= size) break;
      if constexpr (op == Reduce::max) acc = acc < x ? x : acc;
      else acc += x;
    }
    if constexpr (op == Reduce::avg) acc /= static_cast<typename S::Acc>(size);
    out.v[i] = S::narrowed(acc);
  }
  return out;
}

// ---------------------------------------------------------------- one trip

/// The k-th rank after this one, so that not all ranks write to the same one at once.
__device__ inline int behind(const PeerBlocks& g, int k) {
  return g.rank + k < g.size ? g.rank + k : g.rank + k - g.size;
}

/// Every rank sends everything to every other and sums by itself. A line of call n is overwritten in call n + 2, which
/// no peer begins before this GPU has begun n + 1, and so has read all of n. N: room for this many ranks.
template <class T, Reduce op, int N>
__global__ __launch_bounds__(kThreads) void one_shot(const __grid_constant__ PeerBlocks g, T* x, std::int64_t count) {
  using P = Bytes<T, 8>;
  std::byte* own = g.of[g.rank];
  cuda::await_previous();
  cuda::let_next_begin();  // it reads weights while this kernel waits for the peers
  const unsigned number = call_number(own);
  const Word flag = static_cast<Word>(number) << 32;
  const std::int64_t lines = PeerBlocks::kLines + (number & 1) * g.size * PeerBlocks::line_bytes();
  Patience patience{g.stop};
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i * P::kCount < count;
       i += stride) {
    const P mine = load<P>(x, i * P::kCount, count);
    const Word bits = *reinterpret_cast<const Word*>(&mine);
    const Word low = flag | (bits & 0xffffffffu), high = flag | (bits >> 32);
#pragma unroll
    for (int k = 1; k < N; ++k)
      if (k < g.size) put_line(g.of[behind(g, k)] + lines + g.rank * PeerBlocks::line_bytes() + i * 16, low, high);
    Word a[N], b[N];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        a[r] = low, b[r] = high;
        if (r < g.size && r != g.rank) get_line(own + lines + r * PeerBlocks::line_bytes() + i * 16, a[r], b[r]);
      }
#pragma unroll
      for (int r = 0; r < N; ++r) all = all && (a[r] >> 32) == number && (b[r] >> 32) == number;
    } while (!all && patience.left());
    P parts[N];
#pragma unroll
    for (int r = 0; r < N; ++r) *reinterpret_cast<Word*>(&parts[r]) = (a[r] & 0xffffffffu) | (b[r] << 32);
    store(x, i * P::kCount, count, reduce<op, P, T, N>(parts, g.size));
  }
  __syncthreads();
  count_block(own);
}

// ---------------------------------------------------------------- two trips

/// Block b of every rank works on slice b of every part: these blocks wait for each other, but not for other blocks.
__device__ inline void meet(const PeerBlocks& g, int trip, unsigned number) {
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  const auto flag = [&](int owner, int from) {
    return reinterpret_cast<unsigned*>(g.of[owner] + PeerBlocks::kFlags) +
           ((trip * PeerBlocks::kUnits + static_cast<int>(blockIdx.x)) * kMaxPeers + from);
  };
  if (r < g.size && r != g.rank) {
    raise(flag(r, g.rank), number);
    Patience patience{g.stop};
    while (look(flag(g.rank, r)) != number && patience.left()) {}
  }
  __syncthreads();
}

/// Rank r sums part r and sends the result to all. No rank writes where another still reads: what comes in the
/// first trip of call n + 1 was sent after the second of n, and what comes in its second trip after its first.
template <class T, Reduce op, int N>
__global__ __launch_bounds__(kThreads) void two_shot(const __grid_constant__ PeerBlocks g, T* x, std::int64_t count,
                                                     std::int64_t part) {
  using P = Bytes<T, 16>;
  std::byte* own = g.of[g.rank];
  const unsigned number = call_number(own);
  const std::int64_t arrived = PeerBlocks::parts(g.size), summed = arrived + PeerBlocks::part_area(g.size);
  const std::int64_t begin = part * blockIdx.x / gridDim.x,
                     end = part * (blockIdx.x + 1) / gridDim.x;  // in packs of 16 bytes
  // Not unrolled over the peers, here and below: that would be seven times the code, which took this file two and a
  // half times as long to compile, and would not start loads earlier.
#pragma unroll 1
  for (int k = 1; k < N; ++k) {
    if (k >= g.size) break;
    const int to = behind(g, k);
    auto* there = reinterpret_cast<P*>(g.of[to] + arrived) + g.rank * part;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      there[i] = load<P>(x, (to * part + i) * P::kCount, count);
  }
  meet(g, 0, number);
#pragma unroll 1
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    P parts[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (r >= g.size) break;
      parts[r] = r == g.rank ? load<P>(x, (r * part + i) * P::kCount, count)
                             : reinterpret_cast<const P*>(own + arrived)[r * part + i];
    }
    const P sum = reduce<op, P, T, N>(parts, g.size);
    store(x, (g.rank * part + i) * P::kCount, count, sum);
#pragma unroll
    for (int k = 1; k < N; ++k)
      if (k < g.size) reinterpret_cast<P*>(g.of[behind(g, k)] + summed)[g.rank * part + i] = sum;
  }
  meet(g, 1, number);
#pragma unroll 1
  for (int k = 1; k < N; ++k) {
    if (k >= g.size) break;
    const int from = behind(g, k);
    const auto* here = reinterpret_cast<const P*>(own + summed) + from * part;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      store(x, (from * part + i) * P::kCount, count, here[i]);
  }
  count_block(own);
}

// ---------------------------------------------------------------- launch

template <class T, Reduce op, int N>
void launch(const Stream& s, const PeerBlocks& g, const Tensor& x, PeerReduce::Shape shape) {
  auto* data = static_cast<T*>(x.data());
  if (shape.trips == 1)
    return cuda::launch_overlapped(cuda::queue(s), cuda::has_clusters(s), one_shot<T, op, N>,
                                   {.grid = dim3(static_cast<unsigned>(shape.blocks)), .block = dim3(kThreads)},
                                   "all-reduce between GPUs", g, data, x.size());
  two_shot<T, op, N>
      <<<shape.blocks, kThreads, 0, cuda::queue(s)>>>(g, data, x.size(), (x.bytes() + 16 * g.size - 1) / (16 * g.size));
  cuda::launched("all-reduce between GPUs");
}

template <class T, Reduce op>
void launch(const Stream& s, const PeerBlocks& g, const Tensor& x, PeerReduce::Shape shape) {
  if (g.size == 2) launch<T, op, 2>(s, g, x, shape);
  else if (g.size <= 4) launch<T, op, 4>(s, g, x, shape);
  else launch<T, op, 8>(s, g, x, shape);
}

template <class T>
void launch(const Stream& s, const PeerBlocks& g, const Tensor& x, Reduce op, PeerReduce::Shape shape) {
  if (op == Reduce::sum) return launch<T, Reduce::sum>(s, g, x, shape);
  if (op == Reduce::max) return launch<T, Reduce::max>(s, g, x, shape);
  if constexpr (!std::is_same_v<T, int>) launch<T, Reduce::avg>(s, g, x, shape);
}

/// On four H200s: half of these blocks take up to 1.9 times as long, twice as many are not faster.
PeerReduce::Shape measured(std::int64_t bytes, PeerReduce::Shape asked) {
  auto shape = asked;
  if (shape.trips == 0) shape.trips = bytes <= PeerBlocks::kOneShot ? 1 : 2;
  const std::int64_t per_block = kThreads * (shape.trips == 1 ? 8 : 32);
  if (shape.blocks == 0)
    shape.blocks = static_cast<int>(std::clamp<std::int64_t>((bytes + per_block - 1) / per_block, 1,
                                                             shape.trips == 1 ? PeerBlocks::kUnits : shape.most));
  return shape;
}

}  // namespace

void PeerReduce::all_reduce(const Stream& s, const Tensor& x, Reduce op, Shape asked) const {
  require(takes(x, op), "comm", "the kernels that reduce over peers' memory do not take {} bytes of this type",
          x.bytes());
  if (x.size() == 0) return;
  const auto shape = measured(x.bytes(), asked);
  switch (x.dtype()) {
    case DType::f32: return launch<float>(s, blocks_, x, op, shape);
    case DType::bf16: return launch<bf16>(s, blocks_, x, op, shape);
    case DType::f16: return launch<f16>(s, blocks_, x, op, shape);
    default: return launch<int>(s, blocks_, x, op, shape);
  }
}

}  // namespace hpcdl::comm
