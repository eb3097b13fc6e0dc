#include "hpcdl/ops/expert_exchange/expert_exchange.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kMany = 1024;

/// The choices of tokens, and the parts into which their rows are sorted.
struct Parts {
  const std::int32_t* experts;  // `count` of each token
  std::int32_t* places;         // `ranks` of each token
  std::int64_t experts_stride, room;
  int tokens, count, ranks, of_rank;  // of_rank: experts

  __device__ const std::int32_t* chosen(std::int64_t token) const { return experts + token * experts_stride; }
  /// f(which of the token's choices, which of those that belong to rank r).
  template <class F> __device__ void for_choices(std::int64_t token, int r, F&& f) const {
    int mine = 0;
    for (int i = 0; i < count && mine < of_rank; ++i)
      if (chosen(token)[i] / of_rank == r) f(i, mine++);
  }
};

struct Assigning : Parts {
  const float* weights;
  float* row_weights;
  std::int32_t* row_experts;
  std::int64_t weights_stride;
  int width;  // of row_weights and row_experts
};

/// A block gives the tokens of a rank their rows, in their order, and writes what the rank needs to know of the choices.
__global__ void __launch_bounds__(kMany) assign(const __grid_constant__ Assigning p) {
  constexpr int kWarpsOfBlock = kMany / kWarp;
  __shared__ int of_warp[kWarpsOfBlock];
  const int r = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = r * p.room;
  const auto clear = [&](std::int64_t row, int from) {
    for (int m = from; m < p.width; ++m) p.row_weights[row * p.width + m] = 0, p.row_experts[row * p.width + m] = -1;
  };
  int used = 0;
  for (int base = 0; base < p.tokens; base += kMany) {
    const int token = base + static_cast<int>(threadIdx.x);
    bool mine = false;
    for (int i = 0; token < p.tokens && i < p.count; ++i) mine = mine || p.chosen(token)[i] / p.of_rank == r;
    const unsigned all = __ballot_sync(~0u, mine);
    if (lane == 0) of_warp[warp] = __popc(all);
    __syncthreads();
    int at = used;
    for (int w = 0; w < kWarpsOfBlock; ++w) at += w < warp ? of_warp[w] : 0, used += of_warp[w];
    at += __popc(all & ((1u << lane) - 1));
    if (token < p.tokens)
      p.places[std::int64_t{token} * p.ranks + r] = !mine         ? ExpertDispatch::kElsewhere
                                                    : at < p.room ? at
                                                                  : ExpertDispatch::kDropped;
    if (mine && at < p.room) {
      int written = 0;
      p.for_choices(token, r, [&](int choice, int m) {
        p.row_weights[(first + at) * p.width + m] = p.weights[token * p.weights_stride + choice];
        p.row_experts[(first + at) * p.width + m] = p.chosen(token)[choice] % p.of_rank;
        written = m + 1;
      });
      clear(first + at, written);
    }
    __syncthreads();  // the counts have been read
  }
  for (std::int64_t row = used + static_cast<int>(threadIdx.x); row < p.room; row += kMany) clear(first + row, 0);
}

struct Sending {
  const void* x;
  void* rows;
  const std::int32_t *places, *row_experts;
  std::int64_t x_stride, room;
  int tokens, ranks, width, choices;  // width: in units; choices: of a row
};

/// A warp copies the row of a token, in units of U, to those that it has; further warps clear the rows of no token.
template <class U> __global__ void __launch_bounds__(kThreads) send(const __grid_constant__ Sending p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  U* const rows = static_cast<U*>(p.rows);
  if (i >= p.tokens) {
    const std::int64_t row = i - p.tokens;
    if (row >= p.ranks * p.room || p.row_experts[row * p.choices] >= 0) return;
    for (int j = lane; j < p.width; j += kWarp) rows[row * p.width + j] = U{};
    return;
  }
  const U* const from = static_cast<const U*>(p.x) + i * p.x_stride;
  for (int r = 0; r < p.ranks; ++r) {
    const std::int64_t place = p.places[i * p.ranks + r];
    if (place < 0) continue;
    U* const to = rows + (r * p.room + place) * p.width;
    for (int j = lane; j < p.width; j += kWarp) to[j] = from[j];
  }
}

struct Adding {
  void* y;
  const void *first, *parts;  // first: null if there is none
  const std::int32_t* places;
  std::int64_t y_stride, first_stride, room;
  int tokens, ranks, width;
};

/// y = first + the rows of each token, in the order of the ranks.
template <class T> __global__ void __launch_bounds__(kThreads) add_rows(const __grid_constant__ Adding p) {
  constexpr int N = kLanes<T>;
  const int pieces = (p.width + N - 1) / N;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / pieces;
  if (token >= p.tokens) return;
  const int column = static_cast<int>(i - token * pieces) * N, n = ::min(N, p.width - column);
  Lanes<N> sum =
      p.first ? load<N>(static_cast<const T*>(p.first) + token * p.first_stride + column, n) : Lanes<N>(0.0f);
  for (int r = 0; r < p.ranks; ++r)
    if (const std::int64_t place = p.places[token * p.ranks + r]; place >= 0)
      sum = sum + load<N>(static_cast<const T*>(p.parts) + (r * p.room + place) * p.width + column, n);
  store(static_cast<T*>(p.y) + token * p.y_stride + column, sum, n);
}

struct Spreading {
  void* parts;
  const void* y;
  const std::int32_t* places;
  std::int64_t y_stride, room;
  int tokens, ranks, width;
  bool accumulate;
};

/// Every row of a token (+)= y of the token.
template <class T> __global__ void __launch_bounds__(kThreads) spread(const __grid_constant__ Spreading p) {
  constexpr int N = kLanes<T>;
  const int pieces = (p.width + N - 1) / N;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / pieces;
  if (token >= p.tokens) return;
  const int column = static_cast<int>(i - token * pieces) * N, n = ::min(N, p.width - column);
  const Lanes<N> v = load<N>(static_cast<const T*>(p.y) + token * p.y_stride + column, n);
  for (int r = 0; r < p.ranks; ++r) {
    const std::int64_t place = p.places[token * p.ranks + r];
    if (place < 0) continue;
    T* const to = static_cast<T*>(p.parts) + (r * p.room + place) * p.width + column;
    store(to, p.accumulate ? load<N>(static_cast<const T*>(to), n) + v : v, n);
  }
}

struct WeightGradients : Parts {
  float* dweights;
  const float* drow_weights;  // null: they are zero
  std::int64_t dweights_stride;
  int width;
  bool accumulate;
};

/// A thread has a token.
__global__ void __launch_bounds__(kThreads) take_weights(const __grid_constant__ WeightGradients p) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= p.tokens) return;
  float* const to = p.dweights + token * p.dweights_stride;
  if (!p.accumulate)
    for (int i = 0; i < p.count; ++i) to[i] = 0;
  if (!p.drow_weights) return;
  for (int r = 0; r < p.ranks; ++r) {
    const std::int64_t place = p.places[token * p.ranks + r];
    if (place < 0) continue;
    const float* const from = p.drow_weights + (r * p.room + place) * p.width;
    p.for_choices(token, r, [&](int choice, int m) { to[choice] += from[m]; });
  }
}

__global__ void __launch_bounds__(kMany)
    count_dropped(float* sum, const std::int32_t* places, std::int64_t n, const float* before) {
  __shared__ float memory[kMany / kWarp];
  float found = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kMany) found += places[i] == ExpertDispatch::kDropped ? 1.0f : 0.0f;
  found = block_reduce<kMany>(found, Sum{}, memory);
  if (threadIdx.x == 0) *sum = before ? *before + found : found;
}

__global__ void skip(StepParams* p, const float* dropped) {
  if (*dropped > 0) p->skip = 1;
}

int tokens_in(const View& rows) { return static_cast<int>(rows.rows()); }

Parts parts_of(const View& experts, const Tensor& places, const ExpertDispatch::Args& a) {
  return {.experts = experts.ptr<std::int32_t>(),
          .places = places.ptr<std::int32_t>(),
          .experts_stride = experts.row_stride(),
          .room = a.room,
          .tokens = tokens_in(experts),
          .count = static_cast<int>(experts.cols()),
          .ranks = a.ranks,
          .of_rank = static_cast<int>(a.experts / a.ranks)};
}

template <class T> unsigned blocks_of_pieces(std::int64_t tokens, std::int64_t width) {
  return blocks_for(tokens * ((width + kLanes<T> - 1) / kLanes<T>), kThreads);
}

/// y = first + the rows of each token in the parts.
void add(Stream& s, const char* kernel, const Tensor& y, const View& first, const View& parts, const View& places) {
  if (y.size() == 0) return;
  const Adding p{.y = y.data(),
                 .first = first.data(),
                 .parts = parts.data(),
                 .places = places.ptr<std::int32_t>(),
                 .y_stride = y.row_stride(),
                 .first_stride = first.row_stride(),
                 .room = parts.shape()[1],
                 .tokens = tokens_in(y),
                 .ranks = static_cast<int>(parts.shape()[0]),
                 .width = static_cast<int>(y.cols())};
  visit_dtype(y.dtype(),
              [&]<class T>() { add_rows<T><<<blocks_of_pieces<T>(p.tokens, p.width), kThreads, 0, queue(s)>>>(p); });
  launched(kernel);
}

}  // namespace

void expert_dispatch(Stream& s, Tensor rows, Tensor row_weights, Tensor row_experts, Tensor places, View x,
                     View weights, View experts, const ExpertDispatch::Args& a) {
  Assigning all{};
  static_cast<Parts&>(all) = parts_of(experts, places, a);
  all.weights = weights.ptr<float>(), all.weights_stride = weights.row_stride();
  all.row_weights = row_weights.ptr<float>(), all.row_experts = row_experts.ptr<std::int32_t>();
  all.width = static_cast<int>(row_weights.cols());
  assign<<<static_cast<unsigned>(a.ranks), kMany, 0, queue(s)>>>(all);
  launched("expert_dispatch");
  const auto start = [&]<class U>() {
    const auto per_unit = static_cast<std::int64_t>(sizeof(U)) / dtype_bytes(x.dtype());
    const Sending p{.x = x.data(),
                    .rows = rows.data(),
                    .places = all.places,
                    .row_experts = all.row_experts,
                    .x_stride = x.row_stride() / per_unit,
                    .room = a.room,
                    .tokens = all.tokens,
                    .ranks = a.ranks,
                    .width = static_cast<int>(x.cols() / per_unit),
                    .choices = all.width};
    const auto warps = p.tokens + a.ranks * a.room;
    if (warps == 0 || p.width == 0) return;
    send<U><<<blocks_for(warps, kWarps), kThreads, 0, queue(s)>>>(p);
    launched("expert_dispatch");
  };
  const auto whole = [&](std::int64_t elements) { return elements * dtype_bytes(x.dtype()) % 16 == 0; };
  const auto aligned = [](const View& v) { return reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0; };
  if (aligned(x) && aligned(rows) && whole(x.cols()) && whole(x.row_stride())) start.template operator()<uint4>();
  else if (dtype_bytes(x.dtype()) == 4) start.template operator()<unsigned>();
  else start.template operator()<unsigned short>();
}

void expert_dispatch_backward(Stream& s, Grad dx, Grad dweights, View experts, View places, View drows,
                              View drow_weights, const ExpertDispatch::Args& a) {
  if (dx) add(s, "expert_dispatch_backward", dx, dx.accumulate() ? View(dx) : View(), drows, places);
  if (!dweights || dweights.size() == 0) return;
  WeightGradients p{};
  const Tensor assigned(const_cast<void*>(places.data()), places.spec(), places.device());
  static_cast<Parts&>(p) = parts_of(experts, assigned, a);
  p.dweights = dweights.ptr<float>(), p.dweights_stride = dweights.row_stride();
  p.drow_weights = drow_weights ? drow_weights.ptr<float>() : nullptr;
  p.width = drow_weights ? static_cast<int>(drow_weights.cols()) : 0;
  p.accumulate = dweights.accumulate();
  take_weights<<<blocks_for(p.tokens, kThreads), kThreads, 0, queue(s)>>>(p);
  launched("expert_dispatch_backward");
}

void expert_combine(Stream& s, Tensor y, View base, View parts, View places) {
  add(s, "expert_combine", y, base, parts, places);
}

void expert_combine_backward(Stream& s, Grad dparts, View places, View dy) {
  if (!dparts.accumulate() && dparts.size() > 0)
    check(cudaMemsetAsync(dparts.data(), 0, static_cast<std::size_t>(dparts.bytes()), queue(s)),
          "expert_combine_backward");
  if (dy.size() == 0 || dparts.size() == 0) return;
  const Spreading p{.parts = dparts.data(),
                    .y = dy.data(),
                    .places = places.ptr<std::int32_t>(),
                    .y_stride = dy.row_stride(),
                    .room = dparts.shape()[1],
                    .tokens = tokens_in(dy),
                    .ranks = static_cast<int>(dparts.shape()[0]),
                    .width = static_cast<int>(dy.cols()),
                    .accumulate = dparts.accumulate()};
  visit_dtype(dy.dtype(),
              [&]<class T>() { spread<T><<<blocks_of_pieces<T>(p.tokens, p.width), kThreads, 0, queue(s)>>>(p); });
  launched("expert_combine_backward");
}

void expert_dropped(Stream& s, Tensor sum, View places, View before) {
  count_dropped<<<1, kMany, 0, queue(s)>>>(sum.ptr<float>(), places.ptr<std::int32_t>(), places.size(),
                                           before ? before.ptr<float>() : nullptr);
  launched("expert_dropped");
}

void skip_if_dropped(Stream& s, View dropped) {
  skip<<<1, 1, 0, queue(s)>>>(s.kernel_params(), dropped.ptr<float>());
  launched("skip_if_dropped");
}

}  // namespace hpcdl::cuda
