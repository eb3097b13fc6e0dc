#include "hpcdl/infer/rule_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "hpcdl/ops/logit_rules/logit_rules.h"

namespace hpcdl::infer {

namespace {

RuleRoom needed(std::span<const RowRules> rows) {
  RuleRoom all;
  for (const auto& r : rows) {
    all.changes += std::ssize(r.biases) + std::ssize(r.counts);
    all.masks += r.mask.empty() ? 0 : 1;
  }
  return all;
}

/// So that a text which grows needs more memory only now and then.
std::int64_t rounded_up(std::int64_t n, std::int64_t least) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(n, least))));
}

}  // namespace

RuleSpecs::RuleSpecs(std::int64_t rows, const RuleRoom& room, std::int64_t vocab)
    : rules{{rows, LogitRules::kRuleWords}, DType::i32},
      starts{{2 * rows + 1}, DType::i32},
      changes{{room.changes, LogitRules::kChangeWords}, DType::i32},
      masks{{room.masks, LogitRules::mask_words(vocab)}, DType::i32} {}

RuleMemory::RuleMemory(std::int64_t most_rows, std::int64_t vocab, Device device)
    : most_rows_(most_rows), vocab_(vocab) {
  const RuleSpecs specs(most_rows, {}, vocab);
  rules_ = OwnedTensor(specs.rules, device), starts_ = OwnedTensor(specs.starts, device);
}

bool RuleMemory::fits(std::span<const RowRules> rows) const {
  const auto least = needed(rows);
  return !staging_.empty() && least.changes <= room_.changes && least.masks <= room_.masks;
}

void RuleMemory::grow(std::span<const RowRules> rows) {
  constexpr std::int64_t kChanges = 4096, kMasks = 4;
  const auto least = needed(rows);
  room_ = {.changes = rounded_up(std::max(least.changes, room_.changes), kChanges),
           .masks = rounded_up(std::max(least.masks, room_.masks), kMasks)};
  const RuleSpecs specs(most_rows_, room_, vocab_);
  const auto device = rules_.tensor.device();
  changes_ = OwnedTensor(specs.changes, device), masks_ = OwnedTensor(specs.masks, device);
  staging_.resize(static_cast<std::size_t>(specs.rules.bytes() + specs.starts.bytes() + specs.changes.bytes() +
                                           specs.masks.bytes()));
}

void RuleMemory::bind(std::int64_t rows, Bindings& to) const {
  const RuleSpecs specs(rows, room_, vocab_);
  const auto device = rules_.tensor.device();
  to.bind(kRowRules, Tensor(rules_.tensor.data(), specs.rules, device));
  to.bind(kRuleStarts, Tensor(starts_.tensor.data(), specs.starts, device));
  to.bind(kRuleChanges, changes_.tensor);
  to.bind(kRuleMasks, masks_.tensor);
}

void RuleMemory::set(Stream& s, std::int64_t count, std::span<const RowRules> rows) {
  auto* const rules = reinterpret_cast<LogitRules::Rule*>(staging_.data());
  auto* const starts = reinterpret_cast<std::int32_t*>(rules + most_rows_);
  auto* const changes = reinterpret_cast<LogitChange*>(starts + 2 * most_rows_ + 1);
  auto* const masks = reinterpret_cast<std::uint32_t*>(changes + room_.changes);
  const auto words = static_cast<std::size_t>(LogitRules::mask_words(vocab_));
  std::int32_t change = 0, mask = 0;
  const auto add = [&](const std::vector<LogitChange>& list) {
    std::ranges::copy(list, changes + change);
    change += static_cast<std::int32_t>(list.size());
  };
  for (std::int64_t r = 0; r < count; ++r) {
    starts[2 * r] = starts[2 * r + 1] = change;
    rules[r] = {};
    if (r >= std::ssize(rows)) continue;
    const auto& of = rows[static_cast<std::size_t>(r)];
    rules[r].penalties = of.penalties;
    add(of.biases);
    starts[2 * r + 1] = change;
    add(of.counts);
    if (of.mask.empty()) continue;
    std::ranges::copy(of.mask, masks + static_cast<std::size_t>(mask) * words);
    rules[r].mask = mask++;
  }
  starts[2 * count] = change;
  const auto send = [&](const OwnedTensor& to, const void* from, std::int64_t first) {
    if (first == 0) return;
    auto dims = to.tensor.spec();
    dims.shape[0] = first;
    copy(s, Tensor(to.tensor.data(), dims, s.device()), View(from, dims));
  };
  send(rules_, rules, count), send(starts_, starts, 2 * count + 1);
  send(changes_, changes, change), send(masks_, masks, mask);
}

}  // namespace hpcdl::infer
