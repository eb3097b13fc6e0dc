#include "hpcdl/train/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/pipe/layer_costs.h"
#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/partition.h"

namespace hpcdl::train {
namespace {

/// Operations in the time of one byte: what CPUs and GPUs have in common, for a cut that is the same on all machines.
constexpr double kOperationsOfByte = 64;

double cost_of(const Record& r) { return std::max(r.cost.operations / kOperationsOfByte, r.cost.bytes()); }

/// The state that an op reads, by its name.
std::set<std::string> read_by(const Program& pass, std::string_view op) {
  std::set<std::string> names;
  for (const auto& r : pass.records)
    if (r.op == op && r.phase == Phase::forward)
      for (const auto& o : std::span(pass.operands).subspan(r.operands, r.operand_count))
        if (o.slot >= 0 && pass.slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::state)
          names.insert(pass.slots[static_cast<std::size_t>(o.slot)].name);
  return names;
}

/// Options that say whether the embedding and the head are one table.
StageOptions for_pass(StageOptions o, const Program& pass) {
  const auto embedding = read_by(pass, VocabularyEmbedding::name);
  for (const auto op : {VocabularyRows::name, VocabularySummands::name})
    for (const auto& name : read_by(pass, op)) o.tied |= embedding.contains(name);
  return o;
}

/// The stages that use state, by its name. Of a vocabulary that all ranks divide: the first one, which has the positions.
std::map<std::string, std::set<int>, std::less<>> users(const pipe::Cut& parts) {
  std::map<std::string, std::set<int>, std::less<>> stages;
  for (const auto* list : {&parts.forward, &parts.backward})
    for (int stage = 0; const auto& p : *list) {
      for (const auto& r : p.records)
        for (const auto& o : std::span(p.operands).subspan(r.operands, r.operand_count))
          if (o.slot >= 0 && p.slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::state)
            stages[p.slots[static_cast<std::size_t>(o.slot)].name].insert(stage);
      ++stage;
    }
  if (const auto& v = parts.vocabulary)
    for (const auto* p : {&v->lookup, &v->logits, &v->loss, &v->lookup_gradient})
      for (const auto& r : p->records)
        for (const auto& o : std::span(p->operands).subspan(r.operands, r.operand_count))
          if (o.slot >= 0 && p->slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::state)
            stages[p->slots[static_cast<std::size_t>(o.slot)].name].insert(0);
  return stages;
}

}  // namespace

Stages::Stages(const StageOptions& options, StateTable& table, const Program& pass)
    : table_(table), axis_(options.group), schedule_(pipe::lower(stage_orders(for_pass(options, pass)))) {
  choose_layers(options, pass);
  choose_owners(pass);
}

void Stages::choose_layers(const StageOptions& options, const Program& pass) {
  const auto layers = static_cast<int>(pipe::layers_of(pass).names.size());
  const int stages = schedule_.stages();
  if (stages > layers)
    fail_usage(
        "pipe",
        "{} makes {} stages, but the model has {} layers, its embedding and its head included: choose at most {} "
        "stages",
        options.order.empty()
            ? fmt::format("parallel.pp = {} with parallel.chunks = {}", group().size(), options.chunks)
            : fmt::format("parallel.order = \"{}\"", options.order),
        stages, layers, layers);
  if (options.layers.empty()) {
    // Ranks along tp can have parts of unequal sizes.
    partition_ =
        parallel::of_first_rank(options.world, pipe::best_partition(pipe::layer_costs(pass, {}, cost_of), stages));
    return;
  }
  partition_.assign(options.layers.begin(), options.layers.end());
  pipe::require_cut(partition_, layers, stages);
}

/// A parameter belongs to the stages whose records use it.
void Stages::choose_owners(const Program& pass) {
  const auto stages_of = users(pipe::cut(pass, partition_, pipe::Backward::whole));
  std::map<const nn::Param*, std::set<int>> stages;
  table_.for_each([&](const StateEntry& e) {
    if (const auto it = stages_of.find(e.name); it != stages_of.end() && e.role != StateRole::counter)
      stages[e.param].insert(it->second.begin(), it->second.end());
  });
  // Matrices of experts that other ranks have, which no record here uses, are where and as large as those of this rank.
  std::map<std::string, const StateEntry*, std::less<>> expert_of;  // by block
  for (const auto& e : table_.parameters())
    if (e.param->experts && e.memory.size() > 0) expert_of.emplace(parallel::unit_name(e.name), &e);
  const auto like = [&](const StateEntry& e) -> const StateEntry& {
    return e.param->experts ? *expert_of.find(parallel::unit_name(e.name))->second : e;
  };
  for (const auto& e : table_.parameters())
    if (const auto& other = like(e); other.param != e.param) stages[e.param] = stages[other.param];
  const auto ranks_of = [&](const nn::Param& p) {
    std::set<int> ranks;
    for (int rank = 0; divides(p) && rank < group().size(); ++rank) ranks.insert(rank);
    for (const int stage : stages[&p]) ranks.insert(schedule_.forward_rank[static_cast<std::size_t>(stage)]);
    if (ranks.empty()) ranks.insert(0);
    return std::vector(ranks.begin(), ranks.end());
  };
  for (const auto* p : table_.params()) first_rank_.emplace(p, ranks_of(*p).front());
  std::vector<int> holders;
  for (const auto& e : table_.parameters()) {
    const auto ranks = ranks_of(*e.param);
    if (divides(*e.param)) {
      const auto& whole = e.param->part.whole;
      const auto shares = vocabulary_shares(whole[0], group().size());
      for (const int rank : ranks)
        values_.push_back({e.param, shares.count(rank) * (whole.size() / whole[0]), true, rank});
      continue;
    }
    const auto& size = like(e);
    values_.push_back({e.param, size.memory.size(), !size.param->part.all(), ranks.front()});
    if (ranks.size() == 1) continue;
    require(holders.empty() || holders == ranks, "pipe", "\"{}\" is used by other ranks than another shared parameter",
            e.name);
    holders = ranks;
    if (std::find(ranks.begin(), ranks.end(), group().rank()) == ranks.end()) continue;
    shared_.push_back(e.param);
    // Backward begins with the last stage, which overwrites the gradient.
    if (!has(*stages[e.param].rbegin())) added_to_.push_back(e.param);
  }
  if (!holders.empty()) join_holders(holders);
  table_.keep([&](const nn::Param& p) {
    const auto ranks = ranks_of(p);
    return std::find(ranks.begin(), ranks.end(), group().rank()) != ranks.end();
  });
}

void Stages::join_holders(const std::vector<int>& ranks) {
  const bool holds = std::find(ranks.begin(), ranks.end(), group().rank()) != ranks.end();
  if (group().is_described() && holds)
    holders_ = std::make_unique<parallel::GroupAxis>(comm::Group::described(
        group().rank() == ranks.front() ? 0 : 1, static_cast<int>(ranks.size()), "shared parameters"));
  if (group().is_described()) return;
  const auto joined = group().split(holds, group().rank(), "shared parameters");
  if (holds) holders_ = std::make_unique<parallel::GroupAxis>(joined);
}

const StateEntry& Stages::entry(std::span<const StateEntry> list, const nn::Param& p) {
  return *std::find_if(list.begin(), list.end(), [&](const StateEntry& e) { return e.param == &p; });
}

std::vector<const StateEntry*> Stages::added_to() const {
  std::vector<const StateEntry*> list;
  for (const auto* p : added_to_) list.push_back(entry(table_.parameters(), *p).gradient);
  return list;
}

void Stages::connect(Device device) const {
  group().connect(device);
  if (holders_) holders_->group().connect(device);
}

void Stages::record_shared_sums(Graph& g) const {
  for (const auto* p : shared_) {
    const auto& gradient = *entry(table_.updated(), *p).gradient;
    const Operand sum[] = {update_operand(g.constant(gradient.name, gradient.memory))};
    emit_op<AllReduce>(g, sum, {holders_->axis(gradient.name)}, Phase::update);
  }
}

pipe::Backward Stages::backward() const {
  for (const auto& list : schedule_.of_rank)
    for (const auto& a : list)
      if (a.act == pipe::Act::weight_gradient) return pipe::Backward::halves;
  return pipe::Backward::whole;
}

parallel::DividedGradients Stages::gradients(parallel::DividedGradients mine) const {
  std::map<const nn::Param*, parallel::DividedGradient*> here;
  for (auto next = mine.begin(); const auto& e : table_.updated()) here.emplace(e.param, &*next++);
  parallel::DividedGradients all;
  for (const auto& v : values_) {
    if (v.rank == group().rank()) all.push_back(std::move(*here.at(v.param)));
    else all.push_back({.pieces = {{0, v.elements}}, .part = v.part});
    all.back().stage = v.rank;
  }
  return all;
}

void Stages::with_whole_values(const std::function<void()>& f) const {
  Pool pool(1);
  const Stream host(pool);
  const auto ranks = group().blocking();
  const auto of_rank = [&](int rank, const StateEntry& e) {
    return e.role != StateRole::frozen && e.role != StateRole::counter && e.host.spec() &&
           first_rank_.at(e.param) == rank;
  };
  if (group().rank() > 0) {
    for (const auto list : {table_.parameters(), table_.buffers()})
      for (const auto& e : list)
        if (of_rank(group().rank(), e)) ranks.send(host, e.host, 0).wait();
    return f();
  }
  std::vector<OwnedTensor> memory;
  std::map<const nn::Param*, Tensor> received;
  for (int r = 1; r < group().size(); ++r)
    for (const auto& e : table_.missing())
      if (of_rank(r, e)) {
        memory.emplace_back(e.host.spec());
        ranks.receive(host, memory.back().tensor, r).wait();
        received[e.param] = memory.back().tensor;
      }
  table_.with_missing([&](const StateEntry& e) { return received[e.param]; }, f);
}

}  // namespace hpcdl::train
