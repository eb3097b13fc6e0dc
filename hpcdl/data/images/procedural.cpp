#include "hpcdl/data/images/procedural.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::data {
namespace {

constexpr int kSide = 32, kClasses = 10;
// The random numbers of a sample, in blocks of Philox: 8 for its parameters, then blocks of 16 bytes of noise.
constexpr std::uint64_t kParameterBlocks = 8, kNoiseBlocks = kSide * kSide * 3 / 16,
                        kBlocks = kParameterBlocks + kNoiseBlocks;

struct Colour {
  float r, g, b;
};

// One tint for each class; neighbours in the list are far apart.
constexpr Colour kTints[kClasses] = {{.5f, -.3f, -.2f}, {-.4f, .1f, .3f},  {.1f, .4f, -.5f}, {.3f, -.4f, .1f},
                                     {-.2f, .4f, -.2f}, {-.3f, -.2f, .5f}, {.4f, .1f, -.5f}, {-.5f, .3f, .2f},
                                     {.2f, -.1f, -.1f}, {-.1f, -.3f, .4f}};

/// Uniform draws of one sample, in order.
class Draws {
 public:
  Draws(Rng rng, std::uint64_t block) : rng_(rng), block_(block) {}
  /// In [from, to).
  float operator()(float from, float to) {
    if (at_ % 4 == 0) bits_ = rng_.block(block_ + at_ / 4);
    return from + (to - from) * (static_cast<float>(bits_[at_++ % 4] >> 8) * 0x1p-24f);
  }
  int below(int n) { return static_cast<int>((*this)(0, static_cast<float>(n))); }

 private:
  Rng rng_;
  std::uint64_t block_, at_ = 0;
  Philox4 bits_{};
};

float box(float u, float v, float w, float h) { return std::max(std::abs(u) - w, std::abs(v) - h); }
float disc(float u, float v) { return std::sqrt(u * u + v * v); }
/// The fractional part of v > -64; std::floor would be a call for each pixel.
float fraction(float v) { return v - static_cast<float>(static_cast<int>(v + 64) - 64); }
/// Distance to the bars of a grating with period 1/f and equal bars and gaps.
float bars(float u, float f) { return (std::abs(fraction(u * f) - .5f) - .25f) / f; }

/// Signed distance to figure `kind` of size 1 about the origin: below 0 inside.
float distance(int kind, float u, float v) {
  switch (kind) {
    case 0: return disc(u, v) - .9f;
    case 1: return std::abs(disc(u, v) - .75f) - .22f;
    case 2: return box(u, v, .8f, .8f);
    case 3: return std::max({v - .5f, .866f * u - .5f * v - .5f, -.866f * u - .5f * v - .5f});
    case 4: return std::min(box(u, v, 1, .3f), box(u, v, .3f, 1));
    case 5: return std::max(box(u, v, 1, 1), bars(v, 1.6f));
    case 6: return std::max(box(u, v, 1, 1), bars(u, 1.6f));
    case 7: return std::max(box(u, v, 1, 1), bars(.7071f * (u + v), 1.6f));
    case 8: {  // a chequered square: inside if exactly one of two gratings is
      const float a = bars(u, 1.1f), b = bars(v, 1.1f);
      return std::max(box(u, v, 1, 1), std::max(std::min(a, b), -std::max(a, b)));
    }
    default: {  // a square of dots
      const float x = fraction(u * 1.4f) - .5f, y = fraction(v * 1.4f) - .5f;
      return std::max(box(u, v, 1, 1), (disc(x, y) - .28f) / 1.4f);
    }
  }
}

Colour mixed(Colour a, Colour b, float t) {
  return {a.r + t * (b.r - a.r), a.g + t * (b.g - a.g), a.b + t * (b.b - a.b)};
}

/// A figure somewhere in the image. Angles are drawn as t = tan(angle / 2), so that the result does not depend on a
/// library's sine.
struct Figure {
  int kind;
  float x, y, size, cosine, sine, opacity;
  Colour colour;

  float cover(float px, float py) const {
    const float dx = (px - x) / size, dy = (py - y) / size;
    const float d = distance(kind, dx * cosine + dy * sine, dy * cosine - dx * sine) * size;
    return opacity * std::clamp(.5f - d, 0.f, 1.f);
  }
  void turn(float t) { cosine = (1 - t * t) / (1 + t * t), sine = 2 * t / (1 + t * t); }
};

struct Canvas {
  Colour pixels[kSide][kSide];

  void draw(const Figure& f) {
    const float reach = 1.5f * f.size + 1;  // of the corners of a rotated square
    const auto clip = [](float v) { return static_cast<int>(std::clamp(v, 0.f, static_cast<float>(kSide))); };
    for (int y = clip(f.y - reach); y < clip(f.y + reach + 1); ++y)
      for (int x = clip(f.x - reach); x < clip(f.x + reach + 1); ++x)
        pixels[y][x] = mixed(pixels[y][x], f.colour, f.cover(static_cast<float>(x) + .5f, static_cast<float>(y) + .5f));
  }
};

struct Scene {
  Colour background;
  float slope_x, slope_y, noise;
  Figure back, front;
};

Scene draw_scene(int kind, Draws draw) {
  Scene s;
  const auto grey = [&](float from, float to) {
    const float level = draw(from, to);
    return Colour{level + draw(-.12f, .12f), level + draw(-.12f, .12f), level + draw(-.12f, .12f)};
  };
  const auto lean = [&](Colour c, float by) {
    return Colour{c.r + by * kTints[kind].r, c.g + by * kTints[kind].g, c.b + by * kTints[kind].b};
  };
  const bool dark = draw.below(2) == 0;  // light on dark, or dark on light
  const Colour base =
      dark ? grey(.15f, .45f)
           : grey(.55f, .85f);  // one draw per statement, because compilers choose the order of arguments
  s.background = lean(base, draw(-.1f, .5f));
  s.slope_x = draw(-.008f, .008f), s.slope_y = draw(-.008f, .008f);
  s.noise = draw(.05f, .3f);
  const float contrast = draw(.2f, .5f) * (dark ? 1.f : -1.f),
              level = (s.background.r + s.background.g + s.background.b) / 3 + contrast;
  const Colour ink{level + draw(-.15f, .15f), level + draw(-.15f, .15f), level + draw(-.15f, .15f)};
  s.front = {kind, draw(10, 22), draw(10, 22), draw(6, 11), 0, 0, 1, ink};
  // Gratings keep their direction within 17 degrees, because three classes differ by it; other figures have any
  // rotation.
  s.front.turn(kind >= 5 && kind <= 7 ? draw(-.15f, .15f) : draw(-1, 1));
  s.back = {draw.below(kClasses),
            draw(0, 32),
            draw(0, 32),
            draw(4, 8),
            0,
            0,
            draw(.3f, .8f),
            mixed(s.background, ink, draw(-.5f, 1))};
  s.back.turn(draw(-1, 1));
  return s;
}

}  // namespace

ProceduralImages::ProceduralImages(std::int64_t count, std::uint64_t seed, Split split)
    : ImageSet({.name = "procedural",
                .classes = {"disc", "ring", "square", "triangle", "cross", "level_bars", "upright_bars",
                            "slanting_bars", "chequers", "dots"},
                .height = kSide,
                .width = kSide,
                .normalisation = {{.5f, .5f, .5f}, {.255f, .255f, .255f}}}),
      count_(count),
      seed_(seed),
      split_(split) {
  require(count > 0, "data", "expected a procedural set of at least 1 image, found {}", count);
}

std::int32_t ProceduralImages::target(std::int64_t i) const { return static_cast<std::int32_t>(i % kClasses); }

void ProceduralImages::decode(std::int64_t i, Picture& to) const {
  require(i >= 0 && i < count_, "data", "image {} of {}", i, count_);
  const Rng rng{seed_,
                split_ == Split::train ? 0x74726169u : 0x74657374u};  // other counters, so the splits share no image
  const std::uint64_t first = static_cast<std::uint64_t>(i) * kBlocks;
  const Scene s = draw_scene(target(i), Draws(rng, first));
  to.height = to.width = kSide;
  to.pixels.resize(kSide * kSide * 3);
  Canvas canvas;
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const float shade = s.slope_x * (static_cast<float>(x) - 15.5f) + s.slope_y * (static_cast<float>(y) - 15.5f);
      canvas.pixels[y][x] = {s.background.r + shade, s.background.g + shade, s.background.b + shade};
    }
  canvas.draw(s.back);
  canvas.draw(s.front);
  static_assert(sizeof(Canvas) == kSide * kSide * 3 * sizeof(float));
  const auto* value = reinterpret_cast<const float*>(&canvas);
  for (std::size_t at = 0; at < to.pixels.size(); at += 16) {
    const Philox4 bits = rng.block(first + kParameterBlocks + at / 16);
    for (std::size_t k = 0; k < 16; ++k) {
      const auto byte = static_cast<float>(bits[k / 4] >> (k % 4 * 8) & 255);
      const float noisy = value[at + k] + s.noise * (byte * (1.f / 127.5f) - 1);
      to.pixels[at + k] = static_cast<std::uint8_t>(std::clamp(noisy, 0.f, 1.f) * 255 + .5f);
    }
  }
}

}  // namespace hpcdl::data
