#include "hpcdl/parallel/exchange_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::parallel {
namespace {

struct Issued {
  std::string program;
  std::size_t record;
  OpName op;
  Exchange exchange;

  std::string what() const {
    return fmt::format("{} of {} bytes over {} by \"{}\"", exchange_name(exchange.kind), exchange.bytes, exchange.axis,
                       op.view());
  }
  std::string where() const { return fmt::format("record {} of the program \"{}\"", record, program); }
};

/// Whether two ranks of one group mean the same exchange.
bool meet(const Issued& a, const Issued& b) {
  return a.op == b.op && a.exchange.kind == b.exchange.kind && a.exchange.axis == b.exchange.axis &&
         a.exchange.bytes == b.exchange.bytes;
}

/// Axes of one rank are left out: their exchanges send nothing.
std::vector<Issued> issued(std::span<const NamedProgram> programs, std::string_view axis) {
  std::vector<Issued> list;
  for (const auto& [name, program] : programs)
    for (std::size_t i = 0; i < program->records.size(); ++i)
      for (auto& e : exchanges(*program, program->records[i]))
        if (e.ranks > 1 && (axis.empty() || e.axis == axis))
          list.push_back({name, i, program->records[i].op, std::move(e)});
  return list;
}

std::string label(const MeshShape& shape, MeshAxis a) {
  return fmt::format("{} of {}", axis_name(a), shape.sizes()[static_cast<std::size_t>(a)]);
}

using NamedGroup = std::pair<std::string, std::vector<std::size_t>>;

/// Adds the groups of the ranks that differ only along these axes.
void add_groups(std::vector<NamedGroup>& to, const MeshShape& shape, std::initializer_list<MeshAxis> axes,
                const std::string& name) {
  const auto origin = [&](int rank) {
    auto at = coordinates(shape, rank);
    for (const auto a : axes) at[static_cast<std::size_t>(a)] = 0;
    return at;
  };
  for (int first = 0; first < shape.size(); ++first) {
    if (coordinates(shape, first) != origin(first)) continue;
    std::vector<std::size_t> ranks;
    for (int r = 0; r < shape.size(); ++r)
      if (origin(r) == origin(first)) ranks.push_back(static_cast<std::size_t>(r));
    if (ranks.size() > 1) to.emplace_back(name, std::move(ranks));
  }
}

/// The ranks of a mesh by group, for each axis.
std::vector<NamedGroup> groups_of(const MeshShape& shape) {
  std::vector<NamedGroup> list;
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<MeshAxis>(a);
    add_groups(list, shape, {axis}, label(shape, axis));
  }
  if (shape.cp > 1)  // Mesh::data()
    add_groups(list, shape, {MeshAxis::dp, MeshAxis::cp}, fmt::format("data of {}", shape.dp * shape.cp));
  return list;
}

}  // namespace

std::vector<Fact> exchange_facts(std::span<const NamedProgram> programs, std::string_view axis) {
  std::vector<Fact> facts;
  for (const auto& e : issued(programs, axis))
    facts.push_back(
        {fmt::format("exchange {} of the programs{}{}", facts.size() + 1, axis.empty() ? "" : " over ", axis),
         // Between two exchanges ranks may have different records.
         axis.empty() ? fmt::format("{}, in the program \"{}\"", e.what(), e.program) : e.what()});
  return facts;
}

std::string exchange_conflict(const MeshShape& shape, std::span<const std::vector<NamedProgram>> by_rank) {
  require(std::ssize(by_rank) == shape.size(), "parallel", "expected the programs of {} ranks, found those of {}",
          shape.size(), by_rank.size());
  std::vector<std::vector<Issued>> lists;
  for (const auto& programs : by_rank) lists.push_back(issued(programs, {}));
  const auto groups = groups_of(shape);
  for (const auto& [axis, ranks] : groups) {
    std::vector<std::vector<const Issued*>> of(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i)
      for (const auto& e : lists[ranks[i]])
        if (e.exchange.axis == axis) of[i].push_back(&e);
    for (std::size_t i = 1; i < ranks.size(); ++i)
      for (std::size_t n = 0; n < std::max(of[0].size(), of[i].size()); ++n) {
        const Issued* const both[] = {n < of[0].size() ? of[0][n] : nullptr, n < of[i].size() ? of[i][n] : nullptr};
        if (both[0] && both[1] && meet(*both[0], *both[1])) continue;
        std::string text = fmt::format("exchange {} over {} differs", n + 1, axis);
        for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
          const auto rank = ranks[side == 0 ? 0 : i];
          text += both[side] ? fmt::format("{} rank {}: {}, {}", side == 0 ? ":" : ";", rank, both[side]->what(),
                                           both[side]->where())
                             : fmt::format("{} rank {}: none", side == 0 ? ":" : ";", rank);
        }
        return text;
      }
  }
  // The groups agree, so what remains is who waits for whom: each rank is in one exchange at a time.
  std::vector<std::size_t> at(lists.size());
  const auto next = [&](std::size_t rank) { return at[rank] < lists[rank].size() ? &lists[rank][at[rank]] : nullptr; };
  const auto all_next = [&](std::string_view axis, std::span<const std::size_t> ranks) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](std::size_t r) { return next(r) && next(r)->exchange.axis == axis; });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [axis, ranks] : groups) {
      for (; all_next(axis, ranks); moved = true)
        for (const auto r : ranks) ++at[r];
    }
  }
  std::string text;
  for (std::size_t r = 0; r < lists.size(); ++r)
    if (const auto* e = next(r))
      text += fmt::format("{} rank {} in {}, {}", text.empty() ? "ranks wait for each other for ever:" : ";", r,
                          e->what(), e->where());
  return text;
}

}  // namespace hpcdl::parallel
