#include "hpcdl/quant/rotated.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <vector>

#include "hpcdl/ops/quant_linear/rotated_values.h"
#include "hpcdl/ops/quant_linear/rotation.h"
#include "hpcdl/quant/block_codec.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/compensations.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/rounding_sum.h"

namespace hpcdl::quant {
namespace {

constexpr float kTernaryValues[3] = {-1, 0, 1};

/// By code, in ascending order.
std::span<const float> values_of(QuantFormat format) {
  return format == QuantFormat::rot3 ? std::span(kRot3Values).first(8) : std::span(kTernaryValues);
}

/// The index of the nearest of ascending values; the upper one of two.
int nearest(std::span<const float> values, float v) {
  int code = 0;
  while (code + 1 < std::ssize(values) &&
         v >= (values[static_cast<std::size_t>(code)] + values[static_cast<std::size_t>(code) + 1]) / 2)
    ++code;
  return code;
}

struct Fitted {
  float scale = 0;
  double error = 0;
};

/// The scale with the smallest error near `scale`, for 256 numbers.
Fitted fit(std::span<const float> values, const float* z, float scale) {
  Fitted best{0, 0};
  for (int i = 0; i < kRotated; ++i) best.error += static_cast<double>(z[i]) * static_cast<double>(z[i]);
  for (int turn = 0; turn < 6 && scale > 0; ++turn) {
    double error = 0, zv = 0, vv = 0;
    for (int i = 0; i < kRotated; ++i) {
      const double v = static_cast<double>(values[static_cast<std::size_t>(nearest(values, z[i] / scale))]),
                   x = static_cast<double>(z[i]);
      const double d = x - v * static_cast<double>(scale);
      error += d * d, zv += x * v, vv += v * v;
    }
    if (error >= best.error) break;
    best = {scale, error};
    scale = vv > 0 ? static_cast<float>(zv / vv) : 0;
  }
  return best;
}

float scale_of(std::span<const float> values, const float* z) {
  constexpr float kLeast = 0x1p-118f;  // below it, quotients would overflow
  double squares = 0;
  for (int i = 0; i < kRotated; ++i) squares += static_cast<double>(z[i]) * static_cast<double>(z[i]);
  const auto rms = static_cast<float>(std::sqrt(squares / kRotated));
  if (rms < kLeast) return 0;
  if (!std::isfinite(rms)) return rms;
  Fitted best{0, squares};
  for (const float part : {0.8f, 0.9f, 1.0f, 1.1f, 1.25f}) {
    const auto found = fit(values, z, rms * part);
    if (found.error < best.error) best = found;
  }
  return best.scale;
}

void rotate_row(double* row, std::int64_t k) {
  for (std::int64_t i = 0; i < k; i += kRotated) rotate(row + i);
}
void rotate_row_back(double* row, std::int64_t k) {
  for (std::int64_t i = 0; i < k; i += kRotated) rotate_back(row + i);
}

constexpr int kPowers[] = {1, 3, 9, 27, 81};

class RotatedRounder final : public Rounder {
 public:
  RotatedRounder(QuantFormat format, const Tensor& codes, const View& scales)
      : format_(format), values_(values_of(format)), codes_(codes), scales_(scales) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const auto block = column / kRotated;
    const int i = static_cast<int>(column % kRotated);
    const float scale = scales_.ptr<float>()[row * scales_[1] + block];
    const int code = nearest(values_, scale > 0 ? v / scale : 0);
    auto* bytes = codes_.ptr<std::uint8_t>() + row * codes_[1] + block * quant_format_info(format_).block_bytes;
    if (format_ == QuantFormat::rot3) {
      put(bytes[i % 64], i / 64 * 2, 3, code & 3);
      put(bytes[64 + i % 32], i / 32, 1, code >> 2);
    } else {
      const int at = i < 240 ? i % 48 : 48 + i % 4, power = kPowers[i < 240 ? i / 48 : (i - 240) / 4];
      bytes[at] = static_cast<std::uint8_t>(bytes[at] + (code - bytes[at] / power % 3) * power);
    }
    return values_[static_cast<std::size_t>(code)] * scale;
  }

 private:
  static void put(std::uint8_t& byte, int bit, int mask, int value) {
    byte = static_cast<std::uint8_t>((byte & ~(mask << bit)) | value << bit);
  }

  QuantFormat format_;
  std::span<const float> values_;
  Tensor codes_;
  View scales_;
};

void store(QuantFormat format, const int* codes, std::uint8_t* to) {
  if (format == QuantFormat::rot_ternary) {
    std::fill_n(to, kTernaryBytes, std::uint8_t{0});
    for_ternary(
        [&](int i, int byte, int d) { to[byte] = static_cast<std::uint8_t>(to[byte] + kPowers[d] * codes[i]); });
    return;
  }
  std::fill_n(to, 96, std::uint8_t{0});
  for (int i = 0; i < kRotated; ++i) {
    to[i % 64] = static_cast<std::uint8_t>(to[i % 64] | (codes[i] & 3) << (i / 64 * 2));
    to[64 + i % 32] = static_cast<std::uint8_t>(to[64 + i % 32] | (codes[i] >> 2) << (i / 32));
  }
}

}  // namespace

QuantTensors quantize_rotated(Pool& pool, const View& w, QuantFormat format, bool transposed, nn::RoundingError* error,
                              std::string_view name) {
  const FloatRows rows(w, transposed, name);
  require_fit(format == QuantFormat::rot3 ? rot3_codec : rot_ternary_codec, name, rows.k(), {});
  const auto specs = quant_parts(format, rows.n(), rows.k());
  const auto values = values_of(format);
  const std::int64_t blocks = rows.k() / kRotated, bytes = quant_format_info(format).block_bytes;
  QuantTensors q{.codes = OwnedTensor(specs.codes), .scale = OwnedTensor(specs.scale), .outer = {}, .table = {}};
  const OwnedTensor now({{error ? rows.n() : 0, rows.k()}, DType::f32});  // what the weights have become
  std::atomic<std::int64_t> too_large{-1};
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    float z[kRotated];
    int codes[kRotated];
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::copy_n(x + b * kRotated, kRotated, z);
      rotate(z);
      const float scale = scale_of(values, z);
      if (!std::isfinite(scale)) too_large.store(r, std::memory_order_relaxed);
      q.scale.tensor.ptr<float>()[r * blocks + b] = scale;
      for (int i = 0; i < kRotated; ++i) {
        codes[i] = nearest(values, scale > 0 ? z[i] / scale : 0);
        z[i] = values[static_cast<std::size_t>(codes[i])] * scale;
      }
      store(format, codes, q.codes.tensor.ptr<std::uint8_t>() + (r * blocks + b) * bytes);
      if (!error) continue;
      rotate_back(z);
      std::copy_n(z, kRotated, now.tensor.ptr<float>() + r * rows.k() + b * kRotated);
    }
  });
  require(too_large < 0, "quant", "{}: weights of row {} are too large to be rotated: keep this tensor as it is", name,
          too_large.load());
  if (error)
    *error = rounding_error(pool, rows,
                            [&](std::int64_t r, std::int64_t k) { return now.tensor.ptr<float>()[r * rows.k() + k]; });
  return q;
}

namespace {

template <QuantFormat format>
constexpr nn::Codec rotated_codec(std::string_view called, std::string_view codes, std::string_view scale) {
  constexpr auto info = quant_format_info(format);
  using Rotated = BlockCodec<format>;
  return {
      .name = called,
      .bits = info.bits,
      .block = info.block,
      .names = {{{codes, codes}, {".scale", scale}}},
      .gradients = true,
      .specs = [](std::int64_t out, std::int64_t in, const nn::CodecOptions&) { return Rotated::specs(out, in, {}); },
      .multiply = Rotated::multiply,
      .rows = Rotated::rows,
      .quantize =
          [](Pool& pool, const View& w, const nn::CodecOptions&, bool transposed, nn::RoundingError& error,
             std::string_view name) {
            auto q = quantize_rotated(pool, w, format, transposed, &error, name);
            return nn::Codec::Parts<OwnedTensor>{std::move(q.codes), std::move(q.scale)};
          }};
}

template <QuantFormat format> constexpr Compensation rotated_compensation(const nn::Codec* codec) {
  return {.codec = codec,
          .quantize =
              [](Pool& pool, const MatrixSource& s, const nn::CodecOptions&, nn::RoundingError& error) {
                auto q = quantize_rotated(pool, s.w, format, s.transposed, &error, s.name);
                return Compensation::Parts{std::move(q.codes), std::move(q.scale)};
              },
          .rounder = [](const Compensation::Parts& parts, const nn::CodecOptions&) -> std::unique_ptr<Rounder> {
            return std::make_unique<RotatedRounder>(format, parts[0].tensor, parts[1].tensor);
          },
          .rotate = rotate_row,
          .rotate_back = rotate_row_back};
}

}  // namespace

const nn::Codec rot3_codec = rotated_codec<QuantFormat::rot3>("rot3", ".rot3", ".rot3_scale");
const nn::Codec rot_ternary_codec =
    rotated_codec<QuantFormat::rot_ternary>("rot-ternary", ".rot_ternary", ".rot_ternary_scale");

const Compensation rot3_compensation = rotated_compensation<QuantFormat::rot3>(&rot3_codec);
const Compensation rot_ternary_compensation = rotated_compensation<QuantFormat::rot_ternary>(&rot_ternary_codec);

}  // namespace hpcdl::quant
