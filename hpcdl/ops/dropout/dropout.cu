#include "hpcdl/ops/dropout/dropout.h"

#include <cmath>

#include "hpcdl/cuda/whole_packs.cuh"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {
namespace {

/// Computed on the host: an element is dropped if its bits are below `dropped`, which is equivalent to uniform() < p.
struct Drop {
  const StepParams* params;
  std::uint64_t stream;
  float scale;
  unsigned dropped;

  explicit Drop(const Dropout::Args& a, const StepParams* params_)
      : params(params_),
        stream(a.rng_stream),
        scale(1 / (1 - a.p)),
        dropped(static_cast<unsigned>(std::ceil(a.p * 0x1p24f)) << 8) {}
  __device__ Rng draws() const { return {params->seed, stream ^ (static_cast<std::uint64_t>(params->step) << 32)}; }
  __device__ float operator()(float x, unsigned bits) const { return bits < dropped ? 0.0f : x * scale; }
};

/// Rng::block(index) for indices with the same upper word: what they share (the keys of all rounds, half of the first
/// two rounds) is computed once. The keys are pinned, because the compiler would otherwise add them up again for every
/// block: 26 instructions per element instead of 16, where more than 18 make memory wait.
class Blocks {
 public:
  __device__ Blocks(const Rng& draws, unsigned upper) {
    const auto word = [](std::uint64_t x, int i) { return static_cast<unsigned>(x >> 32 * i); };
#pragma unroll
    for (int r = 0; r < 10; ++r) {
      for (int i = 0; i < 2; ++i)
        key_[r][i] = word(draws.seed, i) + static_cast<unsigned>(r) * (i == 0 ? 0x9E3779B9u : 0xBB67AE85u);
      if (r > 0) asm volatile("" : "+r"(key_[r][0]), "+r"(key_[r][1]));
    }
    const std::uint64_t first = std::uint64_t{kRight} * word(draws.stream, 0),
                        second = std::uint64_t{kLeft} * (word(first, 1) ^ upper ^ key_[0][0]);
    before_[0] = word(draws.stream, 1) ^ key_[0][1], before_[1] = word(first, 0) ^ key_[1][0];
    before_[2] = word(second, 1) ^ key_[1][1], before_[3] = word(second, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(before_[i]));
  }
  /// The four words of block `lower`.
  __device__ void draw(unsigned lower, unsigned (&w)[4]) const {
    const std::uint64_t first = std::uint64_t{kLeft} * lower,
                        second = std::uint64_t{kRight} * (static_cast<unsigned>(first >> 32) ^ before_[0]);
    w[0] = static_cast<unsigned>(second >> 32) ^ before_[1], w[1] = static_cast<unsigned>(second);
    w[2] = static_cast<unsigned>(first) ^ before_[2], w[3] = before_[3];
#pragma unroll
    for (int r = 2; r < 10; ++r) {
      const std::uint64_t left = std::uint64_t{kLeft} * w[0], right = std::uint64_t{kRight} * w[2];
      w[0] = static_cast<unsigned>(right >> 32) ^ w[1] ^ key_[r][0], w[1] = static_cast<unsigned>(right);
      w[2] = static_cast<unsigned>(left >> 32) ^ w[3] ^ key_[r][1], w[3] = static_cast<unsigned>(left);
    }
  }

 private:
  static constexpr unsigned kLeft = 0xD2511F53u, kRight = 0xCD9E8D57u;
  unsigned key_[10][2], before_[4];
};

inline constexpr int kThreads = 256, kPacks = 4;

/// One row of whole packs, its elements numbered from `first` on; the draws of a thread have indices with the same
/// upper word.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    drop_row(fuse::Out out, fuse::In in, std::int64_t size, std::int64_t first, Drop drop) {
  constexpr int N = kLanes<T>, kStep = kThreads * N;
  const std::int64_t at = std::int64_t{blockIdx.x} * kPacks * kStep + threadIdx.x * N;
  const int left = static_cast<int>(size - at < kPacks * kStep ? size - at : kPacks * kStep);
  const T* x = in.at<T>(0, at);
  T* y = out.at<T>(0, at);
  Pack<T, N> v[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k)
    if (k * kStep < left) v[k] = read_aligned<N>(x + k * kStep);
  const std::int64_t index = first + at;
  const auto lower = static_cast<unsigned>(index / 4);
  const Blocks blocks(drop.draws(), static_cast<unsigned>(index / 4 >> 32));
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    auto values = widen(v[k]);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      unsigned bits[4];
      blocks.draw(lower + static_cast<unsigned>(k * kStep + i) / 4, bits);
#pragma unroll
      for (int j = 0; j < 4; ++j) values.v[i + j] = drop(values.v[i + j], bits[j]);
    }
    if (k * kStep >= left) continue;
    if (out.accumulate) values = values + widen(read_aligned<N>(static_cast<const T*>(y) + k * kStep));
    write_aligned(y + k * kStep, pack<T>(values));
  }
}

/// Any plane.
struct DropAnywhere {
  fuse::Out y;
  fuse::In x;
  std::int64_t cols, first;  // per row of elements, and the index of the first
  Drop drop;

  template <class At> __device__ void operator()(const At& at) const {
    const Rng draws = drop.draws();
    auto v = at.load(x);
    const auto row = static_cast<std::uint64_t>(first + at.row * cols);
#pragma unroll
    for (int i = 0; i < At::N; ++i) v.v[i] = drop(v.v[i], draws.bits(row + static_cast<std::uint64_t>(at.column(i))));
    at.store(y, v);
  }
};

}  // namespace

void dropout(Stream& s, Grad y, View x, const Dropout::Args& a) {
  const auto plane = fuse::plane_of(y, x);
  const Drop drop(a, s.kernel_params());
  const std::int64_t first = a.part * x.size();
  visit_dtype(x.dtype(), [&]<class T>() {
    constexpr std::int64_t kTile = kThreads * kPacks * kLanes<T>;
    const bool one_upper =
        first % kTile == 0 || first / 4 >> 32 == (first + plane.cols) / 4 >> 32;  // for each block of threads
    if (plane.rows != 1 || plane.cols == 0 || !one_upper || !whole_packs<T>(plane.cols, {{y.data(), 0}, {x.data(), 0}}))
      return fuse::for_each<T>(s, plane, DropAnywhere{y, x, plane.cols, first, drop}, "dropout");
    drop_row<T><<<blocks_for(plane.cols, kTile), kThreads, 0, queue(s)>>>(y, x, plane.cols, first, drop);
    launched("dropout");
  });
}

}  // namespace hpcdl::cuda
