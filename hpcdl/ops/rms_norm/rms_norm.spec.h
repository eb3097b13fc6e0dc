#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/layer_norm/layer_norm.spec.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"

namespace hpcdl::contract {

/// The weights that a norm multiplies by.
inline Values offset_weights(const Values& weight, const RmsNorm::Args& a) {
  Values w = weight;
  for (double& x : w.v) x += static_cast<double>(a.weight_offset);
  return w;
}

/// x, weight to y, rstd
inline void rms_norm_reference(Outputs out, Inputs in, const RmsNorm::Args& a) {
  const auto n = in[1].size();
  const Values weight = offset_weights(in[1], a);
  for (std::int64_t r = 0; r * n < in[0].size(); ++r) {
    const double rstd = 1 / std::sqrt(row_statistics(in[0], r, n).squares + static_cast<double>(a.eps));
    for (std::int64_t c = 0; c < n; ++c) {
      const double hat = in[0][r * n + c] * rstd, y = hat * weight[c];
      // The sum of a weight and its offset is rounded.
      const double lost = a.weight_offset != 0 ? std::fabs(hat) * (std::fabs(in[1][c]) + 1) : 0;
      out[0].set(r * n + c, y, 2 * std::fabs(y) + lost);
    }
    out[1].set(r, rstd, rstd);
  }
}

inline Contracts rms_norm_contracts() {
  auto c = of<RmsNorm>("rms_norm", "y = x / sqrt(mean(x^2) + eps) weight over the last dim", {"x", "weight"}, {"y"});
  set_norm(c, 4);
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = norm_problem(d, t, v);
    const auto eps = p.as<LayerNorm::Args>().eps;
    p.set_args(hpcdl_norm_args{eps}, RmsNorm::Args{eps});
    return p;
  };
  c.reference = with_args<RmsNorm::Args>(rms_norm_reference);

  auto b =
      backward_of(c, "rms_norm_backward", "dx = rstd (g - h mean(g h)), dweight = sum(dy h); g = dy weight, h = x rstd",
                  {"x", "weight", "rstd", "dy"}, {"dx", "dweight"});
  set_norm_backward(b);
  b.problem = [](const Dims& d, DType t, int v) {
    Problem p = norm_backward_problem(d, t, v, 1);
    const auto eps = p.as<LayerNorm::Args>().eps;
    p.set_args(hpcdl_norm_args{eps}, RmsNorm::Args{eps});
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[2].size(); ++r)
      in[2][r] = 1 / std::sqrt(row_statistics(in[0], r, in[1].size()).squares +
                               static_cast<double>(p.as<RmsNorm::Args>().eps));
  };
  b.reference = with_args<RmsNorm::Args>([](Outputs out, Inputs in, const RmsNorm::Args& a) {
    norm_backward_reference(out, in[0], offset_weights(in[1], a), nullptr, in[2], in[3]);
  });
  return {c, b};
}

inline void rms_norm_cases(auto& to) {
  to.add("rms_norm", "RxC", {"x RC", "gamma C"}, plane_shapes({1024, 768}),
         [](const auto& v) { return rms_norm(v[0], v[1]); });
  to.add("rms_norm+residual", "RxC", {"x RC", "gamma C", "residual RC"}, plane_shapes({1024, 768}),
         [](const auto& v) { return add_rms_norm(v[0], v[2], v[1])[1]; });
}

}  // namespace hpcdl::contract
