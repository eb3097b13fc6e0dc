#include "cli/compare_logits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/rng.h"

namespace hpcdl::cli {

namespace {

/// (rows, V) f32
OwnedTensor logits_of(const std::filesystem::path& path, Pool& pool) {
  constexpr std::int64_t kRows = 64;
  const auto model = models::LanguageModel::open(path, {}, {}, {DType::f32, &pool});
  const auto length = std::min(kRows, model.config().context), vocab = model.config().vocab;
  const Rng rng{.seed = 29, .stream = 1};
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < length; ++i)
    ids.push_back(
        static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
  StepParams params;
  Stream stream({}, pool, &params);
  Graph g({.inference = true, .numerics = {}});
  const Var tokens = g.input("tokens", {{1, length}, DType::i32});
  const Var out = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish(), nullptr, stream.device());
  copy(stream, exe.tensor(tokens), View(ids.data(), tokens.spec()));
  exe.run(stream);
  OwnedTensor host({{length, vocab}, DType::f32});
  convert_elements(host.tensor, exe.tensor(out).reshaped({length, vocab}));
  require(count_non_finite(host.tensor) == 0, "convert", "{}: some logits are NaN or infinite", path.string());
  return host;
}

std::vector<double> log_probabilities(const float* row, std::int64_t n) {
  const double most = *std::max_element(row, row + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - most);
  std::vector<double> out(row, row + n);
  for (auto& x : out) x -= most + std::log(sum);
  return out;
}

}  // namespace

double divergence(const std::filesystem::path& from, const std::filesystem::path& to, Pool& pool) {
  const auto a = logits_of(from, pool), b = logits_of(to, pool);
  require(a.tensor.shape() == b.tensor.shape(), "convert", "{} and {} have different vocabularies or contexts",
          from.string(), to.string());
  const auto rows = a.tensor[0], vocab = a.tensor[1];
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto p = log_probabilities(a.tensor.ptr<float>() + r * vocab, vocab);
    const auto q = log_probabilities(b.tensor.ptr<float>() + r * vocab, vocab);
    for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(rows);
}

}  // namespace hpcdl::cli
