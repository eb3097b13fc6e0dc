#include <algorithm>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/expert_mlp/sorted_rows.cuh"
#include "hpcdl/ops/fuse/activations.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

struct Gathering : Choices {
  const void *x, *dy;  // of tokens
  void *xs, *dys;      // of rows
  const std::int32_t* experts;
  std::int32_t* row_of;  // of each choice; -1: it has none
  float* dweights;       // those of negative experts become 0; null: they are not wanted, or only added to
  std::int64_t x_stride, dy_stride;
  int choices, of_token, width;  // width: in units
};

/// blockIdx.y: an expert. A block copies every gridDim.x-th of its rows, in units of U. There are more threads than
/// choices.
template <class U> __global__ void __launch_bounds__(kThreads) gather_rows(const __grid_constant__ Gathering p) {
  const int expert = static_cast<int>(blockIdx.y), count = p.count(expert), first = first_row(p, expert);
  const std::int64_t any =
      (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (any < p.choices && p.experts[any] < 0) {
    p.row_of[any] = -1;
    if (p.dweights) p.dweights[any] = 0;
  }
  for (int i = static_cast<int>(blockIdx.x); i < whole_tiles(count); i += static_cast<int>(gridDim.x)) {
    const int choice = i < count ? p.list(expert)[i] : -1;
    const std::int64_t token = choice / p.of_token, to = std::int64_t{first + i} * p.width;
    for (int j = static_cast<int>(threadIdx.x); j < p.width; j += kThreads) {
      static_cast<U*>(p.xs)[to + j] = choice < 0 ? U{} : static_cast<const U*>(p.x)[token * p.x_stride + j];
      static_cast<U*>(p.dys)[to + j] = choice < 0 ? U{} : static_cast<const U*>(p.dy)[token * p.dy_stride + j];
    }
    if (choice >= 0 && threadIdx.x == 0) p.row_of[choice] = first + i;
  }
}

struct Slopes : Choices {
  const void *gate, *up;  // of choices
  void* dz;               // of rows; becomes the gradient of up
  void *hidden, *dgate;   // of rows
  const float* weights;
  float* dweights;  // null: not wanted
  int width;
  bool accumulate, gelu;
};

/// blockIdx.y: an expert. A block has every gridDim.x-th of its rows: cpu::expert_slopes() has the formulas.
template <class T> __global__ void __launch_bounds__(kThreads) slopes(const __grid_constant__ Slopes p) {
  constexpr int N = kLanes<T>;
  __shared__ float sums[kThreads / kWarp];
  const int expert = static_cast<int>(blockIdx.y), count = p.count(expert), first = first_row(p, expert);
  for (int i = static_cast<int>(blockIdx.x); i < whole_tiles(count); i += static_cast<int>(gridDim.x)) {
    const int choice = i < count ? p.list(expert)[i] : -1;
    const std::int64_t row = std::int64_t{first + i} * p.width, from = std::int64_t{choice} * p.width;
    const Lanes<N> weight(choice < 0 ? 0.0f : p.weights[choice]);
    float dweight = 0;
    for (int j = static_cast<int>(threadIdx.x) * N; j < p.width; j += kThreads * N) {
      const int n = ::min(N, p.width - j);
      const auto put = [&](void* to, const Lanes<N>& v) { store(static_cast<T*>(to) + row + j, v, n); };
      if (choice < 0) {
        for (void* const to : {p.hidden, p.dgate, p.dz}) put(to, Lanes<N>(0.0f));
        continue;
      }
      const auto g = load<N>(static_cast<const T*>(p.gate) + from + j, n),
                 u = load<N>(static_cast<const T*>(p.up) + from + j, n),
                 dz = load<N>(static_cast<const T*>(p.dz) + row + j, n);
      const auto act = p.gelu ? fuse::GeluTanh::value(g) : fuse::Silu::value(g),
                 slope = p.gelu ? fuse::GeluTanh::slope(g) : fuse::Silu::slope(g), h = act * u, dh = weight * dz;
      dweight += cuda::sum(h * dz);
      put(p.hidden, weight * h), put(p.dgate, dh * u * slope), put(p.dz, dh * act);
    }
    if (!p.dweights) continue;
    dweight = block_reduce<kThreads>(dweight, Sum{}, sums);
    if (threadIdx.x == 0 && choice >= 0) p.dweights[choice] = p.accumulate ? p.dweights[choice] + dweight : dweight;
    __syncthreads();  // the sums have been read
  }
}

struct ChoiceSums {
  void* dx;
  const void* rows;
  const std::int32_t* row_of;
  std::int64_t dx_stride;
  int tokens, count, width;
  bool accumulate;
};

/// dx (+)= the sum of the rows of each token's choices, in their order.
template <class T> __global__ void __launch_bounds__(kThreads) add_choices(const __grid_constant__ ChoiceSums p) {
  constexpr int N = kLanes<T>;
  const int pieces = (p.width + N - 1) / N;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / pieces;
  if (token >= p.tokens) return;
  const int column = static_cast<int>(i - token * pieces) * N, n = ::min(N, p.width - column);
  T* const to = static_cast<T*>(p.dx) + token * p.dx_stride + column;
  Lanes<N> sum = p.accumulate ? load<N>(static_cast<const T*>(to), n) : Lanes<N>(0.0f);
  for (int c = 0; c < p.count; ++c)
    if (const std::int64_t row = p.row_of[token * p.count + c]; row >= 0)
      sum = sum + load<N>(static_cast<const T*>(p.rows) + row * p.width + column, n);
  store(to, sum, n);
}

// Products for any type and width: 64 x 64 of a result per block, 4 x 4 of it per thread, in f32.

constexpr int kTile = kRowTile, kDepth = 16;

/// What a block multiplies: kDepth of the summed index by kTile of the two others.
struct PlainStage {
  float a[kDepth][kTile + 1], b[kDepth][kTile];
};

/// acc += the products of `depth` steps; a(k, i) and b(k, j) give elements, 0 outside of the operands.
template <class A, class B>
__device__ void multiply(float (&acc)[4][4], PlainStage& stage, int depth, const A& a, const B& b) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16, column = thread % 16;
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    __syncthreads();
    for (int i = thread; i < kDepth * kTile; i += kThreads) {
      stage.a[i / kTile][i % kTile] = k0 + i / kTile < depth ? a(k0 + i / kTile, i % kTile) : 0.0f;
      stage.b[i / kTile][i % kTile] = k0 + i / kTile < depth ? b(k0 + i / kTile, i % kTile) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          acc[i][j] = ::fmaf(stage.a[k][row + 16 * i], stage.b[k][column + 16 * j], acc[i][j]);
  }
}

template <class F> __device__ void for_each_sum(const float (&acc)[4][4], F&& f) {
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) f(row + 16 * i, column + 16 * j, acc[i][j]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) multiply_rows(const __grid_constant__ RowsProduct p, int columns) {
  __shared__ PlainStage stage;
  const TileOfExpert tile = TileOfExpert::find(p, static_cast<int>(blockIdx.x), kTile, columns);
  if (tile.expert < 0) return;
  const int row0 = first_row(p, tile.expert) + tile.first, n0 = tile.column * kTile;
  float acc[4][4] = {};
  for (int t = 0; t < p.terms; ++t) {
    const auto& term = p.term[t];
    const T *const from = static_cast<const T*>(term.from), *const w = static_cast<const T*>(term.w[tile.expert]);
    multiply(
        acc, stage, p.k, [&](int k, int i) { return widen(from[std::int64_t{row0 + i} * p.k + k]); },
        [&](int k, int j) { return n0 + j < p.n ? widen(w[k * term.stride + n0 + j]) : 0.0f; });
  }
  for_each_sum(acc, [&](int i, int j, float v) {
    if (n0 + j < p.n) static_cast<T*>(p.to)[std::int64_t{row0 + i} * p.n + n0 + j] = narrow<T>(v);
  });
}

/// blockIdx.z: an expert.
template <class T, class G>
__global__ void __launch_bounds__(kThreads) add_gradient(const __grid_constant__ MatrixGradient p) {
  __shared__ PlainStage stage;
  const int expert = static_cast<int>(blockIdx.z), m0 = static_cast<int>(blockIdx.y) * kTile,
            n0 = static_cast<int>(blockIdx.x) * kTile;
  G* const to = static_cast<G*>(p.to[expert]);
  if (!to) return;
  const std::int64_t row0 = first_row(p, expert);
  const T *const left = static_cast<const T*>(p.left), *const right = static_cast<const T*>(p.right);
  float acc[4][4] = {};
  multiply(
      acc, stage, p.count(expert),
      [&](int r, int i) { return m0 + i < p.m ? widen(left[(row0 + r) * p.m + m0 + i]) : 0.0f; },
      [&](int r, int j) { return n0 + j < p.n ? widen(right[(row0 + r) * p.n + n0 + j]) : 0.0f; });
  for_each_sum(acc, [&](int i, int j, float v) {
    if (m0 + i >= p.m || n0 + j >= p.n) return;
    G* const at = to + std::int64_t{m0 + i} * p.n + n0 + j;
    *at = narrow<G>(p.accumulate[expert] ? widen(*at) + v : v);
  });
}

// ---------------------------------------------------------------- on the host

bool in_pieces(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

void run(Stream& s, const RowsProduct& p, DType type, int choices) {
  bool pieces = grouped_fits(s, type, p.n, p.k) && in_pieces(p.to);
  for (int t = 0; t < p.terms; ++t) {
    pieces = pieces && in_pieces(p.term[t].from) && p.term[t].stride % 8 == 0;
    for (int e = 0; e < p.mlps; ++e) pieces = pieces && in_pieces(p.term[t].w[e]);
  }
  if (pieces) return multiply_rows_wide(s, p, type);
  const int columns = static_cast<int>(blocks_for(p.n, kTile));
  const unsigned tiles = blocks_for((std::min(p.mlps, choices) + choices / kTile) * std::int64_t{columns}, 1);
  visit_dtype(type, [&]<class T>() { multiply_rows<T><<<tiles, kThreads, 0, queue(s)>>>(p, columns); });
  launched("expert_mlp_backward");
}

void run(Stream& s, const MatrixGradient& p, DType type, DType of_gradient) {
  bool pieces = p.rows > 0 && grouped_fits(s, type, p.m, p.n) && in_pieces(p.left) && in_pieces(p.right);
  for (int e = 0; e < p.mlps; ++e) pieces = pieces && in_pieces(p.to[e]);
  if (pieces) return add_gradient_wide(s, p, type, of_gradient);
  const dim3 grid(blocks_for(p.n, kTile), blocks_for(p.m, kTile), static_cast<unsigned>(p.mlps));
  visit_dtype(type, [&]<class T>() {
    if (of_gradient == type) add_gradient<T, T><<<grid, kThreads, 0, queue(s)>>>(p);
    else add_gradient<T, float><<<grid, kThreads, 0, queue(s)>>>(p);
  });
  launched("expert_mlp_backward");
}

/// The operands of one backward pass, and its steps.
class Backward {
 public:
  Backward(Stream& s, const ExpertGradients& g, const ExpertMlp::Args& a)
      : s_(s),
        g_(g),
        type_(g.x.dtype()),
        tokens_(static_cast<int>(g.x.rows())),
        count_(static_cast<int>(g.experts.cols())),
        width_(static_cast<int>(g.x.cols())),
        inner_(static_cast<int>(g.gate.cols())),
        rows_(static_cast<int>(g.rows.shape()[1])),
        gelu_(a.gate == Swiglu::Gate::gelu_tanh) {
    choices_ = {g.places.ptr<std::int32_t>(), a.experts, static_cast<int>(g.places.cols())};
    row_of_ = g.places.ptr<std::int32_t>() + g.places.cols() * a.experts;
    const auto bytes = dtype_bytes(type_);
    xs_ = g.rows.ptr<std::byte>(), dys_ = xs_ + std::int64_t{rows_} * width_ * bytes;
    hidden_ = g.hidden.ptr<std::byte>(), dgate_ = hidden_ + std::int64_t{rows_} * inner_ * bytes;
    dup_ = dgate_ + std::int64_t{rows_} * inner_ * bytes;
  }

  void run() {
    using M = ExpertMatrices<View>;
    using D = ExpertMatrices<Grad>;
    list_choices(s_, g_.experts, choices_.mlps, g_.places);
    if (choices() > 0) {
      gather();
      multiply(dup_, inner_, width_, {{dys_, &M::down}});
      find_slopes();
    }
    add(&D::down, dys_, hidden_, width_, inner_);
    add(&D::gate, dgate_, xs_, inner_, width_);
    add(&D::up, dup_, xs_, inner_, width_);
    if (!g_.dx || choices() == 0) return;
    multiply(dys_, width_, inner_, {{dgate_, &M::gate}, {dup_, &M::up}});
    add_to_tokens();
  }

 private:
  struct Factor {
    const std::byte* from;
    Matrix<View> ExpertMatrices<View>::* of;
  };

  int choices() const { return tokens_ * count_; }
  dim3 blocks_of_experts() const {
    return {blocks_for(choices(), choices_.mlps), static_cast<unsigned>(choices_.mlps)};
  }

  void gather() {
    Gathering p{};
    static_cast<Choices&>(p) = choices_;
    p.x = g_.x.data(), p.dy = g_.dy.data(), p.xs = xs_, p.dys = dys_, p.row_of = row_of_, p.of_token = count_;
    p.experts = g_.experts.ptr<std::int32_t>(), p.choices = choices();
    p.dweights = g_.dweights && !g_.dweights.accumulate() ? g_.dweights.ptr<float>() : nullptr;
    const auto bytes = dtype_bytes(type_);
    const auto start = [&]<class U>() {
      const auto per_unit = static_cast<std::int64_t>(sizeof(U)) / bytes;
      p.width = static_cast<int>(width_ / per_unit);
      p.x_stride = g_.x.row_stride() / per_unit, p.dy_stride = g_.dy.row_stride() / per_unit;
      gather_rows<U><<<blocks_of_experts(), kThreads, 0, queue(s_)>>>(p);
    };
    const auto whole = [&](std::int64_t elements) { return elements * bytes % 16 == 0; };
    if (in_pieces(p.x) && in_pieces(p.dy) && whole(width_) && whole(g_.x.row_stride()) && whole(g_.dy.row_stride()))
      start.template operator()<uint4>();
    else if (bytes == 4) start.template operator()<unsigned>();
    else start.template operator()<unsigned short>();
    launched("expert_mlp_backward");
  }

  void multiply(std::byte* to, int n, int k, std::initializer_list<Factor> factors) {
    RowsProduct p{};
    static_cast<Choices&>(p) = choices_;
    p.to = to, p.n = n, p.k = k, p.rows = rows_;
    for (const auto& [from, of] : factors) {
      auto& term = p.term[p.terms++];
      term.from = from, term.stride = (g_.mlps[0].*of).w.row_stride();
      for (std::size_t e = 0; e < g_.mlps.size(); ++e) {
        const View& w = (g_.mlps[e].*of).w;
        require(w.dtype() == type_ && w.row_stride() == term.stride, ExpertMlp::name,
                "a GPU needs the matrices of experts in the type of the activations, {}, with one row stride, got {}: "
                "keep rounded copies of the weights",
                dtype_name(type_), to_string(w.spec()));
        term.w[e] = w.data();
      }
    }
    cuda::run(s_, p, type_, choices());
  }

  void find_slopes() {
    Slopes p{};
    static_cast<Choices&>(p) = choices_;
    p.gate = g_.gate.data(), p.up = g_.up.data(), p.dz = dup_, p.hidden = hidden_, p.dgate = dgate_;
    p.weights = g_.weights.ptr<float>(), p.dweights = g_.dweights ? g_.dweights.ptr<float>() : nullptr;
    p.width = inner_, p.accumulate = g_.dweights.accumulate(), p.gelu = gelu_;
    visit_dtype(type_, [&]<class T>() { slopes<T><<<blocks_of_experts(), kThreads, 0, queue(s_)>>>(p); });
    launched("expert_mlp_backward");
  }

  void add(Matrix<Grad> ExpertMatrices<Grad>::* to, const std::byte* left, const std::byte* right, int m, int n) {
    MatrixGradient p{};
    static_cast<Choices&>(p) = choices_;
    p.left = left, p.right = right, p.m = m, p.n = n, p.rows = rows_;
    DType type = DType::none;
    for (std::size_t e = 0; e < g_.dmlps.size(); ++e) {
      const Grad& d = (g_.dmlps[e].*to).w;
      if (!d) continue;
      require((type == DType::none || d.dtype() == type) && (d.dtype() == type_ || d.dtype() == DType::f32) &&
                  d.is_contiguous(),
              ExpertMlp::name, "a GPU needs the gradients of all experts in F32 or in {}, without gaps, got {}",
              dtype_name(type_), to_string(d.spec()));
      type = d.dtype(), p.to[e] = d.data(), p.accumulate[e] = d.accumulate();
    }
    if (type != DType::none) cuda::run(s_, p, type_, type);
  }

  void add_to_tokens() {
    const ChoiceSums p{.dx = g_.dx.data(),
                       .rows = dys_,
                       .row_of = row_of_,
                       .dx_stride = g_.dx.row_stride(),
                       .tokens = tokens_,
                       .count = count_,
                       .width = width_,
                       .accumulate = g_.dx.accumulate()};
    visit_dtype(type_, [&]<class T>() {
      const std::int64_t pieces = std::int64_t{tokens_} * ((width_ + kLanes<T> - 1) / kLanes<T>);
      add_choices<T><<<blocks_for(pieces, kThreads), kThreads, 0, queue(s_)>>>(p);
    });
    launched("expert_mlp_backward");
  }

  Stream& s_;
  const ExpertGradients& g_;
  DType type_;
  int tokens_, count_, width_, inner_, rows_;
  bool gelu_;
  Choices choices_{};
  std::int32_t* row_of_;
  std::byte *xs_, *dys_, *hidden_, *dgate_, *dup_;
};

}  // namespace

void expert_mlp_backward(Stream& s, const ExpertGradients& g, const ExpertMlp::Args& a) { Backward(s, g, a).run(); }

}  // namespace hpcdl::cuda
