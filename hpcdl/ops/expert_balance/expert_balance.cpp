#include "hpcdl/ops/expert_balance/expert_balance.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl {
namespace {

std::int64_t tokens_of(const Spec& scores) { return scores.size() / scores[-1]; }

Spec sums_of(std::int64_t experts) { return {{experts}, DType::f32}; }

std::int64_t valid_targets(const View& targets) {
  const auto* t = targets.ptr<std::int32_t>();
  return std::count_if(t, t + targets.size(), [](std::int32_t id) { return id >= 0; });
}

}  // namespace

std::array<Spec, 2> ExpertLoad::infer(const Spec& scores, const Spec& experts, const Spec& probabilities,
                                      const Spec& counts, const Args&) {
  require(scores.dtype == DType::f32 && scores.shape.rank() >= 1 && scores[-1] >= 1 && scores[-1] <= kMostExperts, name,
          "scores must be F32 (..., E) with E <= {}, got {}", kMostExperts, to_string(scores));
  require(experts.dtype == DType::i32 && experts.shape.rank() >= 1 && experts[-1] >= 1 && experts[-1] <= scores[-1] &&
              experts.size() == tokens_of(scores) * experts[-1],
          name, "experts must be I32 with a row for each of {} tokens, got {}", tokens_of(scores), to_string(experts));
  const Spec sums = sums_of(scores[-1]);
  require(static_cast<bool>(probabilities) == static_cast<bool>(counts), name,
          "expected the probabilities and counts of earlier layers, or neither");
  if (probabilities) require_spec(name, "probabilities", probabilities, sums);
  if (counts) require_spec(name, "counts", counts, sums);
  return {sums, sums};
}

std::array<Spec, 1> ExpertLoad::scratch(const Spec& scores, const Spec&, const Spec&, const Spec&, const Args&) {
  return {Spec{{2, (tokens_of(scores) + kChunk - 1) / kChunk, scores[-1]}, DType::f32}};
}

void ExpertLoad::forward(Stream& s, Tensor probabilities, Tensor counts, View scores, View experts,
                         View probabilities_before, View counts_before, Tensor parts, const Args&) {
  on(
      s,
      [&](auto, Pool& pool) {
        cpu::expert_load(pool, probabilities, counts, scores, experts, probabilities_before, counts_before, parts);
      },
      [&](auto& q) {
        cuda::expert_load(q, probabilities, counts, scores, experts, probabilities_before, counts_before, parts);
      });
}

void ExpertLoad::backward(Stream& s, Grad dscores, Grad dbefore, View scores, View dprobabilities, const Args&) {
  if (dbefore) Add::backward(s, dbefore, {}, dprobabilities, {});
  if (!dscores) return;
  on(
      s, [&](auto, Pool& pool) { cpu::expert_load_backward(pool, dscores, scores, dprobabilities); },
      [&](auto& q) { cuda::expert_load_backward(q, dscores, scores, dprobabilities); });
}

Spec ExpertBalance::infer(const Spec& probabilities, const Spec& counts, const Spec& targets, const Args& a) {
  require(probabilities.dtype == DType::f32 && probabilities.shape.rank() == 1, name,
          "probabilities must be F32 (E), got {}", to_string(probabilities));
  require_spec(name, "counts", counts, sums_of(probabilities.size() * std::max(a.ranks, 1)));
  require(targets.dtype == DType::i32, name, "targets must be I32, got {}", to_string(targets));
  require(a.layers >= 1 && a.ranks >= 1, name, "expected at least one layer and one rank, got {} and {}", a.layers,
          a.ranks);
  return {{1}, DType::f32};
}

void ExpertBalance::forward(Stream& s, Tensor loss, View probabilities, View counts, View targets, const Args& a) {
  const double f = factor(probabilities.size(), targets.size(), a);
  on(
      s, [&](auto, Pool&) { cpu::expert_balance(loss, probabilities, counts, targets, f); },
      [&](auto& q) { cuda::expert_balance(q, loss, probabilities, counts, targets, f); });
}

void ExpertBalance::backward(Stream& s, Grad dprobabilities, View counts, View targets, View dloss, const Args& a) {
  const double f = a.gradient ? factor(counts.size() / a.ranks, targets.size(), a) : 0;
  on(
      s, [&](auto, Pool&) { cpu::expert_balance_backward(dprobabilities, counts, targets, dloss, f); },
      [&](auto& q) { cuda::expert_balance_backward(q, dprobabilities, counts, targets, dloss, f); });
}

namespace cpu {
namespace {

/// The largest of a row of scores, and the sum of exp(score - largest).
struct RowOfScores {
  float top, all = 0;
  RowOfScores(const float* row, std::int64_t n) : top(*std::max_element(row, row + n)) {
    for (std::int64_t e = 0; e < n; ++e) all += std::exp(row[e] - top);
  }
  float operator()(float score) const { return std::exp(score - top) / all; }
};

}  // namespace

void expert_load(Pool& pool, Tensor probabilities, Tensor counts, View scores, View experts, View probabilities_before,
                 View counts_before, Tensor parts) {
  const auto count = scores.cols(), rows = scores.rows(), chunks = parts.shape()[1];
  const auto part = [&](int which, std::int64_t chunk) {
    return parts.ptr<float>() + (which * chunks + chunk) * count;
  };
  parallel_for(
      pool, chunks, kGrainElements / (count * ExpertLoad::kChunk) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto chunk = begin; chunk < end; ++chunk) {
          float *sums = part(0, chunk), *chosen = part(1, chunk);
          std::fill_n(sums, count, 0.0f), std::fill_n(chosen, count, 0.0f);
          for (auto r = chunk * ExpertLoad::kChunk; r < std::min(rows, (chunk + 1) * ExpertLoad::kChunk); ++r) {
            const float* row = scores.ptr<float>() + r * scores.row_stride();
            const RowOfScores probability(row, count);
            for (std::int64_t e = 0; e < count; ++e) sums[e] += probability(row[e]);
            const std::int32_t* of = experts.ptr<std::int32_t>() + r * experts.cols();
            for (std::int64_t i = 0; i < experts.cols(); ++i) ++chosen[of[i]];
          }
        }
      });
  const auto finish = [&](const Tensor& to, const View& before, int which) {
    for (std::int64_t e = 0; e < count; ++e) {
      float sum = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += part(which, chunk)[e];
      to.ptr<float>()[e] = before ? before.ptr<float>()[e] + sum : sum;
    }
  };
  finish(probabilities, probabilities_before, 0), finish(counts, counts_before, 1);
}

void expert_load_backward(Pool& pool, Grad dscores, View scores, View dprobabilities) {
  const auto count = scores.cols();
  const float* d = dprobabilities.ptr<float>();
  for_rows(pool, scores.rows(), count, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float* row = scores.ptr<float>() + r * scores.row_stride();
      float* to = dscores.ptr<float>() + r * dscores.row_stride();
      const RowOfScores probability(row, count);
      float dot = 0;
      for (std::int64_t e = 0; e < count; ++e) dot += probability(row[e]) * d[e];
      for (std::int64_t e = 0; e < count; ++e)
        to[e] = (dscores.accumulate() ? to[e] : 0) + probability(row[e]) * (d[e] - dot);
    }
  });
}

void expert_balance(Tensor loss, View probabilities, View counts, View targets, double factor) {
  const auto experts = probabilities.size();
  double sum = 0;
  for (std::int64_t i = 0; i < counts.size(); ++i)
    sum += static_cast<double>(probabilities.ptr<float>()[i % experts]) * static_cast<double>(counts.ptr<float>()[i]);
  *loss.ptr<float>() = static_cast<float>(factor * static_cast<double>(valid_targets(targets)) * sum);
}

void expert_balance_backward(Grad dprobabilities, View counts, View targets, View dloss, double factor) {
  const double all = factor * static_cast<double>(valid_targets(targets)) * static_cast<double>(*dloss.ptr<float>());
  const auto experts = dprobabilities.size();
  for (std::int64_t e = 0; e < experts; ++e) {
    double count = 0;
    for (auto i = e; i < counts.size(); i += experts) count += static_cast<double>(counts.ptr<float>()[i]);
    float& to = dprobabilities.ptr<float>()[e];
    to = (dprobabilities.accumulate() ? to : 0) + static_cast<float>(all * count);
  }
}

}  // namespace cpu

}  // namespace hpcdl
