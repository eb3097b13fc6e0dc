#include "hpcdl/data/images/augment.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/resize.h"
#include "hpcdl/data/permute.h"
#include "hpcdl/rng.h"

namespace hpcdl::data {
namespace {

// Each random draw of a sample in an epoch has its own stream of the seed: crop and flip, and the weight of mixup.
enum class Use : std::uint64_t { place = 1, mix = 2 };
constexpr std::uint64_t kPartners = 0x6d69787570;  // makes the order of partners differ from the order of samples

std::uint64_t stream_of(std::int64_t epoch, Use use) {
  return static_cast<std::uint64_t>(epoch) << 8 | static_cast<std::uint64_t>(use);
}

/// log of a draw from Gamma(shape, 1). Marsaglia and Tsang, "A simple method for generating gamma variables", TOMS
/// 2000. In logs, because for small shapes the draw itself underflows in double.
double log_gamma_draw(double shape, const Rng& rng, std::uint64_t first) {
  if (shape < 1) {
    const double u = (rng.block(first)[0] + 0.5) * 0x1p-32;
    return log_gamma_draw(shape + 1, rng, first + 1) + std::log(u) / shape;
  }
  const double d = shape - 1. / 3, c = 1 / std::sqrt(9 * d);
  for (std::uint64_t k = first;; k += 2) {  // more than 95 of 100 are accepted at once
    const double x = rng.normal(k), u = (rng.block(k + 1)[0] + 0.5) * 0x1p-32, t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return std::log(d * v);
  }
}

/// The part of a picture of `height` x `width` that a random-resized crop takes.
Box random_box(int height, int width, const Rng& rng, std::uint64_t i) {
  const double area = double(height) * width;
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const auto b = rng.block(i << 8 | (attempt + 1));
    const auto uniform = [&](int k, double from, double to) {
      return from + (to - from) * (b[static_cast<std::size_t>(k)] * 0x1p-32);
    };
    const double part = area * uniform(0, 0.08, 1), shape = std::exp(uniform(1, std::log(3. / 4), std::log(4. / 3)));
    const int w = static_cast<int>(std::lround(std::sqrt(part * shape))),
              h = static_cast<int>(std::lround(std::sqrt(part / shape)));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {static_cast<int>(uniform(2, 0, height - h + 1)), static_cast<int>(uniform(3, 0, width - w + 1)), h, w};
  }
  const int side = std::min(height, width);
  return {(height - side) / 2, (width - side) / 2, side, side};
}

}  // namespace

double beta_draw(double alpha, std::uint64_t seed, std::uint64_t stream) {
  const Rng rng{seed, stream};
  constexpr std::uint64_t kFar = std::uint64_t{1} << 32;
  const double a = log_gamma_draw(alpha, rng, 0), b = log_gamma_draw(alpha, rng, kFar);
  return 1 / (1 + std::exp(b - a));
}

Augmenter::Augmenter(const ImageSet& set, const AugmentOptions& options, std::uint64_t seed)
    : set_(set), options_(options), seed_(seed), height_(options.height), width_(options.width) {
  if (height_ == 0) height_ = set.info().height;
  if (width_ == 0) width_ = set.info().width;
  require(height_ > 0 && width_ > 0, "data", "the images of {} differ in size: give the height and width that you want",
          set.info().name);
  require(options.crop >= 0 && options.crop < std::min(height_, width_), "data",
          "a crop padding of {} pixels for images of {} x {}: expected 0 to {}", options.crop, height_, width_,
          std::min(height_, width_) - 1);
  require(options.mixup >= 0 && options.mixup <= 1000, "data", "expected a mixup alpha from 0 (none) to 1000, found {}",
          options.mixup);
  for (int x = 0; x < width_; ++x)
    for (std::size_t c = 0; c < 3; ++c) {
      const auto n = options.by.value_or(set.info().normalisation);
      scale_.push_back(options.normalise ? 1 / (255 * n.std[c]) : 1 / 255.f);
      shift_.push_back(options.normalise ? -n.mean[c] / n.std[c] : 0);
    }
}

/// Row y of a window, (width, 3).
void Augmenter::copy_row(const Window& w, int y, std::uint8_t* line) const {
  const auto row = static_cast<std::size_t>(width_) * 3;
  const int begin = std::clamp(-w.left, 0, width_),
            end = std::clamp(w.from->width - w.left, begin, width_);  // columns inside the picture
  const int source = w.top + y;
  const bool inside = source >= 0 && source < w.from->height;
  if (!inside || begin > 0 || end < width_) std::fill_n(line, row, std::uint8_t{0});
  if (!inside) return;
  const std::uint8_t* in =
      w.from->pixels.data() + (static_cast<std::ptrdiff_t>(source) * w.from->width + w.left + begin) * 3;
  if (!w.flip) {
    std::copy_n(in, (end - begin) * 3, line + begin * 3);
  } else {
    for (int x = begin; x < end; ++x, in += 3) std::copy_n(in, 3, line + (width_ - 1 - x) * 3);
  }
}

void Augmenter::normalise(const std::uint8_t* line, float* to) const {
  const float *scale = scale_.data(), *shift = shift_.data();
  for (std::size_t k = 0; k < scale_.size(); ++k) to[k] = static_cast<float>(line[k]) * scale[k] + shift[k];
}

void Augmenter::convert(const Window& w, std::span<std::uint8_t> to) const {
  for (int y = 0; y < height_; ++y)
    copy_row(w, y, to.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) * 3);
}

void Augmenter::convert(const Window& w, std::span<float> to) const {
  const auto row = static_cast<std::size_t>(width_) * 3;
  std::array<std::uint8_t, 3 * 1024> small;
  std::vector<std::uint8_t> large;
  std::uint8_t* line = small.data();
  if (row > small.size()) large.resize(row), line = large.data();
  for (int y = 0; y < height_; ++y) {
    copy_row(w, y, line);
    normalise(line, to.data() + static_cast<std::size_t>(y) * row);
  }
}

std::vector<float> Augmenter::table() const {
  std::vector<float> all, row(scale_.size());
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<std::uint8_t> line(scale_.size(), static_cast<std::uint8_t>(byte));
    normalise(line.data(), row.data());
    all.insert(all.end(), row.begin(), row.begin() + 3);
  }
  return all;
}

Augmenter::Window Augmenter::window(std::int64_t i, std::int64_t epoch, Scratch& scratch) const {
  set_.decode(i, scratch.picture);
  const Rng rng{seed_, stream_of(epoch, Use::place)};
  const auto id = static_cast<std::uint64_t>(i);
  const auto draws = rng.block(id << 8);
  const Picture* from = &scratch.picture;
  if (options_.random_resized) {
    resize(*from, random_box(from->height, from->width, rng, id), height_, width_, scratch.resized);
    from = &scratch.resized;
  } else if (from->height != height_ || from->width != width_) {
    resize(*from, middle_box(from->height, from->width, height_, width_), height_, width_, scratch.resized);
    from = &scratch.resized;
  }
  const auto shifted = [&](std::uint32_t bits) {  // -crop .. crop
    return static_cast<int>(static_cast<std::uint64_t>(bits) * static_cast<std::uint64_t>(2 * options_.crop + 1) >>
                            32) -
           options_.crop;
  };
  return {from, shifted(draws[0]), shifted(draws[1]), options_.flip && (draws[2] & 1)};
}

Mix Augmenter::mix(std::int64_t i, std::int64_t epoch) const {
  const Permutation partners(static_cast<std::uint64_t>(set_.count()), seed_ ^ kPartners,
                             static_cast<std::uint64_t>(epoch));
  const auto id = static_cast<std::uint64_t>(i);
  // A seed for the sample, so that a rejected draw is followed by the next draw of the same sample.
  const auto key = Rng{seed_, stream_of(epoch, Use::mix)}.block(id);
  const double weight =
      beta_draw(options_.mixup, std::uint64_t{key[0]} << 32 | key[1], std::uint64_t{key[2]} << 32 | key[3]);
  return {static_cast<std::int64_t>(partners(id)), static_cast<float>(weight)};
}

Mix Augmenter::mixed(std::int64_t i, std::int64_t epoch, Scratch& scratch, std::span<float> to) const {
  training(i, epoch, scratch, to);
  if (options_.mixup <= 0) return {i, 1};
  const Mix m = mix(i, epoch);
  scratch.partner.resize(to.size());
  training(m.partner, epoch, scratch, std::span(scratch.partner));
  const float a = m.weight, b = 1 - m.weight;
  const float* other = scratch.partner.data();
  for (std::size_t k = 0; k < to.size(); ++k) to[k] = a * to[k] + b * other[k];
  return m;
}

Augmenter::Window Augmenter::whole(std::int64_t i, Scratch& scratch) const {
  set_.decode(i, scratch.picture);
  const Picture* from = &scratch.picture;
  if (from->height != height_ || from->width != width_) {
    resize(*from, middle_box(from->height, from->width, height_, width_), height_, width_, scratch.resized);
    from = &scratch.resized;
  }
  return {from};
}

}  // namespace hpcdl::data
