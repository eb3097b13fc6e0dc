#include "hpcdl/quant/float_codes.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/f8.h"
#include "hpcdl/core/mx.h"
#include "hpcdl/quant/block_codec.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/compensations.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/rounding_sum.h"

namespace hpcdl::quant {
namespace {

float largest_in(const float* x, std::int64_t n) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

/// x / scale, the scale a power of two from 2^-127 on: exact, also where 1 / scale is not finite.
float unscaled(float x, std::uint8_t scale) { return std::ldexp(x, 127 - int{scale}); }

double squared_error(const float* x, std::uint8_t scale) {
  double sum = 0;
  for (int i = 0; i < kMxBlock; ++i) {
    const double d =
        static_cast<double>(x[i]) - static_cast<double>(kE2m1Values[to_e2m1(unscaled(x[i], scale))] * from_e8m0(scale));
    sum += d * d;
  }
  return sum;
}

class Fp8Rounder final : public Rounder {
 public:
  Fp8Rounder(const Tensor& codes, const View& scales) : codes_(codes), scales_(scales) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const float scale = scales_.ptr<float>()[row];
    const auto code = to_f8<f8_e4m3>(scale > 0 ? v / scale : 0);
    codes_.ptr<std::uint8_t>()[row * codes_[1] + column] = code.bits;
    return from_f8(code) * scale;
  }

 private:
  Tensor codes_;
  View scales_;
};

class Mxfp4Rounder final : public Rounder {
 public:
  Mxfp4Rounder(const Tensor& codes, const View& scales) : codes_(codes), scales_(scales) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const auto scale = scales_.ptr<std::uint8_t>()[row * scales_[1] + column / kMxBlock];
    const int code = to_e2m1(unscaled(v, scale));
    auto& byte = codes_.ptr<std::uint8_t>()[row * codes_[1] + column / 2];
    byte = static_cast<std::uint8_t>(column % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
    return kE2m1Values[code] * from_e8m0(scale);
  }

 private:
  Tensor codes_;
  View scales_;
};

/// Rounds every weight by itself, once `begin_row(row, its weights)` has stored the scales of the row.
template <class Begin>
void round_rows(Pool& pool, const FloatRows& rows, Rounder& rounder, nn::RoundingError* error, Begin begin_row) {
  const auto k = rows.k();
  const OwnedTensor values({{rows.n(), k}, DType::f32});
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    begin_row(r, x);
    for (std::int64_t i = 0; i < k; ++i) values.tensor.ptr<float>()[r * k + i] = rounder.round(r, i, x[i]);
  });
  if (error)
    *error = rounding_error(pool, rows,
                            [&](std::int64_t r, std::int64_t i) { return values.tensor.ptr<float>()[r * k + i]; });
}

QuantTensors parts_of(QuantFormat format, const FloatRows& rows) {
  const auto specs = quant_parts(format, rows.n(), rows.k());
  return {.codes = OwnedTensor(specs.codes), .scale = OwnedTensor(specs.scale), .outer = {}, .table = {}};
}

}  // namespace

QuantTensors quantize_fp8(Pool& pool, const View& w, bool transposed, nn::RoundingError* error, std::string_view name) {
  const FloatRows rows(w, transposed, name);
  require_fit(fp8_codec, name, rows.k(), {});
  auto q = parts_of(QuantFormat::fp8, rows);
  Fp8Rounder rounder(q.codes.tensor, q.scale.tensor);
  round_rows(pool, rows, rounder, error, [&](std::int64_t r, const float* x) {
    const float largest = largest_in(x, rows.k());
    q.scale.tensor.ptr<float>()[r] = largest > 0 ? f8_scale<f8_e4m3>(largest) : 0;
  });
  return q;
}

QuantTensors quantize_mxfp4(Pool& pool, const View& w, bool search, bool transposed, nn::RoundingError* error,
                            std::string_view name) {
  const FloatRows rows(w, transposed, name);
  require_fit(mxfp4_codec, name, rows.k(), {});
  auto q = parts_of(QuantFormat::mxfp4, rows);
  const std::int64_t blocks = rows.k() / kMxBlock;
  Mxfp4Rounder rounder(q.codes.tensor, q.scale.tensor);
  round_rows(pool, rows, rounder, error, [&](std::int64_t r, const float* x) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      auto scale = e8m0_scale(largest_in(x + b * kMxBlock, kMxBlock));
      const auto twice = static_cast<std::uint8_t>(scale + 1);
      if (search && squared_error(x + b * kMxBlock, twice) < squared_error(x + b * kMxBlock, scale)) scale = twice;
      q.scale.tensor.ptr<std::uint8_t>()[r * blocks + b] = scale;
    }
  });
  return q;
}

namespace {

using Fp8Codec = BlockCodec<QuantFormat::fp8>;
using Mxfp4Codec = BlockCodec<QuantFormat::mxfp4>;

Compensation::Parts to_fp8(Pool& pool, const MatrixSource& s, const nn::CodecOptions&, nn::RoundingError& error) {
  auto q = quantize_fp8(pool, s.w, s.transposed, &error, s.name);
  return {std::move(q.codes), std::move(q.scale)};
}
Compensation::Parts to_mxfp4(Pool& pool, const MatrixSource& s, const nn::CodecOptions& o, nn::RoundingError& error) {
  auto q = quantize_mxfp4(pool, s.w, o.search, s.transposed, &error, s.name);
  return {std::move(q.codes), std::move(q.scale)};
}

}  // namespace

const nn::Codec fp8_codec{
    .name = "fp8",
    .bits = 8,
    .block = 32,
    .names = {{{".fp8", ".fp8"}, {".scale", ".fp8_scale"}}},
    .gradients = true,
    .specs = [](std::int64_t out, std::int64_t in, const nn::CodecOptions&) { return Fp8Codec::specs(out, in, {}); },
    .multiply = Fp8Codec::multiply,
    .rows = Fp8Codec::rows,
    .quantize = [](Pool& pool, const View& w, const nn::CodecOptions& o, bool transposed, nn::RoundingError& error,
                   std::string_view name) { return to_fp8(pool, {w, transposed, name}, o, error); },
};
const Compensation fp8_compensation{
    .codec = &fp8_codec,
    .quantize = to_fp8,
    .rounder = [](const Compensation::Parts& parts, const nn::CodecOptions&) -> std::unique_ptr<Rounder> {
      return std::make_unique<Fp8Rounder>(parts[0].tensor, parts[1].tensor);
    },
};

const nn::Codec mxfp4_codec{
    .name = "mxfp4",
    .bits = 4,
    .block = kMxBlock,
    .names = {{{".mxfp4", ".mxfp4"}, {".scale", ".mxfp4_scale"}}},
    .gradients = true,
    .specs = [](std::int64_t out, std::int64_t in, const nn::CodecOptions&) { return Mxfp4Codec::specs(out, in, {}); },
    .multiply = Mxfp4Codec::multiply,
    .rows = Mxfp4Codec::rows,
    .quantize = [](Pool& pool, const View& w, const nn::CodecOptions& o, bool transposed, nn::RoundingError& error,
                   std::string_view name) { return to_mxfp4(pool, {w, transposed, name}, o, error); },
};
const Compensation mxfp4_compensation{
    .codec = &mxfp4_codec,
    .quantize = to_mxfp4,
    .rounder = [](const Compensation::Parts& parts, const nn::CodecOptions&) -> std::unique_ptr<Rounder> {
      return std::make_unique<Mxfp4Rounder>(parts[0].tensor, parts[1].tensor);
    },
};

}  // namespace hpcdl::quant
