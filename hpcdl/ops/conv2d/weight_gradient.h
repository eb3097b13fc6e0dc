#pragma once
// dw(o, tap, :) = sum over pixels of dy(pixel, o) x(pixel's input at the tap, :), and dbias. Pixels are divided into a
// number of splits that depends only on the shape; each sums into its own memory, and the splits are added in order.
// Within a split, passes of some hundred pixels are packed, dy in panels of a tile's rows, x in panels of a tile's
// channels: a panel is padded once and serves all taps. With few channels a row of the kernel would fill a fraction of
// a register: then x is unrolled into all taps of each pixel. Products are f32 for every storage type.

#include "hpcdl/ops/conv2d/padded.h"
#include "hpcdl/ops/conv2d/tile.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::conv {
namespace {

template <class Isa, class T> class WeightGradient {
  using D = gemm::Dot<Isa, gemm::Compute::f32>;
  using V = simd::Vec<Isa>;
  static constexpr int kRows = Tiles<D>::kRows, kLanes = D::kLanes;
  static constexpr std::int64_t kPixels = 512, kSums = 4 << 20,
                                kSplits = 16;  // pixels per pass; bytes of all splits; their maximum number

 public:
  /// `x`: as read by the outputs of forward. Absent gradients convert to false.
  WeightGradient(Pool& pool, const Images& x, const T* dy, std::int64_t outputs, const Grad& dw, const Grad& dbias)
      : pool_(pool),
        set_(gemm::vector_set(Isa{}, gemm::Compute::f32)),
        x_(x),
        dy_(dy),
        o_(outputs),
        dw_(dw),
        dbias_(dbias),
        unrolled_(x.channels < 16),
        taps_(unrolled_ ? 1 : x.rows.taps * x.cols.taps),
        channels_(unrolled_ ? x.rows.taps * x.cols.taps * x.channels : x.channels),
        panels_(channels_, kLanes, Tiles<D>::kVectors),
        out_panels_(ceil_div(outputs, kRows)),
        pass_lines_(most(1, kPixels / x.cols.outputs)) {
    const std::int64_t bytes = out_panels_ * kRows * taps_ * panels_.vectors * kLanes * 4;
    splits_ = most(1, least(least(kSplits, kSums / bytes), x.lines() * x.cols.outputs / (2 * kPixels)));
    groups_ = unrolled_ || splits_ >= 8 ? 1 : panels_.parts;
    bias_at_ = out_panels_ * kRows * taps_ * (groups_ == 1 ? panels_.vectors * kLanes : panels_.widest());
  }

  void run() {
    const std::int64_t pixels = pass_lines_ * x_.cols.outputs, padded = x_.padded_rows(pass_lines_) * x_.width();
    sums_bytes_ = round_up((bias_at_ + o_ + kLanes) * 4);
    own_bytes_ = ceil_div(splits_ * groups_, pool_.threads()) * sums_bytes_;
    a_bytes_ = round_up(out_panels_ * (pixels * kRows + 16) * 4);
    lines_bytes_ = round_up(pass_lines_ * 8);
    b_bytes_ = round_up((unrolled_ ? pixels * panels_.vectors * kLanes + kLanes : padded * panels_.widest()) * 4);
    const std::int64_t image = unrolled_ ? round_up((padded * x_.channels + 2 * kLanes) * 4) : 0;
    pool_.reserve_scratch(own_bytes_ + a_bytes_ + lines_bytes_ + b_bytes_ + image);
    parallel(splits_ * groups_,
             [&](int thread, std::int64_t unit) { Work(*this, pool_.scratch(thread) + own_bytes_, unit).run(); });
    parallel(out_panels_, [&](int, std::int64_t panel) { add_splits(panel); });
  }

 private:
  template <class F> void parallel(std::int64_t n, F&& f) {
    std::atomic<std::int64_t> next{0};
    pool_.run([&](int thread) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(thread, i);
    });
  }
  /// The sums of a split: for each panel of its group (output panels, taps, rows of a tile, width), then dbias at
  /// bias_at_.
  float* sums(std::int64_t split, std::int64_t group) const {
    const std::int64_t unit = split * groups_ + group;
    return reinterpret_cast<float*>(pool_.scratch(static_cast<int>(unit % pool_.threads())) +
                                    unit / pool_.threads() * sums_bytes_);
  }
  float* tile_sums(std::int64_t split, std::int64_t panel, std::int64_t out_panel, std::int64_t tap) const {
    const std::int64_t before = groups_ == 1 ? panels_.begin(panel) : 0;
    return sums(split, groups_ == 1 ? 0 : panel) + out_panels_ * kRows * taps_ * before +
           (out_panel * taps_ + tap) * kRows * panels_.width(panel);
  }
  std::int64_t rows_of(std::int64_t out_panel) const { return least(kRows, o_ - out_panel * kRows); }

  /// One thread's memory, and the passes over the pixels of its unit.
  class Work {
   public:
    Work(const WeightGradient& g, std::byte* scratch, std::int64_t unit)
        : g_(g),
          split_(unit / g.groups_),
          group_(unit % g.groups_),
          a_(reinterpret_cast<std::uint32_t*>(scratch)),
          lines_(reinterpret_cast<std::int64_t*>(scratch + g.a_bytes_)),
          b_(reinterpret_cast<float*>(scratch + g.a_bytes_ + g.lines_bytes_)),
          image_(reinterpret_cast<float*>(scratch + g.a_bytes_ + g.lines_bytes_ + g.b_bytes_)) {}

    void run() {
      const std::int64_t begin = share(g_.x_.lines(), split_, g_.splits_),
                         end = share(g_.x_.lines(), split_ + 1, g_.splits_);
      const std::int64_t passes = ceil_div(end - begin, g_.pass_lines_);
      const std::int64_t first = g_.groups_ == 1 ? 0 : group_, last = g_.groups_ == 1 ? g_.panels_.parts : group_ + 1;
      if (passes == 0) std::memset(g_.sums(split_, group_), 0, static_cast<std::size_t>(g_.bias_at_ + g_.o_) * 4);
      for (std::int64_t pass = 0; pass < passes; ++pass) {
        begin_ = begin + share(end - begin, pass, passes), end_ = begin + share(end - begin, pass + 1, passes);
        fresh_ = pass == 0;
        pack_dy();
        if (g_.dbias_ && group_ == 0) add_bias();
        if (!g_.dw_) continue;
        if (g_.unrolled_) unroll();
        for (std::int64_t panel = first; panel < last; ++panel) {
          if (!g_.unrolled_) pack_x(panel);
          for (std::int64_t out = 0; out < g_.out_panels_; ++out) tiles(panel, out);
        }
      }
    }

   private:
    std::int64_t pixels() const { return (end_ - begin_) * g_.x_.cols.outputs; }
    std::int64_t a_stride() const { return pixels() * kRows + 16; }
    const T* dy() const { return g_.dy_ + begin_ * g_.x_.cols.outputs * g_.o_; }

    void pack_dy() {
      if (!g_.dw_) return;
      const std::int64_t whole = g_.o_ / kRows, rest = g_.o_ % kRows;
      gemm::PackArgs args{.dst = a_,
                          .width = kRows,
                          .cols = kRows,
                          .panels = static_cast<int>(whole),
                          .panel_stride = a_stride(),
                          .k = pixels(),
                          .src = dy(),
                          .dtype = dtype_of<T>,
                          .ld = g_.o_,
                          .k_dense = false};
      if (whole) g_.set_.pack_a(args);
      args.dst += whole * a_stride();
      args.src = dy() + whole * kRows;
      args.width = args.cols = static_cast<int>(rest);
      args.panels = 1;
      if (rest) g_.set_.pack_a(args);
    }

    void add_bias() {
      float* sums = g_.sums(split_, group_) + g_.bias_at_;
      const T* from = dy();
      const std::int64_t n = pixels();
      simd::loop<Isa>(g_.o_, [&](std::int64_t o, auto lanes) {
        V even(0.0f), odd(0.0f);
        std::int64_t p = 0;
        for (; p + 2 <= n; p += 2)
          even = even + simd::load<V>(from + p * g_.o_ + o, lanes),
          odd = odd + simd::load<V>(from + (p + 1) * g_.o_ + o, lanes);
        if (p < n) even = even + simd::load<V>(from + p * g_.o_ + o, lanes);
        simd::store(sums + o, fresh_ ? even + odd : simd::load<V>(sums + o, lanes) + (even + odd), lanes);
      });
    }

    /// b: (padded pixels, width) of one panel's channels.
    void pack_x(std::int64_t panel) {
      const Images& x = g_.x_;
      const std::int64_t first = g_.panels_.begin(panel), width = g_.panels_.width(panel),
                         cols = least(width, x.channels - first), row_pixels = x.width();
      std::int64_t line = 0;
      for_images(x, begin_, end_, [&](std::int64_t image, std::int64_t row, std::int64_t count, std::int64_t padded) {
        for (std::int64_t u = 0; u < count; ++u) lines_[line++] = (padded + u * x.rows.step) * row_pixels * width * 4;
        for_padded_rows(x, image, row, count,
                        [&](std::int64_t t, const std::byte* src, std::int64_t front, std::int64_t pixels) {
                          float* to = b_ + (padded + t) * row_pixels * width;
                          std::memset(to, 0, static_cast<std::size_t>(front * width) * 4);
                          to += front * width;
                          const T* from = reinterpret_cast<const T*>(src) + first;
                          for (std::int64_t p = 0; p < pixels; ++p, to += width, from += x.channels)
                            for (std::int64_t c = 0; c < width; c += kLanes)
                              (cols - c >= kLanes ? V::load(from + c) : V::load(from + c, static_cast<int>(cols - c)))
                                  .store(to + c);
                          std::memset(to, 0, static_cast<std::size_t>((row_pixels - front - pixels) * width) * 4);
                        });
      });
    }

    /// b: (pixels, all taps' channels, padded to whole vectors).
    void unroll() {
      const Images& x = g_.x_;
      const std::int64_t ld = g_.panels_.vectors * kLanes, row_pixels = x.width(),
                         run = x.cols.apart == 1 ? x.cols.taps * x.channels : x.channels;
      pad(g_.set_, x, begin_, end_, reinterpret_cast<std::uint32_t*>(image_));
      float* to = b_;
      std::int64_t line = 0;
      for_images(x, begin_, end_, [&](std::int64_t, std::int64_t, std::int64_t count, std::int64_t padded) {
        for (std::int64_t u = 0; u < count; ++u) {
          lines_[line] = line * x.cols.outputs * ld * 4, ++line;
          for (std::int64_t v = 0; v < x.cols.outputs; ++v, to += ld) {
            float* put = to;
            for (std::int64_t i = 0; i < x.rows.taps; ++i)
              for (std::int64_t j = 0; j < x.cols.taps * x.channels; j += run, put += run) {
                const float* from = image_ + ((padded + u * x.rows.step + i * x.rows.apart) * row_pixels +
                                              v * x.cols.step + j / x.channels * x.cols.apart) *
                                                 x.channels;
                for (std::int64_t c = 0; c < run; c += kLanes)
                  V::load(from + c).store(put + c);  // may exceed the run: the next one overwrites the excess
              }
          }
        }
      });
    }

    void tiles(std::int64_t panel, std::int64_t out) {
      const Images& x = g_.x_;
      const std::int64_t width = g_.panels_.width(panel), rows = g_.rows_of(out);
      for (std::int64_t tap = 0; tap < g_.taps_; ++tap) {
        const std::int64_t i = tap / x.cols.taps, j = tap % x.cols.taps;
        const float* b = g_.unrolled_ ? b_ + g_.panels_.begin(panel)
                                      : b_ + (i * x.rows.apart * x.width() + j * x.cols.apart) * width;
        float* sums = g_.tile_sums(split_, panel, out, tap);
        kTiles<D>.weight[rows - 1][width / kLanes - 1](
            {.a = reinterpret_cast<const std::byte*>(a_ + out * a_stride()),
             .a_step = rows * 4,
             .b = reinterpret_cast<const std::byte*>(b),
             .lines = lines_,
             .n_lines = end_ - begin_,
             .pixels = x.cols.outputs,
             .step = g_.unrolled_ ? g_.panels_.vectors * kLanes * 4 : x.cols.step * width * 4,
             .cin = fresh_ ? nullptr : sums,
             .cout = sums});
      }
    }

    const WeightGradient& g_;
    std::int64_t split_, group_, begin_ = 0, end_ = 0;
    bool fresh_ = true;
    std::uint32_t* a_;
    std::int64_t* lines_;
    float *b_, *image_;
  };

  template <class To> void add_to(To* to, std::int64_t n, bool accumulate, auto&& part) const {
    simd::loop<Isa>(n, [&](std::int64_t c, auto lanes) {
      V v = V::load(part(0) + c);
      for (std::int64_t s = 1; s < splits_; ++s) v = v + V::load(part(s) + c);
      if (accumulate) v = v + simd::load<V>(to + c, lanes);
      simd::store(to + c, v, lanes);
    });
  }

  void add_splits(std::int64_t out) const {
    visit_dtype(dw_.dtype(), [&]<class TW>() {
      for (std::int64_t r = 0; dw_ && r < rows_of(out); ++r)
        for (std::int64_t tap = 0; tap < taps_; ++tap)
          for (std::int64_t p = 0; p < panels_.parts; ++p) {
            const std::int64_t first = panels_.begin(p), width = panels_.width(p);
            add_to(dw_.ptr<TW>() + ((out * kRows + r) * taps_ + tap) * channels_ + first,
                   least(width, channels_ - first), dw_.accumulate(),
                   [&](std::int64_t s) { return tile_sums(s, p, out, tap) + r * width; });
          }
    });
    if (!dbias_) return;
    visit_dtype(dbias_.dtype(), [&]<class TB>() {
      add_to(dbias_.ptr<TB>() + out * kRows, rows_of(out), dbias_.accumulate(),
             [&](std::int64_t s) { return sums(s, 0) + bias_at_ + out * kRows; });
    });
  }

  Pool& pool_;
  const gemm::KernelSet& set_;
  const Images& x_;
  const T* dy_;
  std::int64_t o_;
  const Grad &dw_, &dbias_;
  bool unrolled_;
  std::int64_t taps_, channels_;
  Panels panels_;
  std::int64_t out_panels_, pass_lines_, splits_ = 1, groups_ = 1, bias_at_ = 0;
  std::int64_t sums_bytes_ = 0, own_bytes_ = 0, a_bytes_ = 0, lines_bytes_ = 0, b_bytes_ = 0;
};

}  // namespace
}  // namespace hpcdl::conv
