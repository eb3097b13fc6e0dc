#include "hpcdl/train/gradient_tree.h"

#include <bit>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/exchange/exchange.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kTensorAlignment = 256;  // bytes

std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

}  // namespace

GradientTree::GradientTree(std::span<const StateEntry> parameters, std::int64_t leaves, Device device, bool described)
    : parameters_(parameters) {
  require(std::has_single_bit(static_cast<std::uint64_t>(leaves)), "train",
          "expected a power of two of micro-batches, got {}", leaves);
  std::int64_t bytes = 0;
  for (const auto& p : parameters) bytes += aligned_bytes(p.gradient->memory.bytes());
  for (std::int64_t n = 1; n < leaves; n *= 2) {
    std::byte* const memory = described ? nullptr : memory_.emplace_back(bytes, device).data();
    auto& level = levels_.emplace_back();
    for (std::int64_t at = 0; const auto& p : parameters) {
      const Spec& spec = p.gradient->memory.spec();
      level.emplace_back(memory ? memory + at : nullptr, spec, device);
      at += aligned_bytes(spec.bytes());
    }
  }
}

std::int64_t GradientTree::micro(std::int64_t i) const {
  std::int64_t reversed = 0;
  for (std::size_t bit = 0; bit < levels_.size(); ++bit) reversed = 2 * reversed + (i >> bit & 1);
  return reversed;
}

int GradientTree::sums(std::int64_t i) const { return std::countr_one(static_cast<std::uint64_t>(i)); }

std::vector<GradientTree::Pair> GradientTree::pairs(Graph& g, int level) const {
  std::vector<Pair> list;
  for (std::size_t i = 0; const auto& p : parameters_) {
    const auto& kept = levels_[static_cast<std::size_t>(level)][i++];
    if (kept.size() == 0) continue;
    list.emplace_back(g.constant(p.gradient->name, p.gradient->memory),
                      g.constant(fmt::format("{}.level{}", p.gradient->name, level), kept));
  }
  return list;
}

void GradientTree::record(Graph& g, int sums) const {
  const auto pass_on = [&](const Operand& to, const Var& from) {
    const Operand operands[] = {to, read_operand(from)};
    g.emit<PassOn>(operands, nullptr, 0, {}, Phase::backward);
  };
  for (int level = 0; level < sums; ++level)
    for (const auto& [gradient, kept] : pairs(g, level)) pass_on(update_operand(gradient), kept);
  if (sums == std::ssize(levels_)) return;
  for (const auto& [gradient, kept] : pairs(g, sums)) pass_on(write_operand(kept), gradient);
}

std::int64_t GradientTree::bytes() const {
  std::int64_t sum = 0;
  for (const auto& level : levels_)
    for (const auto& t : level) sum += aligned_bytes(t.bytes());
  return sum;
}

}  // namespace hpcdl::train
