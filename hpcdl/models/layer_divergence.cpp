#include "hpcdl/models/layer_divergence.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/models/family.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kTokens = 1024;

/// Replaces logits by the logarithms of their softmax.
void normalize(float* row, std::int64_t n) {
  const double most = *std::max_element(row, row + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - most);
  const double less = most + std::log(sum);
  for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) - less);
}

}  // namespace

LayerDivergence::LayerDivergence(const LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens)
    : stream_(pool, &params_), prefix_(row_of(model.config().family).decoder(model.config()).prefix) {
  const auto count = std::min<std::int64_t>(std::ssize(tokens), kTokens),
             length = std::min(model.config().context, count);
  require(count >= 2, "quant", "{} tokens are too few to measure a divergence: give more text", count);
  for (std::int64_t at = 0; at + length <= count; at += length)
    windows_.emplace_back(tokens.begin() + at, tokens.begin() + at + length);
  Graph g({.inference = true});
  const Var ids = g.input("tokens", {{1, length}, DType::i32});
  pass_ = std::make_shared<const Pass>(Pass::of(g, {ids}, {model.logits(g, ids)}));
  const auto exe = with_substitutes(*pass_, {});
  arena_ = exe.arena();
  for (std::size_t w = 0; w < windows_.size(); ++w) original_.push_back(log_probabilities(exe, w));
}

const Slot& LayerDivergence::slot_of(const std::string& name) const {
  for (const auto& slot : pass_->planned->program.slots)
    if (slot.kind == SlotKind::state && (slot.name == name || slot.name == prefix_ + name)) return slot;
  fail("quant", "no record of the model reads {}", name);
}

std::vector<float> LayerDivergence::log_probabilities(const Instance& exe, std::size_t window) {
  copy(stream_, exe.input(0), View(windows_[window].data(), exe.input(0).spec()));
  exe.run(stream_);
  const View logits = exe.output(0);
  std::vector<float> rows(logits.ptr<float>(), logits.ptr<float>() + logits.size());
  const auto vocab = logits[-1];
  for (std::int64_t r = 0; r < logits.rows(); ++r) normalize(rows.data() + r * vocab, vocab);
  return rows;
}

double LayerDivergence::of(const std::string& name, const View& values, bool transposed) {
  const auto& slot = slot_of(name);
  Substitutes substitutes;
  substitutes.emplace(slot.name, as_stored(values, slot.spec, transposed));
  const auto exe = with_substitutes(*pass_, substitutes, arena_);
  double sum = 0;
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const auto now = log_probabilities(exe, w);
    const auto& before = original_[w];
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double p = static_cast<double>(before[i]);
      sum += std::exp(p) * (p - static_cast<double>(now[i]));
    }
  }
  return sum / static_cast<double>(std::ssize(windows_) * std::ssize(windows_[0]));
}

}  // namespace hpcdl::models
