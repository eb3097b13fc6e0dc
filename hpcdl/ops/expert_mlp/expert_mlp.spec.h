#pragma once

#include <cmath>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::contract {

/// y, and gate and up of each choice, of dense experts without biases. Inputs are those of the op.
inline void expert_mlp_reference(Outputs out, Inputs in, const ExpertMlp::Args& a) {
  const Values &base = in[0], &x = in[1], &weights = in[2], &experts = in[3];
  const auto K = x.dim(-1), rows = K > 0 ? x.size() / K : 0, count = weights.dim(-1);
  for (std::int64_t i = 0; base && i < x.size(); ++i) out[0].add(i, base[i]);
  for (std::int64_t choice = 0; choice < rows * count; ++choice) {
    if (experts[choice] < 0) continue;
    const auto row = choice / count,
               first = ExpertMlp::kFixed + static_cast<std::int64_t>(experts[choice]) * ExpertMlp::kOfExpert;
    const auto matrix = [&](std::int64_t i) -> const Values& { return in[static_cast<std::size_t>(first + 4 * i)]; };
    const Values &gate = matrix(0), &up = matrix(1), &down = matrix(2);
    const auto N = gate.dim(0);
    for (std::int64_t n = 0; n < N; ++n) {
      Sum g, u;
      for (std::int64_t k = 0; k < K; ++k)
        g.add(x[row * K + k] * gate[n * K + k]), u.add(x[row * K + k] * up[n * K + k]);
      g.put(out[1], choice * N + n), u.put(out[2], choice * N + n);
      const double act =
          a.gate == Swiglu::Gate::silu ? g.value / (1 + std::exp(-g.value)) : activated(Activation::gelu_tanh, g.value);
      for (std::int64_t k = 0; k < K; ++k) out[0].add(row * K + k, weights[choice] * act * u.value * down[k * N + n]);
    }
  }
}

/// E experts of F hidden values; every row has chosen two.
inline void expert_mlp_cases(auto& to) {
  const auto record = [](const auto& v, bool trained) {
    using V = std::remove_cvref_t<decltype(v[0])>;
    const auto matrix = [&](const char* name, std::int64_t e, char rows, char columns) {
      const auto full = fmt::format("{}.{}", name, e);
      const Spec spec{{v.dim(rows), v.dim(columns)}, v[1].spec().dtype};
      Matrix<V> m;
      m.w = trained ? v.graph.differentiable_input(full, spec) : v.graph.input(full, spec);
      return m;
    };
    std::vector<ExpertMatrices<V>> mlps;
    for (std::int64_t e = 0; e < v.dim('E'); ++e)
      mlps.push_back({matrix("gate", e, 'F', 'C'), matrix("up", e, 'F', 'C'), matrix("down", e, 'C', 'F')});
    return expert_mlp(v[0], v[1], v[2], v[3], std::span<const ExpertMatrices<V>>(mlps), {.constant_weights = !trained});
  };
  to.add("expert_mlp", "RxCxFxE", {"base RC", "x RC", "weights R2 master", "experts R2<E"},
         {{512, 2048, 768, 8}, {8192, 1024, 2048, 8}}, [record](const auto& v) { return record(v, true); });
  to.add_forward("expert_mlp+few", "RxCxFxE", {"base RC", "x RC", "weights R2 f32", "experts R2<E"},
                 {{1, 2048, 768, 8}}, [record](const auto& v) { return record(v, false); });
}

}  // namespace hpcdl::contract
