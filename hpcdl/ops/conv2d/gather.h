#pragma once
// y(pixel, :) = bias + sum over taps of x(pixel's input at the tap, :) x W(tap): the product used by forward and for
// dx. Lines of output pixels are divided among threads; a thread pads the inputs of its lines into its own memory and
// multiplies them by all of W, which is packed beforehand. Sums run over blocks of k in an order that depends only on
// the shape.

#include "hpcdl/ops/conv2d/padded.h"
#include "hpcdl/ops/conv2d/tile.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::conv {
namespace {

/// W as a matrix (taps, input channels, output channels): element (t, c, o) at data + t * tap + c * channel + o *
/// output elements, where `channel` or `output` is 1.
struct Weights {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t tap = 0, channel = 0, output = 0;
  std::int64_t width = 1;  // taps per row of the kernel
};

template <class T> struct Outputs {
  T* data = nullptr;  // (N, height, width, channels)
  std::int64_t height = 0, width = 0, channels = 0;
  View bias = {};
  bool accumulate = false, stream = false;
};

/// Packs the panel of `width` outputs from `first` on: (taps, words of channels, width).
void pack_weights(const gemm::KernelSet& set, const Images& x, const Weights& w, std::int64_t outputs,
                  std::int64_t first, int width, std::int64_t words, std::uint32_t* dst) {
  gemm::PackArgs args{.dst = dst,
                      .width = width,
                      .cols = static_cast<int>(least(width, outputs - first)),
                      .panels = 1,
                      .panel_stride = 0,
                      .k = x.channels,
                      .src = nullptr,
                      .dtype = w.dtype,
                      .ld = w.channel == 1 ? w.output : w.channel,
                      .k_dense = w.channel == 1};
  for (std::int64_t i = 0; i < x.rows.taps; ++i)
    for (std::int64_t j = 0; j < x.cols.taps; ++j, args.dst += words * width) {
      const std::int64_t tap = (x.rows.index + i * x.rows.index_step) * w.width + x.cols.index + j * x.cols.index_step;
      args.src = w.data + (tap * w.tap + first * w.output) * dtype_bytes(w.dtype);
      set.pack_b(args);
    }
}

/// `to` receives the bias as f32.
const float* widened(const View& bias, float* to) {
  visit_dtype(bias.dtype(), [&]<class B>() {
    for (std::int64_t o = 0; o < bias.size(); ++o) to[o] = static_cast<float>(bias.ptr<B>()[o]);
  });
  return to;
}

template <class Isa, gemm::Compute kCompute, class T> class Gather {
  using D = gemm::Dot<Isa, kCompute>;
  using V = simd::Vec<Isa>;
  static constexpr int kRows = Tiles<D>::kRows, kWidest = Tiles<D>::kVectors * D::kLanes;
  static constexpr std::int64_t kBlock = 1024;                       // words of k whose panel of W stays in L2
  static constexpr std::int64_t kPixels = 512, kPadded = 512 << 10;  // pixels per unit, and bytes that it reads

 public:
  Gather(Pool& pool, const Images& x, const Weights& w, const Outputs<T>& y)
      : pool_(pool),
        set_(gemm::vector_set(Isa{}, kCompute)),
        x_(x),
        w_(w),
        y_(y),
        panels_(y.channels, D::kLanes, Tiles<D>::kVectors),
        words_(ceil_div(x.channels, D::kGroup)),
        taps_(x.rows.taps * x.cols.taps) {
    pieces_ = most(1, ceil_div(words_, kBlock));
    blocks_ = most(1, ceil_div(taps_ * pieces_, most(1, kBlock / ceil_div(words_, pieces_))));
    in_place_ = x.dtype == set_.in_place && x.channels % D::kGroup == 0 && x.rows.inside() && x.cols.inside();
    const std::int64_t line = x.padded_rows(x.rows.outputs) * x.width() * words_ * 4 / most(1, x.rows.outputs);
    const std::int64_t wanted =
        most(ceil_div(x.lines() * x.cols.outputs, kPixels), in_place_ ? 1 : ceil_div(x.lines() * line, kPadded));
    units_ = least(x.lines(), ceil_div(wanted, pool.threads()) * pool.threads());
  }

  void run() {
    if (x_.lines() * x_.cols.outputs == 0) return;
    const std::int64_t lines = ceil_div(x_.lines(), units_), pixels = lines * x_.cols.outputs;
    padded_bytes_ = in_place_ ? 0 : round_up((x_.padded_rows(lines) * x_.width() * words_ + D::kLanes) * 4);
    runs_bytes_ = round_up(taps_ * pieces_ * static_cast<std::int64_t>(sizeof(Run)));
    places_bytes_ = round_up(pixels * 8);
    panel_bytes_ = round_up(taps_ * words_ * panels_.widest() * 4);
    own_bytes_ = ceil_div(panels_.parts, pool_.threads()) * panel_bytes_;
    const std::int64_t sums = blocks_ > 1 ? round_up(pixels * panels_.widest() * 4) : 0;
    const std::int64_t work = runs_bytes_ + 2 * places_bytes_ + padded_bytes_ + sums;
    pool_.reserve_scratch(own_bytes_ + work + y_.channels * 4);
    if (y_.bias) bias_ = widened(y_.bias, reinterpret_cast<float*>(pool_.scratch(0) + own_bytes_ + work));
    parallel_tasks(pool_, panels_.parts, [&](std::int64_t p) { pack(p); });
    std::atomic<std::int64_t> next{0};
    const auto job = [&](int thread) {
      Work own(*this, pool_.scratch(thread) + own_bytes_);
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units_;)
        own.lines(share(x_.lines(), i, units_), share(x_.lines(), i + 1, units_));
      if (y_.stream) simd::stream_fence<Isa>();
    };
    if (units_ == 1) job(0);
    else pool_.run(job);
  }

 private:
  std::byte* panel(std::int64_t p) const {
    return pool_.scratch(static_cast<int>(p % pool_.threads())) + p / pool_.threads() * panel_bytes_;
  }

  void pack(std::int64_t p) const {
    pack_weights(set_, x_, w_, y_.channels, panels_.begin(p), panels_.width(p), words_,
                 reinterpret_cast<std::uint32_t*>(panel(p)));
  }

  /// One thread's memory and the processing of its lines.
  class Work {
   public:
    Work(const Gather& g, std::byte* scratch)
        : g_(g),
          runs_(reinterpret_cast<Run*>(scratch)),
          from_(reinterpret_cast<std::int64_t*>(scratch + g.runs_bytes_)),
          to_(reinterpret_cast<std::int64_t*>(scratch + g.runs_bytes_ + g.places_bytes_)),
          padded_(scratch + g.runs_bytes_ + 2 * g.places_bytes_),
          sums_(reinterpret_cast<float*>(padded_ + g.padded_bytes_)) {}

    void lines(std::int64_t begin, std::int64_t end) {
      if (!g_.in_place_) pad(g_.set_, g_.x_, begin, end, reinterpret_cast<std::uint32_t*>(padded_));
      places(begin, end);
      for (std::int64_t p = 0; p < g_.panels_.parts; ++p) {
        const std::byte* b = g_.panel(p);
        for (std::int64_t block = 0; block < g_.blocks_; ++block) b = tiles(p, block, b);
      }
    }

   private:
    /// Computes where each pixel's inputs begin and where its outputs go.
    void places(std::int64_t begin, std::int64_t end) {
      const Axis &rows = g_.x_.rows, &cols = g_.x_.cols;
      pixels_ = 0;
      for_images(g_.x_, begin, end, [&](std::int64_t image, std::int64_t row, std::int64_t count, std::int64_t padded) {
        for (std::int64_t u = 0; u < count; ++u) {
          const std::int64_t in =
              g_.in_place_ ? (image * rows.size + (row + u) * rows.step + rows.first) * cols.size + cols.first
                           : (padded + u * rows.step) * g_.x_.width();
          const std::int64_t out =
              (image * g_.y_.height + (row + u) * rows.out_step + rows.out_first) * g_.y_.width + cols.out_first;
          for (std::int64_t v = 0; v < cols.outputs; ++v, ++pixels_) {
            from_[pixels_] = (in + v * cols.step) * g_.words_ * 4;
            to_[pixels_] = (out + v * cols.out_step) * g_.y_.channels;
          }
        }
      });
    }

    /// Lists the runs of a block of k, merging adjacent ones; returns its words.
    std::int64_t list_runs(std::int64_t block) {
      const std::int64_t all = g_.taps_ * g_.pieces_, width = g_.in_place_ ? g_.x_.cols.size : g_.x_.width();
      std::int64_t words = 0;
      n_runs_ = 0;
      for (std::int64_t i = share(all, block, g_.blocks_); i < share(all, block + 1, g_.blocks_); ++i) {
        const std::int64_t tap = i / g_.pieces_, piece = i % g_.pieces_, row = tap / g_.x_.cols.taps,
                           col = tap % g_.x_.cols.taps;
        const std::int64_t first = share(g_.words_, piece, g_.pieces_),
                           n = share(g_.words_, piece + 1, g_.pieces_) - first;
        const std::int64_t offset = ((row * g_.x_.rows.apart * width + col * g_.x_.cols.apart) * g_.words_ + first) * 4;
        words += n;
        if (n_runs_ > 0 && runs_[n_runs_ - 1].offset + runs_[n_runs_ - 1].words * 4 == offset)
          runs_[n_runs_ - 1].words += n;
        else runs_[n_runs_++] = {offset, n};
      }
      return words;
    }

    /// Multiplies all pixels by one panel, over a block of k; returns the address of the panel's next block.
    const std::byte* tiles(std::int64_t p, std::int64_t block, const std::byte* b) {
      alignas(64) float buffer[kRows * kWidest];
      const std::int64_t words = list_runs(block), n = ceil_div(pixels_, kRows);
      const int width = g_.panels_.width(p), vectors = width / D::kLanes;
      const bool last = block + 1 == g_.blocks_;
      PixelTile tile{.base = g_.in_place_ ? g_.x_.data : padded_,
                     .pixels = nullptr,
                     .runs = runs_,
                     .n_runs = n_runs_,
                     .b = b,
                     .cin = nullptr,
                     .cout = nullptr};
      for (std::int64_t t = 0; t < n; ++t) {
        const std::int64_t first = share(pixels_, t, n), rows = share(pixels_, t + 1, n) - first;
        tile.pixels = from_ + first;
        tile.cin = block > 0 ? sums_ + first * width : nullptr;
        tile.cout = last ? buffer : sums_ + first * width;
        kTiles<D>.pixel[rows - 1][vectors - 1](tile);
        if (last)
          for (std::int64_t r = 0; r < rows; ++r)
            put(buffer + r * width, g_.y_.data + to_[first + r], g_.panels_.begin(p), width);
      }
      return b + words * width * 4;
    }

    void put(const float* sums, T* to, std::int64_t first, int width) const {
      const Outputs<T>& y = g_.y_;
      const auto one = [&](std::int64_t c, auto lanes) __attribute__((always_inline)) {
        V v = V::load(sums + c);
        if (g_.bias_) v = v + simd::load<V>(g_.bias_ + first + c, lanes);
        if (y.accumulate) v = v + simd::load<V>(to + first + c, lanes);
        if (y.stream) simd::stream(to + first + c, v, lanes);
        else simd::store(to + first + c, v, lanes);
      };
      simd::loop<Isa>(least(width, y.channels - first), one);
    }

    const Gather& g_;
    Run* runs_;
    std::int64_t *from_, *to_;
    std::byte* padded_;
    float* sums_;
    std::int64_t n_runs_ = 0, pixels_ = 0;
  };

  Pool& pool_;
  const gemm::KernelSet& set_;
  const Images& x_;
  const Weights& w_;
  const Outputs<T>& y_;
  Panels panels_;
  std::int64_t words_, taps_, pieces_ = 1, blocks_ = 1, units_ = 1;
  bool in_place_ = false;
  const float* bias_ = nullptr;
  std::int64_t padded_bytes_ = 0, runs_bytes_ = 0, places_bytes_ = 0, panel_bytes_ = 0, own_bytes_ = 0;
};

}  // namespace
}  // namespace hpcdl::conv
