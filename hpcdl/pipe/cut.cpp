#include "hpcdl/pipe/cut.h"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"
#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/weight_pass.h"

namespace hpcdl::pipe {
namespace {

std::vector<int> stage_of_layer(const Partition& partition) {
  std::vector<int> stages;
  for (std::size_t stage = 0; stage < partition.size(); ++stage)
    stages.insert(stages.end(), static_cast<std::size_t>(partition[stage]), static_cast<int>(stage));
  return stages;
}

/// The segments of a pass with so many stages: forwards are 0, 1, ..., backwards follow from the last stage to the first,
/// then separate gradients of weights, and what belongs to no stage.
struct Segments {
  int stages;
  int weights(int stage) const { return 2 * stages + stage; }
  int lookup() const { return 3 * stages; }
  int logits() const { return 3 * stages + 1; }
  int loss() const { return 3 * stages + 2; }
  int lookup_gradient() const { return 3 * stages + 3; }
  int exchange() const { return 3 * stages + 4; }
  int merge() const { return 3 * stages + 5; }
};

bool exchanges_something(const Record& r) { return r.op == AllReduce::name || r.op == AllGather::name; }

/// Finds the segments of records of a vocabulary that the ranks divide, in their order.
class VocabularySegments {
 public:
  VocabularySegments(const Program& pass, const Segments& at)
      : pass_(pass), at_(at), found_(divides_vocabulary(pass)) {}

  /// -1: it belongs to a stage. `layer`: the number of its layer, of which the embedding is the first.
  int of(const Record& r, int layer) {
    const auto& scope = pass_.scopes[r.scope];
    const bool forward = r.phase == Phase::forward;
    if (!is_of_vocabulary(scope)) {
      // The gradient of the loss itself.
      const bool seed = found_ && !forward && layer_of(scope).empty();
      return seed ? (early_ ? at_.logits() : at_.loss()) : -1;
    }
    if (exchanges_something(r)) {
      combined_ |= r.op == AllGather::name;
      return at_.exchange();
    }
    if (r.op == PassOn::name) return -1;
    early_ |= r.op == VocabularySummands::name;
    if (r.op == VocabularyMergeGradient::name) return at_.merge();
    if (layer == 0) return forward ? at_.lookup() : at_.lookup_gradient();
    return forward && !combined_ ? at_.logits() : at_.loss();
  }

 private:
  const Program& pass_;
  const Segments& at_;
  bool found_, combined_ = false, early_ = false;  // early_: there is one barrier
};

std::vector<int> segments_of(const Program& pass, const Partition& partition, Backward backward) {
  const auto layers = layers_of(pass);
  const int count = std::accumulate(partition.begin(), partition.end(), 0);
  require(count == static_cast<int>(layers.names.size()), "pipe",
          "expected a partition of the {} layers of the pass, found one of {}", layers.names.size(), count);
  const auto stage_of = stage_of_layer(partition);
  const Segments at{static_cast<int>(partition.size())};
  VocabularySegments vocabulary(pass, at);
  const auto apart = backward == Backward::halves ? of_weights_apart(pass) : std::vector<bool>(pass.records.size());
  std::vector<int> segments;
  int last = 0;
  for (std::size_t i = 0; i < pass.records.size(); ++i) {
    const auto& r = pass.records[i];
    const int layer = layers.of_record[i], stage = stage_of[static_cast<std::size_t>(layer)];
    if (const int other = vocabulary.of(r, layer); other >= 0) {
      segments.push_back(other);
      continue;
    }
    const int segment = r.phase == Phase::forward ? stage : 2 * at.stages - 1 - stage;
    require(last <= segment, "pipe",
            "record {} ({}, {}) belongs to an earlier segment than the one before: cut elsewhere", i, r.op.view(),
            pass.scopes[r.scope]);
    last = segment;
    segments.push_back(apart[i] ? at.weights(stage) : segment);
  }
  return segments;
}

/// The slots that the ranks exchange.
void find_exchanges(const Program& pass, const std::vector<int>& segments, const Segments& at, VocabularyCut& v) {
  std::set<int> forward, backward;  // what stages write
  const auto operands = [&](const Record& r) { return std::span(pass.operands).subspan(r.operands, r.operand_count); };
  const auto read_of = [&](const Record& r, const std::set<int>& written, int& found) {
    for (const auto& o : operands(r))
      if (o.access == Access::read && written.contains(o.slot)) found = o.slot;
  };
  for (std::size_t i = 0; i < pass.records.size(); ++i) {
    const auto& r = pass.records[i];
    if (segments[i] < 2 * at.stages)
      for (const auto& o : operands(r))
        if (o.slot >= 0 && o.access != Access::read &&
            pass.slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::temp)
          (segments[i] < at.stages ? forward : backward).insert(o.slot);
    if (segments[i] == at.logits()) read_of(r, forward, v.hidden);
    if (segments[i] == at.lookup_gradient()) read_of(r, backward, v.rows_gradient);
    if (segments[i] == at.merge()) v.gradient = operands(r)[0].slot;
    if (segments[i] != at.exchange()) continue;
    if (r.op == AllGather::name) {
      const bool first = v.all < 0;
      (first ? v.all : v.all_summands) = operands(r)[0].slot, (first ? v.mine : v.summands) = operands(r)[1].slot;
    } else (r.phase == Phase::forward ? v.rows : v.gradient) = operands(r)[0].slot;
  }
  require(v.rows >= 0 && v.hidden >= 0 && v.mine >= 0 && (v.gradient >= 0) == (v.rows_gradient >= 0), "pipe",
          "expected a pass whose ranks divide the embedding and the head");
}

/// The slots that more than one segment touches, or a caller.
std::vector<int> carried_slots(const Program& pass, const std::vector<int>& segments) {
  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> home(pass.slots.size(), kNone);  // the only segment that touches a slot
  for (std::size_t i = 0; i < pass.records.size(); ++i) {
    const auto& r = pass.records[i];
    for (const auto& o : std::span(pass.operands).subspan(r.operands, r.operand_count)) {
      if (o.slot < 0) continue;
      int& segment = home[static_cast<std::size_t>(o.slot)];
      segment = segment == kNone || segment == segments[i] ? segments[i] : kSeveral;
    }
  }
  std::vector<int> slots;
  for (std::size_t slot = 0; slot < home.size(); ++slot) {
    const auto kind = pass.slots[slot].kind;
    if (kind != SlotKind::state && (kind != SlotKind::temp || home[slot] == kSeveral))
      slots.push_back(static_cast<int>(slot));
  }
  return slots;
}

}  // namespace

Cut cut(const Program& pass, const Partition& partition, Backward backward) {
  Program tables = backward == Backward::halves ? weight_pass(pass) : pass;
  const auto segments = segments_of(tables, partition, backward);
  const Segments at{static_cast<int>(partition.size())};
  Cut result;
  if (divides_vocabulary(tables)) find_exchanges(tables, segments, at, result.vocabulary.emplace());
  for (const int slot : carried_slots(tables, segments)) {
    auto& s = tables.slots[static_cast<std::size_t>(slot)];
    s.kind = SlotKind::state;
    s.name = fmt::format("carried.{}.{}", slot, s.name);
    result.carried.push_back({slot, s.name});
  }
  const auto records = std::move(tables.records);
  tables.records.clear();
  const std::size_t stages = partition.size();
  result.forward.assign(stages, tables);
  result.backward.assign(stages, tables);
  if (backward == Backward::halves) result.weights.assign(stages, tables);
  if (auto& v = result.vocabulary) v->lookup = v->logits = v->loss = v->lookup_gradient = v->merge = tables;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (segments[i] == at.exchange()) continue;
    if (segments[i] >= at.lookup()) {
      auto& v = *result.vocabulary;
      auto& program = segments[i] == at.lookup()   ? v.lookup
                      : segments[i] == at.logits() ? v.logits
                      : segments[i] == at.loss()   ? v.loss
                      : segments[i] == at.merge()  ? v.merge
                                                   : v.lookup_gradient;
      program.records.push_back(records[i]);
      continue;
    }
    const auto segment = static_cast<std::size_t>(segments[i]);
    auto& program = segment < stages       ? result.forward[segment]
                    : segment < 2 * stages ? result.backward[2 * stages - 1 - segment]
                                           : result.weights[segment - 2 * stages];
    program.records.push_back(records[i]);
  }
  return result;
}

}  // namespace hpcdl::pipe
