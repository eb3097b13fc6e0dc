#include "hpcdl/ops/fp8_layer/fp8_layer.h"

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kStep = 16;  // what tensor cores read of a row at a time

/// A cast and its scales, of `rows` rows or of the tensor.
void require_cast(std::string_view what, const Spec& q, const Spec& scale, const Shape& shape, bool absent) {
  if (absent && q.size() == 0) return;
  require_spec(Fp8Layer::name, what, q, {shape, DType::f8_e4m3});
  const std::int64_t rows = shape.size() / shape[-1];
  require(scale.dtype == DType::f32 && (scale.shape == Shape{1} || scale.shape == Shape{rows}), Fp8Layer::name,
          "scales of {} must be F32 (1) or ({}), got {}", what, rows, to_string(scale));
}

}  // namespace

Spec Fp8Layer::infer(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Spec& qx,
                     const Spec& sx, const Spec& qxt, const Spec& sxt, const Spec& qw, const Spec& sw, const Spec& qwt,
                     const Spec& swt, const Spec& history, const Spec& amax_x, const Spec& amax_w, const Args& a) {
  const Spec y = linear_spec(name, x, w, bias, residual, {.conv1d = a.conv1d});
  const std::int64_t k = x[-1], m = x.size() / k, n = y[-1];
  require(m % kStep == 0 && k % kStep == 0 && n % kStep == 0, name,
          "rows of x, inputs and outputs must be multiples of {}, got {}, {} and {}", kStep, m, k, n);
  require(a.scaling == Fp8Scaling::tensor || a.scaling == Fp8Scaling::row, name,
          "scales can be of the tensor or of its rows");
  require_cast("qx", qx, sx, x.shape, false);
  require_cast("qxt", qxt, sxt, {k, m}, true);
  require_cast("qw", qw, sw, {n, k}, false);
  require_cast("qwt", qwt, swt, {k, n}, true);
  require(!history || (a.layer >= 0 && is_amax_history(history, 3 * std::int64_t{a.layer} + 2)), name,
          "expected a history ({}, T) with three columns of layer {}, got {}", 1 + kAmaxSteps, a.layer,
          to_string(history));
  for (const auto& amax : {amax_x, amax_w})
    require(amax.dtype == DType::f32 && amax.shape.rank() == 1, name, "magnitudes must be F32 (n), got {}",
            to_string(amax));
  return y;
}

/// A product; what only backward reads does not count.
Cost Fp8Layer::cost(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Spec& qx, const Spec&,
                    const Spec& qxt, const Spec& sxt, const Spec& qw, const Spec&, const Spec& qwt, const Spec& swt,
                    const Spec& history, const Spec& amax_x, const Spec& amax_w, const Args& a) {
  Cost c = Fp8Gradient::cost(qx, qw);
  for (const auto* s : {&x, &w, &qxt, &sxt, &qwt, &swt, &history, &amax_x, &amax_w})
    c.reads -= static_cast<double>(s->bytes());
  if (a.addend) c.reads -= static_cast<double>(bias.bytes() + residual.bytes());
  return c;
}

void Fp8Layer::forward(Stream& s, Tensor y, View, View, View bias, View residual, View qx, View sx, View, View, View qw,
                       View sw, View, View, View, View, View, const Args& a) {
  if (a.addend) bias = residual = View();
  Fp8Linear::forward(s, y, Tensor(), qx, qw, sx, sw, bias, residual, {.out = y.dtype()});
}

Cost Fp8Gradient::cost(const Spec& a, const Spec& b) {
  return {.operations = 2 * static_cast<double>(a.size()) * static_cast<double>(b[0]), .unit = Unit::i8};
}

void Fp8Gradient::check_record(const RawRecord& r) {
  r.require_count(5);
  const Spec d = r.spec(0);
  const auto y =
      Fp8Linear::infer(r.contiguous(1), r.contiguous(2), r.contiguous(3), r.contiguous(4), {}, {}, {.out = d.dtype})[0];
  require_spec(name, "its result", d, y);
}

void Fp8Gradient::run(Stream& s, const Grad* t, const void*) {
  Fp8Linear::forward(s, t[0], Tensor(), t[1], t[2], t[3], t[4], {}, t[0].accumulate() ? View(t[0]) : View(),
                     {.out = t[0].dtype()});
}

void Fp8LayerSums::check_record(const RawRecord& r) {
  r.require_count(3);
  const Spec dy = require_float(name, r.contiguous(2), "dy");
  if (const Spec dbias = r.contiguous(0)) require_shape(name, "dbias", require_float(name, dbias, "dbias"), {dy[-1]});
  if (const Spec dresidual = r.contiguous(1)) require_spec(name, "dresidual", dresidual, dy);
}

void Fp8LayerSums::run(Stream& s, const Grad* t, const void*) {
  Linear::backward(s, {}, {}, t[0], t[1], {}, {}, t[2], {});
}

}  // namespace hpcdl
