#include "hpcdl/op.h"

#include <algorithm>

#include "hpcdl/program.h"
#include "hpcdl/program/axis.h"

namespace hpcdl {

namespace {

/// Products are computed in the dtype of the first input; all other arithmetic is in f32.
Unit unit_of_record(const OpInfo* op, const Record& r, std::span<const Operand> operands, F32Products products) {
  if (!op || op->cls != OpClass::product) return Unit::f32;
  auto first = static_cast<std::size_t>(op->updates ? 0 : op->n_out);
  if (r.backward) {
    const auto is_input = [](const OperandRef& ref) { return ref.kind == OperandKind::in && ref.index == 0; };
    const auto& list = op->backward_operands;
    first = static_cast<std::size_t>(std::find_if(list.begin(), list.end(), is_input) - list.begin());
  }
  const Unit unit = first < operands.size() ? unit_of(operands[first].spec.dtype) : Unit::f32;
  return unit == Unit::f32 && products == F32Products::tf32 ? Unit::tf32 : unit;
}

}  // namespace

Cost whole_cost(const Cost& stated, const Program& p, const Record& r) {
  const auto* op = function_of(r.op, r.backward).info;
  const bool gathers = op && op->gathers && r.backward;
  const auto operands = std::span(p.operands).subspan(r.operands, r.operand_count);
  Cost c = stated;
  for (const auto& o : operands) {
    if (o.slot < 0 || p.slots[static_cast<std::size_t>(o.slot)].role == SlotRole::scratch) continue;
    const auto bytes = static_cast<double>(o.spec.bytes());
    if (o.access == Access::read) c.reads += bytes;
    else if (o.access == Access::write) c.writes += bytes;
    else if (!gathers) c.updates += bytes;
  }
  c.reads = std::max(c.reads, 0.0), c.writes = std::max(c.writes, 0.0), c.updates = std::max(c.updates, 0.0);
  if (c.operations <= 0) c.unit = Unit::none;
  else if (c.unit == Unit::none) c.unit = unit_of_record(op, r, operands, p.numerics.products);
  for (const auto& e : exchanges(p, r)) c.wire += e.wire_bytes();
  return c;
}

}  // namespace hpcdl
