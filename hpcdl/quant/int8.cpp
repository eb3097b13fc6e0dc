#include "hpcdl/quant/int8.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/quant/block_codec.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/compensations.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/rounding_sum.h"

namespace hpcdl::quant {

QuantTensors quantize_int8(Pool& pool, const View& w, bool transposed, nn::RoundingError* error,
                           std::string_view name) {
  const FloatRows rows(w, transposed, name);
  require_fit(int8_codec, name, rows.k(), {});
  const auto specs = quant_parts(QuantFormat::int8, rows.n(), rows.k());
  QuantTensors q{.codes = OwnedTensor(specs.codes), .scale = OwnedTensor(specs.scale), .outer = {}, .table = {}};
  auto* codes = q.codes.tensor.ptr<std::int8_t>();
  auto* scales = q.scale.tensor.ptr<float>();
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    float largest = 0;
    for (std::int64_t i = 0; i < rows.k(); ++i) largest = std::max(largest, std::fabs(x[i]));
    const float per_step = largest > 0x1p-118f ? 127 / largest : 0;  // below it, the quotient would overflow
    scales[r] = per_step > 0 ? largest : 0;
    for (std::int64_t i = 0; i < rows.k(); ++i)
      codes[r * rows.k() + i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(x[i] * per_step), -127.0f, 127.0f));
  });
  if (error)
    *error = rounding_error(pool, rows, [&](std::int64_t r, std::int64_t k) {
      return static_cast<float>(codes[r * rows.k() + k]) * scales[r] * (1.0f / 127);
    });
  return q;
}

namespace {

class Int8Rounder final : public Rounder {
 public:
  Int8Rounder(const Tensor& codes, const View& scales) : codes_(codes), scales_(scales) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const float scale = scales_.ptr<float>()[row];
    const auto code =
        static_cast<std::int8_t>(scale > 0 ? std::clamp(std::nearbyint(v * (127 / scale)), -127.0f, 127.0f) : 0);
    codes_.ptr<std::int8_t>()[row * codes_[1] + column] = code;
    return static_cast<float>(code) * scale * (1.0f / 127);
  }

 private:
  Tensor codes_;
  View scales_;
};

Compensation::Parts to_int8(Pool& pool, const MatrixSource& s, const nn::CodecOptions&, nn::RoundingError& error) {
  auto q = quantize_int8(pool, s.w, s.transposed, &error, s.name);
  return {std::move(q.codes), std::move(q.scale)};
}

}  // namespace

const nn::Codec int8_codec{
    .name = "int8",
    .bits = 8,
    .block = 32,
    .names = {{{".int8", ".int8"}, {".scale", ".int8_scale"}}},
    .gradients = true,
    .specs = [](std::int64_t out, std::int64_t in,
                const nn::CodecOptions&) { return BlockCodec<QuantFormat::int8>::specs(out, in, {}); },
    .multiply = BlockCodec<QuantFormat::int8>::multiply,
    .rows = BlockCodec<QuantFormat::int8>::rows,
    .quantize = [](Pool& pool, const View& w, const nn::CodecOptions& o, bool transposed, nn::RoundingError& error,
                   std::string_view name) { return to_int8(pool, {w, transposed, name}, o, error); },
};

const Compensation int8_compensation{
    .codec = &int8_codec,
    .quantize = to_int8,
    .rounder = [](const Compensation::Parts& parts, const nn::CodecOptions&) -> std::unique_ptr<Rounder> {
      return std::make_unique<Int8Rounder>(parts[0].tensor, parts[1].tensor);
    },
};

}  // namespace hpcdl::quant
