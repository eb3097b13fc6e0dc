#include "hpcdl/program/edit.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/core/error.h"

namespace hpcdl {

Edit::Edit(Program program, std::string name) : program_(std::move(program)) {
  auto& p = program_;
  require(p.edits.size() < kMostEdits, "program", "expected at most {} edits of a program", kMostEdits);
  const auto size = [](const auto& table) { return static_cast<std::uint32_t>(table.size()); };
  p.edits.push_back(
      {std::move(name), {size(p.slots), size(p.operands), size(p.args), size(p.bounds), size(p.scopes)}, {}});
}

int Edit::add_slot(Slot slot) {
  program_.slots.push_back(std::move(slot));
  return static_cast<int>(program_.slots.size()) - 1;
}

std::uint32_t Edit::add_scope(std::string scope) {
  program_.scopes.push_back(std::move(scope));
  return static_cast<std::uint32_t>(program_.scopes.size() - 1);
}

void Edit::redirect(std::uint32_t operand, int slot, std::int64_t begin) {
  auto& o = program_.operands[operand];
  const auto added = static_cast<int>(program_.edits.back().before.slots);
  require(slot >= added, "program", "expected a slot that this edit has added, got number {} of {}", slot, added);
  if (o.slot < added) program_.edits.back().redirected.push_back({operand, o.slot, o.offset});
  o.slot = slot, o.offset += begin;
}

void Edit::insert(std::size_t at, Record record, std::span<const Operand> operands, const void* args,
                  std::size_t args_bytes, const Bound* bound) {
  record.args = append_args(program_, args, args_bytes, bound);
  record.operands = static_cast<std::uint32_t>(program_.operands.size());
  record.operand_count = static_cast<std::uint32_t>(operands.size());
  record.added_by = static_cast<std::uint8_t>(program_.edits.size());
  program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
  record.cost = whole_cost({}, program_, record);
  inserted_.emplace_back(at, record);
}

Program Edit::finish() {
  std::stable_sort(inserted_.begin(), inserted_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Record> records;
  records.reserve(program_.records.size() + inserted_.size());
  auto next = inserted_.begin();
  for (std::size_t i = 0; i <= program_.records.size(); ++i) {
    for (; next != inserted_.end() && (next->first <= i || i == program_.records.size()); ++next)
      records.push_back(next->second);
    if (i < program_.records.size()) records.push_back(program_.records[i]);
  }
  program_.records = std::move(records);
  return std::move(program_);
}

std::uint32_t append_args(Program& program, const void* args, std::size_t bytes, const Bound* bound) {
  const std::size_t at = (program.args.size() + 15) / 16 * 16;
  program.args.resize(at + std::max<std::size_t>(bytes, 1));
  if (bytes) std::memcpy(program.args.data() + at, args, bytes);
  if (bound) {
    const auto within = reinterpret_cast<const std::byte*>(bound) - static_cast<const std::byte*>(args);
    program.bounds.push_back(static_cast<std::uint32_t>(at + static_cast<std::size_t>(within)));
  }
  return static_cast<std::uint32_t>(at);
}

Program strip(Program p) {
  if (p.edits.empty()) return p;
  const auto& before = p.edits.back().before;
  const auto& redirected = p.edits.back().redirected;
  for (auto r = redirected.rbegin(); r != redirected.rend(); ++r)
    p.operands[r->operand].slot = r->slot, p.operands[r->operand].offset = r->offset;
  std::erase_if(p.records, [&](const Record& r) { return r.added_by == p.edits.size(); });
  p.slots.resize(before.slots), p.operands.resize(before.operands), p.args.resize(before.args);
  p.bounds.resize(before.bounds), p.scopes.resize(before.scopes);
  p.edits.pop_back();
  return p;
}

}  // namespace hpcdl
