#pragma once
// dw of a 3 x 3 convolution of stride 1 by Winograd's minimal filtering: a 6 x 6 tile of x and the corresponding 4 x 4
// tile of dy give 3 x 3 taps, at the same 36 points. Chunks of tiles are evaluated and then multiplied, one matrix
// product per point, accumulated over the chunks; each point belongs to one thread, so the order of sums is fixed.

#include "hpcdl/ops/conv2d/winograd.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::conv {
namespace {

template <class Isa> class WinogradWeights {
  using D = gemm::Dot<Isa, gemm::Compute::f32>;
  using V = simd::Vec<Isa>;
  static constexpr int kRows = Tiles<D>::kRows, kLanes = D::kLanes;
  static constexpr std::int64_t kChunk = 128, kTask = 8;  // tiles

 public:
  WinogradWeights(Pool& pool, const Images& x, const float* dy, std::int64_t outputs, const Grad& dw, const Grad& dbias)
      : pool_(pool),
        x_(x),
        dy_(dy),
        o_(outputs),
        dw_(dw),
        dbias_(dbias),
        grid_(x),
        panels_(x.channels, kLanes, Tiles<D>::kVectors),
        out_panels_(ceil_div(outputs, kRows)),
        x_ld_(panels_.vectors * kLanes + 16),
        dy_ld_(ceil_div(outputs, kLanes) * kLanes + 16) {}

  void run() {
    const std::int64_t tiles = x_.n * grid_.of_image(), chunks = ceil_div(tiles, kChunk),
                       sums = out_panels_ * kRows * panels_.vectors * kLanes;
    const std::int64_t plane = round_up((kChunk * (x_ld_ + dy_ld_) + sums) * 4),
                       own = ceil_div(kPlanes, pool_.threads()) * plane;
    const std::int64_t tile_sums = round_up(kChunk * dy_ld_ * 4), zeros = most(x_ld_, dy_ld_) * 4,
                       bias = round_up(dy_ld_ * 4);
    pool_.reserve_scratch(own + bias + tile_sums + zeros);
    for (int i = 0; i < kPlanes; ++i) {
      v_[i] = reinterpret_cast<float*>(pool_.scratch(i % pool_.threads()) + i / pool_.threads() * plane);
      w_[i] = v_[i] + kChunk * x_ld_;
      sums_[i] = w_[i] + kChunk * dy_ld_;
    }
    bias_ = reinterpret_cast<float*>(pool_.scratch(0) + own);
    tile_sums_ = reinterpret_cast<float*>(pool_.scratch(0) + own + bias);
    zeros_ = reinterpret_cast<float*>(pool_.scratch(0) + own + bias + tile_sums);
    std::memset(zeros_, 0, static_cast<std::size_t>(zeros));
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const std::int64_t begin = share(tiles, chunk, chunks), n = share(tiles, chunk + 1, chunks) - begin;
      parallel_tasks(pool_, ceil_div(n, kTask), [&](std::int64_t task) {
        for (std::int64_t t = task * kTask; t < least(n, (task + 1) * kTask); ++t) evaluate_tile(t, begin + t);
      });
      parallel_tasks(pool_, kPlanes * panels_.parts + 1, [&](std::int64_t task) {
        if (task == 0) add_bias(n, chunk == 0);
        else multiply(static_cast<int>((task - 1) / panels_.parts), (task - 1) % panels_.parts, n, chunk == 0);
      });
    }
    parallel_tasks(pool_, o_, [&](std::int64_t o) { interpolate(o); });
    if (dbias_) write_bias();
  }

 private:
  /// Evaluates tile `tile` of all, as the t-th of its chunk.
  void evaluate_tile(std::int64_t t, std::int64_t tile) const {
    const std::int64_t image = tile / grid_.of_image(), row = tile % grid_.of_image() / grid_.cols * kTile,
                       col = tile % grid_.cols * kTile;
    const float *in[kPoints][kPoints], *out[kTile][kTile];
    square<kPoints>(reinterpret_cast<const float*>(x_.data), image, row + x_.rows.first, col + x_.cols.first,
                    x_.rows.size, x_.cols.size, x_.channels, zeros_, in);
    evaluate<Isa, kPoints>(
        in, x_.channels, [&](int plane, std::int64_t c) { return v_[plane] + t * x_ld_ + c; },
        [](const V* a, V* b) __attribute__((always_inline)) { input_points(a, b); });
    square<kTile>(dy_, image, row, col, grid_.height, grid_.width, o_, zeros_, out);
    evaluate<Isa, kTile>(
        out, o_, [&](int plane, std::int64_t o) { return w_[plane] + t * dy_ld_ + o; },
        [](const V* a, V* b) __attribute__((always_inline)) { factor_points<4>(a, b); });
    if (!dbias_) return;
    simd::loop<Isa>(o_, [&](std::int64_t o, auto lanes) {
      V sum(0.0f);
      for (const auto& line : out)
        sum = sum + ((simd::load<V>(line[0] + o, lanes) + simd::load<V>(line[1] + o, lanes)) +
                     (simd::load<V>(line[2] + o, lanes) + simd::load<V>(line[3] + o, lanes)));
      sum.store(tile_sums_ + t * dy_ld_ + o);
    });
  }

  void add_bias(std::int64_t n, bool fresh) const {
    if (!dbias_) return;
    for (std::int64_t o = 0; o < dy_ld_ - 16; o += kLanes) {
      V sum(0.0f);
      for (std::int64_t t = 0; t < n; ++t) sum = sum + V::load(tile_sums_ + t * dy_ld_ + o);
      (fresh ? sum : V::load(bias_ + o) + sum).store(bias_ + o);
    }
  }

  /// The sums of a point: for each panel (output panels, rows of a tile, width).
  float* sums(int plane, std::int64_t panel) const { return sums_[plane] + out_panels_ * kRows * panels_.begin(panel); }

  void multiply(int plane, std::int64_t panel, std::int64_t n, bool fresh) const {
    const std::int64_t width = panels_.width(panel), line = 0;
    for (std::int64_t out = 0; out < out_panels_; ++out) {
      float* to = sums(plane, panel) + out * kRows * width;
      const std::int64_t rows = least(kRows, o_ - out * kRows);
      kTiles<D>.weight[rows - 1][width / kLanes - 1](
          {.a = reinterpret_cast<const std::byte*>(w_[plane] + out * kRows),
           .a_step = dy_ld_ * 4,
           .b = reinterpret_cast<const std::byte*>(v_[plane] + panels_.begin(panel)),
           .lines = &line,
           .n_lines = 1,
           .pixels = n,
           .step = x_ld_ * 4,
           .cin = fresh ? nullptr : to,
           .cout = to});
    }
  }

  /// The taps of one output channel.
  void interpolate(std::int64_t o) const {
    visit_dtype(dw_.dtype(), [&]<class T>() {
      for (std::int64_t panel = 0; panel < panels_.parts; ++panel) {
        const std::int64_t first = panels_.begin(panel), width = panels_.width(panel);
        simd::loop<Isa>(least(width, x_.channels - first), [&](std::int64_t c, auto lanes) {
          V m[kPoints][kPoints], taps[3][3];
          for (int i = 0; i < kPlanes; ++i) m[i / kPoints][i % kPoints] = V::load(sums(i, panel) + o * width + c);
          both_axes<kPoints, 3>(m, taps, [](const V* a, V* b) __attribute__((always_inline)) { results<3>(a, b); });
          for (int tap = 0; tap < 9; ++tap) {
            T* to = dw_.ptr<T>() + (o * 9 + tap) * x_.channels + first + c;
            const V v = taps[tap / 3][tap % 3];
            simd::store(to, dw_.accumulate() ? v + simd::load<V>(to, lanes) : v, lanes);
          }
        });
      }
    });
  }

  void write_bias() const {
    visit_dtype(dbias_.dtype(), [&]<class T>() {
      T* to = dbias_.ptr<T>();
      simd::loop<Isa>(o_, [&](std::int64_t o, auto lanes) {
        const V v = V::load(bias_ + o);
        simd::store(to + o, dbias_.accumulate() ? v + simd::load<V>(to + o, lanes) : v, lanes);
      });
    });
  }

  Pool& pool_;
  const Images& x_;
  const float* dy_;
  std::int64_t o_;
  const Grad &dw_, &dbias_;
  TileGrid grid_;
  Panels panels_;
  std::int64_t out_panels_, x_ld_, dy_ld_;                           // floats between tiles
  float *v_[kPlanes] = {}, *w_[kPlanes] = {}, *sums_[kPlanes] = {};  // by point: x, dy, products
  float *bias_ = nullptr, *tile_sums_ = nullptr, *zeros_ = nullptr;
};

}  // namespace
}  // namespace hpcdl::conv
