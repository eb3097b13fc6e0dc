#include "hpcdl/ops/mx4_layer/mx4_layer.h"

#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

bool valid(Mx4Method m) { return m == Mx4Method::quest || m == Mx4Method::plain; }

/// x (..., K), or a matrix whose rows are grouped.
const Spec& require_groups(std::string_view op, const Spec& x, bool along_rows) {
  require_float(op, x, "x");
  const std::int64_t cols = x[-1], rows = cols > 0 ? x.size() / cols : 0, n = along_rows ? rows : cols;
  require(n % kMxBlock == 0, op, "{} must be groups of {}, got {} of {}", along_rows ? "rows" : "columns", kMxBlock, n,
          to_string(x));
  return x;
}

/// Of one step. The step counts in the upper half, as in Dropout::draws().
Rng rng_of(const StepParams& s, std::uint64_t stream) {
  return {s.seed, stream ^ (static_cast<std::uint64_t>(s.step) << 32)};
}

void round(Stream& s, const Mx4Call& c) {
  on(s, [&](auto isa, Pool& pool) { cpu::mx4_round(isa, pool, c); });
}

}  // namespace

Spec Mx4Project::infer(const Spec& x, const Args& a) {
  require(valid(a.method), name, "there is no such method");
  return require_groups(name, x, a.along_rows);
}

void Mx4Project::forward(Stream& s, Tensor q, View x, const Args& a) {
  round(s, {.q = Grad(q, Write::overwrite), .x = x, .method = a.method, .along_rows = a.along_rows});
}

void Mx4Project::backward(Stream& s, Grad dx, View x, View dq, const Args& a) {
  round(s, {.q = dx, .x = x, .dq = dq, .method = a.method, .along_rows = a.along_rows});
}

Spec Mx4Layer::infer(const Spec& qx, const Spec& qw, const Spec& bias, const Spec& residual, const Args& a) {
  require(valid(a.method) && a.part >= 0, name, "its arguments are not valid");
  const Spec y = linear_spec(name, qx, qw, bias, residual, {.conv1d = a.conv1d});
  const std::int64_t k = qx[-1], m = k > 0 ? qx.size() / k : 0, n = y[-1];
  require(m % kMxBlock == 0 && k % kMxBlock == 0 && n % kMxBlock == 0, name,
          "rows of x, inputs and outputs must be multiples of {}, got {}, {} and {}", kMxBlock, m, k, n);
  return y;
}

void Mx4Layer::forward(Stream& s, Tensor y, View qx, View qw, View bias, View residual, const Args& a) {
  Linear::forward(s, y, qx, qw, bias, residual, {.conv1d = a.conv1d});
}

void Mx4Round::check_record(const RawRecord& r) {
  const auto& a = r.args<Args>();
  r.require_count(2);
  require(valid(a.method) && valid_args(a.along_rows) && a.part >= 0, name, "its arguments are not valid");
  require_shape(name, "q", require_float(name, r.contiguous(0), "q"),
                require_groups(name, r.contiguous(1), a.along_rows).shape);
}

void Mx4Round::run(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  round(s, {.q = t[0],
            .x = t[1],
            .method = a.method,
            .along_rows = a.along_rows,
            .at_random = a.method == Mx4Method::quest,
            .signs = rng_of(s.params(), a.signs),
            .draws = rng_of(s.params(), a.draws),
            .first = a.part * t[1].size()});
}

void Mx4Gradient::check_record(const RawRecord& r) {
  const auto& a = r.args<Args>();
  r.require_count(3);
  require(valid_args(a.of_w) && valid_args(a.conv1d), name, "its arguments are not valid");
  const Spec d = require_float(name, r.spec(0), "gradient"), dy = require_float(name, r.contiguous(2), "dy");
  const Spec &x = a.of_w ? r.contiguous(1) : d, &w = a.of_w ? d : r.contiguous(1);
  require_shape(name, "dy", dy, linear_spec(name, x, w, {}, {}, {.conv1d = a.conv1d}).shape);
}

void Mx4Gradient::run(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  const View dy = t[2];
  // Without dW the product reads no x, but for its shape and the type of products.
  if (a.of_w) Linear::backward(s, {}, t[0], {}, {}, t[1], {}, dy, {.conv1d = a.conv1d});
  else Linear::backward(s, t[0], {}, {}, {}, View(nullptr, {t[0].shape(), dy.dtype()}), t[1], dy, {.conv1d = a.conv1d});
}

}  // namespace hpcdl
