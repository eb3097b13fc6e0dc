#include "hpcdl/train/rows_of_rank.h"

#include <algorithm>

namespace hpcdl::train {

Batch RowsOfRank::of(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t batch,
                     std::int64_t length, std::int64_t valid, std::span<const std::int64_t> samples) {
  const int ranks = mesh_.shape().cp;
  if (ranks == 1) {
    const Spec ids{{batch, length}, DType::i32};
    return {{{"tokens", View(tokens.data(), ids)}, {"targets", View(targets.data(), ids)}}, samples, valid};
  }
  using nn::ContextShare;
  const auto chunk = length / (ContextShare::kChunks * ranks);
  tokens_.clear(), targets_.clear(), positions_.clear();
  for (int i = 0; i < ContextShare::kChunks; ++i)
    for (std::int64_t row = 0; row < batch; ++row) {
      const auto first = ContextShare::chunk(mode_, mesh_.index(parallel::MeshAxis::cp), i, ranks) * chunk;
      const auto at = static_cast<std::size_t>(row * length + first), n = static_cast<std::size_t>(chunk);
      for (const auto& [to, from] : {std::pair{&tokens_, tokens}, {&targets_, targets}}) {
        const auto part = from.subspan(at, n);
        to->insert(to->end(), part.begin(), part.end());
      }
      for (std::int64_t t = 0; t < chunk; ++t) positions_.push_back(static_cast<std::int32_t>(first + t));
    }
  const Spec ids{{ContextShare::kChunks * batch, chunk}, DType::i32};
  return {{{"tokens", View(tokens_.data(), ids)},
           {"targets", View(targets_.data(), ids)},
           {"positions", View(positions_.data(), ids)}},
          samples,
          std::ssize(targets_) - std::ranges::count(targets_, -1)};
}

}  // namespace hpcdl::train
