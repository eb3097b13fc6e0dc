#pragma once

#include <cstdint>
#include <vector>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/expert_exchange/expert_exchange.h"

namespace hpcdl::contract {

/// rows, row_weights, row_experts, places.
inline void expert_dispatch_reference(Outputs out, Inputs in, const ExpertDispatch::Args& a) {
  const Values &x = in[0], &weights = in[1], &experts = in[2];
  const auto K = x.dim(-1), count = experts.dim(-1), tokens = experts.size() / count, of_rank = a.experts / a.ranks,
             width = std::min(count, of_rank);
  for (std::int64_t i = 0; i < a.ranks * a.room * width; ++i) out[2].set(i, -1, 0);
  for (std::int64_t r = 0; r < a.ranks; ++r) {
    std::int64_t used = 0;
    for (std::int64_t n = 0; n < tokens; ++n) {
      std::vector<std::int64_t> choices;
      for (std::int64_t i = n * count; i < (n + 1) * count; ++i)
        if (static_cast<std::int64_t>(experts[i]) / of_rank == r) choices.push_back(i);
      if (choices.empty()) {
        out[3].set(n * a.ranks + r, ExpertDispatch::kElsewhere, 0);
        continue;
      }
      if (used == a.room) {
        out[3].set(n * a.ranks + r, ExpertDispatch::kDropped, 0);
        continue;
      }
      const auto row = r * a.room + used;
      out[3].set(n * a.ranks + r, static_cast<double>(used++), 0);
      for (std::int64_t k = 0; k < K; ++k) out[0].set(row * K + k, x[n * K + k], 0);
      for (std::int64_t m = 0; m < std::min(width, std::ssize(choices)); ++m) {
        const auto choice = choices[static_cast<std::size_t>(m)];
        out[1].set(row * width + m, weights[choice], 0);
        out[2].set(row * width + m, static_cast<double>(static_cast<std::int64_t>(experts[choice]) % of_rank), 0);
      }
    }
  }
}

inline void expert_combine_reference(Outputs out, Inputs in, const ExpertCombine::Args& a) {
  const Values &base = in[0], &parts = in[1], &places = in[2];
  const auto K = base.dim(-1), ranks = parts.dim(0), room = parts.dim(1);
  for (std::int64_t i = 0; i < base.size(); ++i) {
    if (!a.addend) out[0].add(i, base[i]);
    for (std::int64_t r = 0; r < ranks; ++r)
      if (const auto at = static_cast<std::int64_t>(places[i / K * ranks + r]); at >= 0)
        out[0].add(i, parts[(r * room + at) * K + i % K]);
  }
}

inline void expert_dropped_reference(Outputs out, Inputs in, const ExpertDropped::Args&) {
  if (in[1]) out[0].add(0, in[1][0]);
  for (std::int64_t i = 0; i < in[0].size(); ++i) out[0].add(0, in[0][i] == ExpertDispatch::kDropped ? 1 : 0);
}

inline void expert_exchange_cases(auto& to) {
  to.add("expert_exchange+dispatch", "RxKxE", {"x RK", "weights R2 master", "experts R2<E"},
         {{4096, 2048, 64}, {512, 768, 8}}, [](const auto& v) {
           return expert_dispatch(v[0], v[1], v[2], {.experts = v.dim('E'), .room = v.dim('R'), .ranks = 4})[0];
         });
  to.add("expert_exchange+combine", "RxK", {"base RK", "parts 4RK", "places R4<R"}, {{4096, 2048}, {512, 768}},
         [](const auto& v) { return expert_combine(v[0], v[1], v[2], {}); });
  to.add_forward("expert_exchange+dropped", "R", {"places R4<R"}, {{65536}, {512}},
                 [](const auto& v) { return expert_dropped(v[0], v.none()); });
}

}  // namespace hpcdl::contract
