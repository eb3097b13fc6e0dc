#include "hpcdl/offload/gradient_moves.h"

#include <algorithm>
#include <span>
#include <utility>

#include "hpcdl/graph/move.h"
#include "hpcdl/offload/parts.h"
#include "hpcdl/parallel/divided_norm.h"
#include "hpcdl/parallel/update.h"
#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::offload {
namespace {

constexpr std::string_view kSums = "grad_norm.sums";
/// Parts of the model by which backward is earlier when a gradient begins to come back, and for which its memory stays
/// while it is copied to the host.
constexpr std::size_t kAhead = 1, kBehind = 1;

/// The time in which a pass works on a gradient.
struct Span {
  int slot = -1;
  std::size_t first = 0, last = 0;  // records
  bool adds = false;                // to what is there
};

Operand whole(int slot, const Spec& spec) { return {slot, 0, spec, contiguous_strides(spec.shape)}; }

}  // namespace

GradientMoves::GradientMoves(const StateTable& table, Device device) : device_(device) {
  for (const auto& e : table.parameters()) {
    const auto n = tensor_blocks(e.memory.size());
    entries_.push_back({e.gradient, {blocks_, blocks_ + n}});
    blocks_ += n;
  }
  if (!table.described()) sums_ = Buffer(blocks_ * static_cast<std::int64_t>(sizeof(double)), device);
}

Tensor GradientMoves::sums() const { return Tensor(sums_.data(), {{blocks_}, DType::f64}, device_); }

Recording GradientMoves::moved(Recording pass) const {
  std::vector<std::string> names;
  for (const auto& e : entries_) names.push_back(e.gradient->on_host ? e.gradient->name : "");
  std::vector<Span> spans(entries_.size());
  std::vector<std::vector<std::uint32_t>> operands(entries_.size());
  parallel::for_each_use(pass.program, names, [&](const parallel::Use& use) {
    auto& span = spans[use.tensor];
    const auto& o = pass.program.operands[use.operand];
    if (span.slot < 0) span = {o.slot, use.record, use.record, o.access != Access::write};
    span.last = use.record;
    operands[use.tensor].push_back(use.operand);
  });
  if (std::ranges::none_of(spans, [](const Span& s) { return s.slot >= 0; })) return pass;
  const Parts parts(pass.program, 0, pass.program.records.size());
  Edit edit(std::move(pass.program), "move gradients to the host");
  const Spec all{{blocks_}, DType::f64};
  const int sums_slot = edit.add_slot({all, SlotKind::state, std::string(kSums)});
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto& [slot, first, last, adds] = spans[i];
    if (slot < 0) continue;
    const auto spec = edit.program().slots[static_cast<std::size_t>(slot)].spec;
    const int here = edit.add_slot({spec, SlotKind::temp, names[i] + ".here"});
    for (const auto k : operands[i]) edit.redirect(k, here, 0);
    if (adds) {
      Moves back;
      back.add(whole(here, spec), whole(slot, spec));
      const auto part = parts.of(first);
      back.insert(edit, parts.begin(part - std::min(part, kAhead)), Lane::gather);
    }
    const auto& blocks = entries_[i].blocks;
    const Spec own{{blocks.count()}, DType::f64};
    parallel::insert_squares(edit, last + 1, {sums_slot, blocks.begin, own, contiguous_strides(own.shape)},
                             whole(here, spec));
    Moves there;
    there.add(whole(slot, spec), whole(here, spec));
    there.insert(edit, std::max(last + 1, parts.begin(parts.of(last) + 1 + kBehind)), Lane::reduce);
  }
  pass.program = edit.finish();
  pass.bindings.bind(std::string(kSums), sums());
  return pass;
}

void GradientMoves::record_norm(Graph& g, const GradNorm::Args& args) const {
  const Var sums_of_all = g.constant(std::string(kSums), sums());
  for (const auto& [gradient, blocks] : entries_)
    if (!gradient->on_host)
      parallel::record_squares(g, g.slice(sums_of_all, blocks.begin, blocks.count()),
                               g.constant(gradient->name, gradient->memory));
  parallel::record_norm_of_totals(g, sums_of_all, args);
}

}  // namespace hpcdl::offload
