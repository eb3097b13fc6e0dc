#include "hpcdl/ops/embedding/embedding.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

struct Lookup {
  void* y;
  const void *table, *positions;
  const std::int32_t* ids;
  const StepParams* params;
  std::int64_t cols, per, vocab, places, y_stride, table_stride, position_stride;
};

/// A block writes one token's row.
template <class Y, class T, class P> __global__ void __launch_bounds__(128) lookup(Lookup l) {
  constexpr int N = kLanes<Y>;
  const std::int64_t t = blockIdx.x, id = l.ids[t], place = t % l.per + (l.positions ? l.params->position : 0);
  const bool known = id >= 0 && id < l.vocab && (!l.positions || (place >= 0 && place < l.places));
  const T* row = static_cast<const T*>(l.table) + id * l.table_stride;
  const P* add = l.positions ? static_cast<const P*>(l.positions) + place * l.position_stride : nullptr;
  Y* y = static_cast<Y*>(l.y) + t * l.y_stride;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < l.cols; at += 128 * N) {
    const int n = static_cast<int>(l.cols - at < N ? l.cols - at : N);
    Lanes<N> v(__builtin_nanf(""));
    if (known) {
      v = load<N>(row + at, n);
      if (add) v = v + load<N>(add + at, n);
    }
    store(y + at, v, n);
  }
}

// The counting sort of tokens by id, in three steps that give the CPU's order whatever runs when:
// how many tokens each id has; where each id begins; each token's rank among those of its id.

__global__ void __launch_bounds__(256) count_ids(std::int32_t* starts, const std::int32_t* ids, std::int64_t tokens, std::int64_t vocab) {
  const std::int64_t t = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (t < tokens && ids[t] >= 0 && ids[t] < vocab) atomicAdd(starts + ids[t] + 1, 1);  // integers: the order does not matter
}

/// starts[v] = tokens with an id below v; one block.
__global__ void __launch_bounds__(1024) scan(std::int32_t* starts, std::int64_t n) {
  __shared__ std::int32_t totals[1024];
  const std::int64_t per = (n + 1023) / 1024, begin = threadIdx.x * per, end = begin + per < n ? begin + per : n;
  std::int32_t sum = 0;
  for (auto i = begin; i < end; ++i) sum += starts[i];
  totals[threadIdx.x] = sum;
  for (int step = 1; step < 1024; step *= 2) {
    __syncthreads();
    const std::int32_t before = threadIdx.x >= step ? totals[threadIdx.x - step] : 0;
    __syncthreads();
    totals[threadIdx.x] += before;
  }
  __syncthreads();
  std::int32_t running = threadIdx.x > 0 ? totals[threadIdx.x - 1] : 0;
  for (auto i = begin; i < end; ++i) starts[i] = running += starts[i];
}

/// A block per 32 tokens; its rank among equals is counted, not raced for.
__global__ void __launch_bounds__(256) place_tokens(std::int32_t* order, const std::int32_t* starts, const std::int32_t* ids, std::int64_t tokens, std::int64_t vocab) {
  __shared__ int ranks[8];
  const std::int64_t t = blockIdx.x;
  const std::int32_t id = ids[t];
  if (id < 0 || id >= vocab) return;
  if (starts[id + 1] - starts[id] == 1) {
    if (threadIdx.x == 0) order[starts[id]] = static_cast<std::int32_t>(t);
    return;
  }
  int rank = 0;
  for (std::int64_t i = threadIdx.x; i < t; i += 256) rank += ids[i] == id;
  for (int offset = 16; offset > 0; offset /= 2) rank += __shfl_xor_sync(~0u, rank, offset);
  if (threadIdx.x % 32 == 0) ranks[threadIdx.x / 32] = rank;
  __syncthreads();
  if (threadIdx.x != 0) return;
  rank = 0;
  for (int i = 0; i < 8; ++i) rank += ranks[i];
  order[starts[id] + rank] = static_cast<std::int32_t>(t);
}

/// Row v of a gradient = the sum of dy over its tokens, in their order. With `order` the tokens of an id, without it those of
/// a position: v - position, then every `per`-th.
template <class G, class Y> __global__ void __launch_bounds__(128) sum_tokens(G* out, std::int64_t out_stride, bool accumulate, const Y* dy, std::int64_t stride,
                                                                               std::int64_t cols, const std::int32_t* starts, const std::int32_t* order,
                                                                               std::int64_t tokens, std::int64_t per, const StepParams* params) {
  constexpr int N = kLanes<Y>;
  const std::int64_t v = blockIdx.x;
  std::int64_t begin = 0, end = 0, t0 = 0;
  if (order) begin = starts[v], end = starts[v + 1];
  else if ((t0 = v - params->position) >= 0 && t0 < per) end = tokens / per;
  if (begin == end && accumulate) return;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < cols; at += 128 * N) {
    const int n = static_cast<int>(cols - at < N ? cols - at : N);
    G* place = out + v * out_stride + at;
    Lanes<N> sum = accumulate ? load<N>(static_cast<const G*>(place), n) : Lanes<N>(0.0f);
    for (std::int64_t j = begin; j < end; ++j) sum = sum + load<N>(dy + (order ? order[j] : j * per + t0) * stride + at, n);
    store(place, sum, n);
  }
}

}  // namespace

void embedding(Stream& s, Tensor y, View table, View ids, View positions) {
  if (y.size() == 0) return;
  const Lookup l{y.data(), table.data(), positions.data(), ids.ptr<std::int32_t>(), s.kernel_params(), y.cols(), ids[-1], table[0],
                 positions ? positions[0] : 0, y.row_stride(), table.row_stride(), positions ? positions.row_stride() : 0};
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
        lookup<Y, T, P><<<blocks_for(y.rows(), 1), 128, 0, queue(s)>>>(l);
        launched("embedding");
      });
    });
  });
}

void embedding_backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order) {
  const std::int64_t cols = dy.cols(), tokens = dy.rows(), per = ids[-1] > 0 ? ids[-1] : 1;
  const auto* id = ids.ptr<std::int32_t>();
  auto *start = starts.ptr<std::int32_t>(), *token = order.ptr<std::int32_t>();
  if (cols == 0) return;
  if (dtable) {
    check(cudaMemsetAsync(start, 0, static_cast<std::size_t>(starts.bytes()), queue(s)), "embedding_backward");
    if (tokens > 0) count_ids<<<blocks_for(tokens, 256), 256, 0, queue(s)>>>(start, id, tokens, dtable[0]);
    scan<<<1, 1024, 0, queue(s)>>>(start, starts.size());
    if (tokens > 0) place_tokens<<<blocks_for(tokens, 1), 256, 0, queue(s)>>>(token, start, id, tokens, dtable[0]);
    launched("embedding_backward");
  }
  visit_dtype(dy.dtype(), [&]<class Y>() {
    const auto sum = [&](const Grad& to, const std::int32_t* in_order) {
      if (!to || to[0] == 0) return;
      visit_dtype(to.dtype(), [&]<class G>() {
        sum_tokens<G, Y><<<blocks_for(to[0], 1), 128, 0, queue(s)>>>(to.ptr<G>(), to.row_stride(), to.accumulate(), dy.ptr<Y>(), dy.row_stride(), cols,
                                                                      start, in_order, tokens, per, s.kernel_params());
        launched("embedding_backward");
      });
    };
    sum(dtable, token);
    sum(dpositions, nullptr);
  });
}

}  // namespace hpcdl::cuda
