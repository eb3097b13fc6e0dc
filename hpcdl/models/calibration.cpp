#include "hpcdl/models/calibration.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/models/family.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kMostWindow = 512;

/// The number of the block in whose scope a record is; -1: none.
int block_number(std::string_view scope) {
  constexpr std::string_view kLayers = "layers.";
  int number = -1;
  if (scope.starts_with(kLayers)) std::from_chars(scope.data() + kLayers.size(), scope.data() + scope.size(), number);
  return number;
}

}  // namespace

ModelCalibration::ModelCalibration(const LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens)
    : model_(model),
      stream_(pool, &params_),
      prefix_(row_of(model.config().family).decoder(model.config()).prefix),
      length_(std::min(model.config().context, kMostWindow)) {
  const auto vocab = model.config().vocab;
  require(std::ssize(tokens) >= length_, "quant",
          "the calibration text has {} tokens: give at least {}, and better a hundred times as many", tokens.size(),
          length_);
  for (auto id : tokens)
    require(id >= 0 && id < vocab, "quant",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
  Graph g({.inference = true});
  const Var ids = g.input("tokens", {{1, length_}, DType::i32});
  pass_ = std::make_shared<const Pass>(Pass::of(g, {ids}, {model.logits(g, ids)}));
  find_uses();
  for (std::int64_t at = 0; at + length_ <= std::ssize(tokens); at += length_) {
    const auto* from = reinterpret_cast<const std::byte*>(tokens.data() + at);
    windows_.emplace_back(from, from + ids.spec().bytes());
  }
}

void ModelCalibration::find_uses() {
  const Program& p = pass_->planned->program;
  std::set<std::string_view> matrices;
  for (const auto& e : model_.parameters())
    if (e.memory.rank() == 2) matrices.insert(e.name);
  std::map<std::pair<int, std::int64_t>, std::size_t> known;  // inputs of a block, by slot and offset
  int number = -1;
  for (int i = 0; i < static_cast<int>(p.records.size()); ++i) {
    const auto& r = p.records[static_cast<std::size_t>(i)];
    const int of_record = block_number(p.scopes[r.scope]);
    if (blocks_.empty() || of_record != number) blocks_.push_back({i, i}), known.clear();
    number = of_record;
    auto& block = blocks_.back();
    block.end = i + 1;
    if (r.op.view() != "linear" && r.op.view() != "linear_act") continue;
    for (int k = 1; k < static_cast<int>(r.operand_count); ++k) {
      const auto &w = p.operands[r.operands + static_cast<std::uint32_t>(k)],
                 &x = p.operands[r.operands + static_cast<std::uint32_t>(k - 1)];
      if (w.slot < 0) continue;
      const auto& slot = p.slots[static_cast<std::size_t>(w.slot)];
      if (slot.kind != SlotKind::state || !matrices.contains(slot.name) || w.spec != slot.spec) continue;
      const auto width = x.spec.shape[-1];
      const auto [input, is_new] = known.try_emplace({x.slot, x.offset}, block.inputs.size());
      if (is_new) block.inputs.push_back(width);
      const auto& args = *reinterpret_cast<const LinearArgs*>(p.args.data() + r.args);
      uses_.try_emplace(slot.name, Use{i, k - 1, blocks_.size() - 1, input->second, args.conv1d});
      break;
    }
  }
}

const ModelCalibration::Use* ModelCalibration::find(const std::string& name) const {
  auto found = uses_.find(name);
  if (found == uses_.end()) found = uses_.find(prefix_ + name);  // files of a decoder without its head
  return found == uses_.end() ? nullptr : &found->second;
}

std::int64_t ModelCalibration::place(const std::string& name) const {
  const auto* use = find(name);
  return use ? use->record : -1;
}

const quant::InputMoments& ModelCalibration::moments(const std::string& name) {
  const auto* use = find(name);
  require(use && use->block >= at_, "quant", "{}: asked about after the matrices of later blocks", name);
  while (at_ < use->block) pass_through();
  if (moments_.empty()) observe();
  return moments_[use->inputs];
}

void ModelCalibration::replaced(const std::string& name, const View& values) {
  const auto* use = find(name);
  require(use && use->block == at_, "quant", "{}: replaced after the matrices of later blocks", name);
  const auto& program = pass_->planned->program;
  const auto& record = program.records[static_cast<std::size_t>(use->record)];
  const auto& w = program.operands[record.operands + static_cast<std::uint32_t>(use->x) + 1];
  const auto& slot = program.slots[static_cast<std::size_t>(w.slot)];
  substitutes_.insert_or_assign(slot.name, as_stored(values, slot.spec, use->transposed));
}

std::vector<int> ModelCalibration::alive(int record) const {
  const auto& [program, plan, inputs, outputs] = *pass_->planned;
  std::vector<int> slots;
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const auto [first, last] = plan.lifetime[i];
    const bool written = first < record || program.slots[i].kind == SlotKind::input;
    if (plan.offset[i] >= 0 && written && last >= record) slots.push_back(static_cast<int>(i));
  }
  return slots;
}

void ModelCalibration::load(const Instance& exe, int record, const Window& window) const {
  const auto* from = window.data();
  for (int slot : alive(record)) {
    const auto at = static_cast<std::size_t>(slot);
    const auto bytes = static_cast<std::size_t>(exe.program().slots[at].spec.bytes());
    std::memcpy(exe.arena()->data() + exe.plan().offset[at], from, bytes);
    from += bytes;
  }
}

ModelCalibration::Window ModelCalibration::saved(const Instance& exe, int record) const {
  Window window;
  for (int slot : alive(record)) {
    const auto at = static_cast<std::size_t>(slot);
    const auto* from = exe.arena()->data() + exe.plan().offset[at];
    window.insert(window.end(), from, from + exe.program().slots[at].spec.bytes());
  }
  return window;
}

void ModelCalibration::observe() {
  const auto& block = blocks_[at_];
  for (auto k : block.inputs) moments_.emplace_back(k);
  std::map<int, const Use*> at_record;  // one of the matrices that share an input
  std::set<std::size_t> seen;
  for (const auto& [name, use] : uses_)
    if (use.block == at_ && seen.insert(use.inputs).second) at_record.emplace(use.record, &use);
  const auto exe = with_substitutes(*pass_, {}, arena_);
  arena_ = exe.arena();
  for (const auto& window : windows_) {
    load(exe, block.begin, window);
    int begin = block.begin;
    for (const auto& [record, use] : at_record) {
      exe.run(stream_, begin, record, {});
      moments_[use->inputs].add(stream_, exe.operands(record)[static_cast<std::size_t>(use->x)]);
      begin = record;
    }
  }
}

void ModelCalibration::pass_through() {
  const auto& block = blocks_[at_];
  const auto exe = with_substitutes(*pass_, substitutes_, arena_);
  arena_ = exe.arena();
  for (auto& window : windows_) {
    load(exe, block.begin, window);
    exe.run(stream_, block.begin, block.end, {});
    window = saved(exe, block.end);
  }
  moments_.clear(), substitutes_.clear();
  ++at_;
}

}  // namespace hpcdl::models
