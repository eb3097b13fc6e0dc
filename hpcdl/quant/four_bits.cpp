#include "hpcdl/quant/four_bits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/quant/block_codec.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/compensations.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/rounding_sum.h"

namespace hpcdl::quant {
namespace {

constexpr std::int64_t kBlock = 64, kScales = 256;

/// The index of the nearest of ascending values: the number of middles below x / largest.
int code_of(std::span<const float> middles, float x, float largest) {
  constexpr float kLeast = 1e-38f;  // the divisor of a block of zeros
  const float part = std::clamp(x * (1 / std::max(largest, kLeast)), -1.0f, 1.0f);
  return static_cast<int>(std::ranges::lower_bound(middles, part) - middles.begin());
}

/// The values of a table in ascending order, those of equal codes by code, and the middles between them, in f32.
struct Steps {
  std::array<int, 16> codes;
  std::array<float, 15> middles;

  constexpr explicit Steps(const float (&values)[16]) : codes{}, middles{} {
    std::iota(codes.begin(), codes.end(), 0);
    std::ranges::sort(codes, [&](int a, int b) { return values[a] != values[b] ? values[a] < values[b] : a < b; });
    for (std::size_t i = 0; i < middles.size(); ++i) middles[i] = (values[codes[i]] + values[codes[i + 1]]) / 2;
  }
  /// Of the value nearest to x in a block of this scale.
  int code(float x, float scale) const { return codes[static_cast<std::size_t>(code_of(middles, x, scale))]; }
};
const Steps& steps_of(QuantFormat format) {
  static constexpr Steps kNf4{kNf4Values}, kFp4{kFp4Values};
  return &four_bit_values(format) == &kFp4Values ? kFp4 : kNf4;
}

float largest_of(const float* x, std::int64_t n) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

/// The scale of a block of 64 that minimises its weighted squared error, near its largest magnitude.
float searched_scale(const Steps& steps, QuantFormat format, const float* x, const float* importance) {
  const float largest = largest_of(x, kBlock);
  const auto& values = four_bit_values(format);
  double least = std::numeric_limits<double>::infinity();
  float best = largest;
  for (int percent = 105; percent >= 70; percent -= percent == 105 ? 5 : 2) {
    const float scale = largest * static_cast<float>(percent) / 100;
    double error = 0;
    for (int i = 0; i < kBlock; ++i) {
      const double d = static_cast<double>(x[i]) - static_cast<double>(values[steps.code(x[i], scale)] * scale);
      error += d * d * importance[i];
    }
    if (error < least) least = error, best = scale;
  }
  return best;
}

/// Codes of a block of 64, two in a byte; returns its scale.
float quantize_block(const Steps& steps, QuantFormat format, const float* x, const float* importance,
                     std::uint8_t* codes) {
  const float largest = importance ? searched_scale(steps, format, x, importance) : largest_of(x, kBlock);
  const auto code = [&](int i) { return steps.code(x[i], largest); };
  for (int i = 0; i < kBlock; i += 2) codes[i / 2] = static_cast<std::uint8_t>(code(i) << 4 | code(i + 1));
  return largest;
}

/// Replaces scales by their codes.
void quantize_scales(QuantTensors& q, const QuantParts<Spec>& specs, const Tensor& scales) {
  const auto* s = scales.ptr<float>();
  const auto count = scales.size();
  q.scale = OwnedTensor(specs.scale), q.outer = OwnedTensor(specs.outer), q.table = OwnedTensor(specs.table);
  const double sum = std::accumulate(s, s + count, 0.0);
  const auto mean = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0f;
  auto* table = q.table.tensor.ptr<float>();
  std::ranges::copy(dynamic_map(), table);
  table[256] = mean;
  std::array<float, 255> between;
  for (std::size_t i = 0; i < between.size(); ++i) between[i] = (table[i] + table[i + 1]) / 2;
  std::vector<float> less(static_cast<std::size_t>(kScales));
  for (std::int64_t first = 0; first < count; first += kScales) {
    const auto n = std::min(kScales, count - first);
    for (std::int64_t i = 0; i < n; ++i) less[static_cast<std::size_t>(i)] = s[first + i] - mean;
    const float largest = largest_of(less.data(), n);
    q.outer.tensor.ptr<float>()[first / kScales] = largest;
    for (std::int64_t i = 0; i < n; ++i)
      q.scale.tensor.ptr<std::uint8_t>()[first + i] =
          static_cast<std::uint8_t>(code_of(between, less[static_cast<std::size_t>(i)], largest));
  }
}

float scale_of(const QuantParts<View>& q, std::int64_t block) {
  if (!q.table) return q.scale.ptr<float>()[block];
  const auto* table = q.table.ptr<float>();
  return table[q.scale.ptr<std::uint8_t>()[block]] * q.outer.ptr<float>()[block / kScales] + table[256];
}

class FourBitRounder final : public Rounder {
 public:
  explicit FourBitRounder(const QuantMatrix& w) : w_(w), k_(w.k()), steps_(steps_of(w.format)) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const auto at = row * k_ + column;
    const float scale = scale_of(w_.parts, at / kBlock);
    const int code = steps_.code(v, scale);
    auto& byte = const_cast<std::uint8_t&>(w_.parts.codes.ptr<std::uint8_t>()[at / 2]);
    byte = static_cast<std::uint8_t>(at % 2 == 0 ? (byte & 0x0f) | code << 4 : (byte & 0xf0) | code);
    return four_bit_values(w_.format)[code] * scale;
  }

 private:
  QuantMatrix w_;
  std::int64_t k_;
  const Steps& steps_;
};

}  // namespace

const std::array<float, 256>& dynamic_map() {
  static const auto map = [] {
    std::array<float, 256> values;
    std::size_t count = 0;
    for (int exponent = 0; exponent < 7; ++exponent) {
      const int parts = 1 << exponent;  // of the range from 0.1 to 1, each with its middle
      const float step = (1.0f - 0.1f) / static_cast<float>(parts);
      const auto boundary = [&](int i) {  // from the nearer end, as torch.linspace computes it
        return i < (parts + 1) / 2 ? 0.1f + step * static_cast<float>(i) : 1.0f - step * static_cast<float>(parts - i);
      };
      for (int i = 0; i < parts; ++i) {
        const float middle = (boundary(i) + boundary(i + 1)) / 2;
        const float value = static_cast<float>(std::pow(10.0, exponent - 6)) * middle;
        values[count++] = value, values[count++] = -value;
      }
    }
    values[count++] = 0, values[count++] = 1;
    std::ranges::sort(values);
    return values;
  }();
  return map;
}

QuantTensors quantize_four_bits(Pool& pool, const View& w, QuantFormat format, bool transposed,
                                nn::RoundingError* error, std::string_view name, std::span<const float> importance) {
  const FloatRows rows(w, transposed, name);
  require_fit(nf4_codec, name, rows.k(), {});
  const auto specs = quant_parts(format, rows.n(), rows.k());
  const Steps& steps = steps_of(format);
  const std::int64_t blocks = rows.k() / kBlock;
  QuantTensors q;
  q.codes = OwnedTensor(specs.codes);
  OwnedTensor scales({{rows.n(), blocks}, DType::f32});
  auto* codes = q.codes.tensor.ptr<std::uint8_t>();
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    for (std::int64_t b = 0; b < blocks; ++b)
      scales.tensor.ptr<float>()[r * blocks + b] =
          quantize_block(steps, format, x + b * kBlock, importance.empty() ? nullptr : importance.data() + b * kBlock,
                         codes + (r * blocks + b) * (kBlock / 2));
  });
  if (specs.table) quantize_scales(q, specs, scales.tensor);
  else q.scale = std::move(scales);
  const QuantParts<View> parts{q.codes.tensor, q.scale.tensor, q.outer.tensor, q.table.tensor};
  if (error)
    *error = rounding_error(pool, rows, [&](std::int64_t r, std::int64_t k) {
      const auto at = r * rows.k() + k;
      const int byte = codes[at / 2];
      return four_bit_values(format)[at % 2 == 0 ? byte >> 4 : byte & 15] * scale_of(parts, at / kBlock);
    });
  return q;
}

namespace {

template <QuantFormat plain, QuantFormat nested> struct FourBitCodec : BlockCodec<plain, nested> {
  static Compensation::Parts quantize(Pool& pool, const View& w, const nn::CodecOptions& o, bool transposed,
                                      nn::RoundingError& error, std::string_view name) {
    return quantize_source(pool, {w, transposed, name}, o, error);
  }
  static Compensation::Parts quantize_source(Pool& pool, const MatrixSource& s, const nn::CodecOptions& o,
                                             nn::RoundingError& error) {
    auto q = quantize_four_bits(pool, s.w, o.nested ? nested : plain, s.transposed, &error, s.name, s.importance);
    return {std::move(q.codes), std::move(q.scale), std::move(q.outer), std::move(q.table)};
  }
  static std::unique_ptr<Rounder> rounder(const Compensation::Parts& parts, const nn::CodecOptions& o) {
    return std::make_unique<FourBitRounder>(
        QuantMatrix{o.nested ? nested : plain, {parts[0].tensor, parts[1].tensor, parts[2].tensor, parts[3].tensor}});
  }
};
using Nf4 = FourBitCodec<QuantFormat::nf4, QuantFormat::nf4_double>;
using Fp4 = FourBitCodec<QuantFormat::fp4, QuantFormat::fp4_double>;

}  // namespace

const nn::Codec nf4_codec{
    .name = "nf4",
    .bits = 4,
    .block = kBlock,
    .names = {{{".nf4", ".nf4"}, {".scale", ".nf4_scale"}, {".outer", ".nf4_outer"}, {".table", ".nf4_table"}}},
    .gradients = true,
    .specs = Nf4::specs,
    .multiply = Nf4::multiply,
    .rows = Nf4::rows,
    .quantize = Nf4::quantize,
};
const Compensation nf4_compensation{.codec = &nf4_codec, .quantize = Nf4::quantize_source, .rounder = Nf4::rounder};

const nn::Codec fp4_codec{
    .name = "fp4",
    .bits = 4,
    .block = kBlock,
    .names = {{{".fp4", ".fp4"}, {".scale", ".fp4_scale"}, {".outer", ".fp4_outer"}, {".table", ".fp4_table"}}},
    .gradients = true,
    .specs = Fp4::specs,
    .multiply = Fp4::multiply,
    .rows = Fp4::rows,
    .quantize = Fp4::quantize,
};
const Compensation fp4_compensation{.codec = &fp4_codec, .quantize = Fp4::quantize_source, .rounder = Fp4::rounder};

}  // namespace hpcdl::quant
