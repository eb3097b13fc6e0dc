#include "hpcdl/data/images/resize.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"

namespace hpcdl::data {
namespace {

/// For each output pixel along one axis the inputs [first, first + taps) and their weights.
struct Taps {
  int most = 0;
  std::vector<int> first, count;
  std::vector<float> weights;  // (outputs, most)
};

Taps taps_of(int begin, int inputs, int outputs) {
  Taps t;
  const double ratio = double(inputs) / outputs, support = std::max(ratio, 1.);
  t.most = static_cast<int>(std::ceil(support)) * 2 + 1;
  t.weights.resize(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(t.most));
  for (int o = 0; o < outputs; ++o) {
    const double centre = (o + 0.5) * ratio;
    const int from = std::max(static_cast<int>(centre - support + 0.5), 0),
              end = std::min(static_cast<int>(centre + support + 0.5), inputs);
    double sum = 0;
    for (int i = from; i < end; ++i) sum += std::max(0., 1 - std::abs((i - centre + 0.5) / support));
    for (int i = from; i < end; ++i) {
      const double w = std::max(0., 1 - std::abs((i - centre + 0.5) / support)) / sum;
      t.weights[static_cast<std::size_t>(o) * static_cast<std::size_t>(t.most) + static_cast<std::size_t>(i - from)] =
          static_cast<float>(w);
    }
    t.first.push_back(begin + from);
    t.count.push_back(end - from);
  }
  return t;
}

}  // namespace

void resize(const Picture& from, const Box& box, int height, int width, Picture& to) {
  require(box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 && box.top + box.height <= from.height &&
              box.left + box.width <= from.width,
          "data", "a box of {} x {} at ({}, {}) does not lie in a picture of {} x {}", box.height, box.width, box.top,
          box.left, from.height, from.width);
  require(height > 0 && width > 0, "data", "cannot resize a picture to {} x {}", height, width);
  const Taps across = taps_of(box.left, box.width, width), down = taps_of(box.top, box.height, height);
  const auto row = static_cast<std::size_t>(width) * 3;
  // First resizes the rows of the box to `width`, then combines these rows.
  std::vector<float> lines(static_cast<std::size_t>(box.height) * row);
  for (int y = 0; y < box.height; ++y) {
    const std::uint8_t* in =
        from.pixels.data() + static_cast<std::size_t>(box.top + y) * static_cast<std::size_t>(from.width) * 3;
    float* out = lines.data() + static_cast<std::size_t>(y) * row;
    for (int x = 0; x < width; ++x, out += 3) {
      const auto o = static_cast<std::size_t>(x);
      const float* w = across.weights.data() + o * static_cast<std::size_t>(across.most);
      const std::uint8_t* p = in + static_cast<std::size_t>(across.first[o]) * 3;
      float r = 0, g = 0, b = 0;
      for (int k = 0; k < across.count[o]; ++k, p += 3) r += w[k] * p[0], g += w[k] * p[1], b += w[k] * p[2];
      out[0] = r, out[1] = g, out[2] = b;
    }
  }
  to.height = height, to.width = width;
  to.pixels.resize(static_cast<std::size_t>(height) * row);
  std::vector<float> sum(row);
  for (int y = 0; y < height; ++y) {
    const auto o = static_cast<std::size_t>(y);
    std::fill(sum.begin(), sum.end(), 0.5f);  // rounds
    for (int k = 0; k < down.count[o]; ++k) {
      const float w = down.weights[o * static_cast<std::size_t>(down.most) + static_cast<std::size_t>(k)];
      const float* in = lines.data() + static_cast<std::size_t>(down.first[o] - box.top + k) * row;
      for (std::size_t x = 0; x < row; ++x) sum[x] += w * in[x];
    }
    std::uint8_t* out = to.pixels.data() + o * row;
    for (std::size_t x = 0; x < row; ++x) out[x] = static_cast<std::uint8_t>(std::clamp(sum[x], 0.f, 255.f));
  }
}

Box middle_box(int picture_height, int picture_width, int height, int width) {
  const double scale = std::min(double(picture_height) / height, double(picture_width) / width);
  const int h = std::clamp(static_cast<int>(std::lround(height * scale)), 1, picture_height);
  const int w = std::clamp(static_cast<int>(std::lround(width * scale)), 1, picture_width);
  return {(picture_height - h) / 2, (picture_width - w) / 2, h, w};
}

}  // namespace hpcdl::data
