#pragma once

#include <string_view>
#include <type_traits>
#include <vector>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::contract {

/// E experts of F hidden values; every row has chosen two.
inline void expert_mlp_cases(auto& to) {
  to.add_forward(
      "expert_mlp", "RxCxFxE", {"base RC", "x RC", "weights R2 f32", "experts R2<E"},
      {{512, 2048, 768, 8}, {1, 2048, 768, 8}}, [](const auto& v) {
        using V = std::remove_cvref_t<decltype(v[0])>;
        const auto matrix = [&](const char* name, std::int64_t e, char rows, char columns) {
          Matrix<V> m;
          m.w = v.graph.input(fmt::format("{}.{}", name, e), {{v.dim(rows), v.dim(columns)}, v[1].spec().dtype});
          return m;
        };
        std::vector<ExpertMatrices<V>> mlps;
        for (std::int64_t e = 0; e < v.dim('E'); ++e)
          mlps.push_back({matrix("gate", e, 'F', 'C'), matrix("up", e, 'F', 'C'), matrix("down", e, 'C', 'F')});
        return expert_mlp(v[0], v[1], v[2], v[3], std::span<const ExpertMatrices<V>>(mlps), {.constant_weights = true});
      });
}

}  // namespace hpcdl::contract
