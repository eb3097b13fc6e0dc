#pragma once
// The operands of the op as lists.

#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::detail {

inline constexpr std::size_t kMixtureOutputs = 3;

/// The matrices among the inputs of the op.
template <class T, class At> std::vector<ExpertMatrices<T>> mixture_matrices(std::int64_t experts, At&& at) {
  std::vector<ExpertMatrices<T>> all;
  const auto matrix = [&](std::int64_t first) {
    const auto part = [&](std::int64_t i) { return at(static_cast<std::size_t>(first + i)); };
    return Matrix<T>{part(0), part(1), part(2), part(3)};
  };
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t first = ExpertMlp::kFixed + e * ExpertMlp::kOfExpert;
    all.push_back({matrix(first), matrix(first + 4), matrix(first + 8)});
  }
  return all;
}

}  // namespace hpcdl::detail
