// Reverse-mode differentiation while recording: walks the nodes backwards and pushes their gradient records.

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/fill/fill.h"

namespace hpcdl {

void Graph::fill(const Operand& where, float v) {
  Operand o = where;
  o.access = Access::write;
  const Fill::Args args{v};
  static_cast<void>(known_op<Fill>);
  emit(Fill::name, op_info<Fill>.forward, std::span(&o, 1), &args, sizeof args, {}, Phase::backward);
}

/// A gradient has the type of the base, even if a copy of another type replaces the base.
Spec Graph::gradient_spec(int id) const {
  return {value(id).operand.spec.shape, value(value(id).base).operand.spec.dtype};
}

/// The window of the gradient for a value: with the same layout as the value in its base, which may be a window itself
/// where an op only renames it.
Operand Graph::gradient_operand(int id) const {
  const Value& b = value(value(id).base);
  Operand o = value(id).operand;
  o.spec = gradient_spec(id);
  o.slot = b.gradient_slot;
  if (value(id).operand.slot == b.operand.slot) o.offset -= b.operand.offset;
  return o;
}

/// The boxes of a value's region that have no gradient so far.
std::vector<Box> Graph::missing_gradient(int id) { return outside(value(id).region, base(id).written); }

void Graph::zero_gradient(int id, std::span<const Box> boxes) {
  auto& b = base(id);
  for (const auto& box : boxes) {
    Operand hole = whole(b.gradient_slot, b.operand.spec, Access::write);
    for (int d = 0; d < box.begin.rank(); ++d) hole.offset += box.begin[d] * hole.strides[d];
    hole.spec.shape = box.extent;
    fill(hole, 0);
    b.written.push_back(box);
  }
}

/// An operand that adds a contribution to the gradient of a value: overwrites if nothing has been written yet.
Operand Graph::write_gradient(int id) {
  auto& b = base(id);
  const Spec& spec = b.operand.spec;
  if (b.gradient_slot < 0) {
    if (b.parameter >= 0) {
      b.gradient_slot = parameters_[static_cast<std::size_t>(b.parameter)].gradient_slot;
      if (options_.parameter_gradients == Write::accumulate) b.written = {b.region};
    } else {
      b.gradient_slot = add_slot({spec, SlotKind::temp, b.name + ".grad"});
    }
  }
  const auto missing = missing_gradient(id);
  Operand out = gradient_operand(id);
  if (missing.size() == 1 && missing[0] == value(id).region) {
    b.written.push_back(missing[0]);
    out.access = Access::write;
    return out;
  }
  zero_gradient(id, missing);
  out.access = Access::update;
  return out;
}

/// The complete gradient of a value, for the node that made it: parts without contributions are zero.
Operand Graph::read_gradient(int id) {
  zero_gradient(id, missing_gradient(id));
  Operand out = gradient_operand(id);
  out.access = Access::read;
  return out;
}

/// If an op passes the gradient of its output unchanged to an input, and the input has none yet: the same memory,
/// and no record that copies it. Only this op reads the gradient of the output, so others may add to it from here
/// on.
bool Graph::take_over_gradient(const Node& node, int input) {
  const int in = node.in[static_cast<std::size_t>(input)], out = node.out[0];
  if (node.op->passes != input || out < 0 || value(in).base != in || value(out).base != out) return false;
  auto &to = value(in), &from = value(out);
  if (to.gradient_slot >= 0 || to.parameter >= 0 || from.gradient_slot < 0 || gradient_spec(in) != gradient_spec(out))
    return false;
  if (program_.slots[static_cast<std::size_t>(from.gradient_slot)].kind != SlotKind::temp ||
      !outside(from.region, from.written).empty())
    return false;
  to.gradient_slot = from.gradient_slot;
  to.written = {to.region};
  return true;
}

Var Graph::gradient(const Var& x) const {
  if (!x || value(value(x.id()).base).gradient_slot < 0) return {};
  return Var(const_cast<Graph*>(this), x.id(), gradient_operand(x.id()));
}

/// A second call would not find the ops that an earlier one has walked: gradients would be missing silently.
void Graph::require_recorded(const Var& y) const {
  const int made = value(y.id()).base;
  const auto kind = program_.slots[static_cast<std::size_t>(y.operand().slot)].kind;
  if (options_.inference || kind == SlotKind::state || kind == SlotKind::input) return;  // leaves
  const bool found = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return std::find(node.out.begin(), node.out.end(), made) != node.out.end();
  });
  require(found, "backward",
          "an earlier backward() has already used the ops that made {}: add the losses and call backward() once",
          to_string(y.spec()));
}

void Graph::backward(const Var& loss) {
  require(loss.shape().size() == 1, "backward",
          "the loss must have one element, got {}; reduce it first, or pass the gradient of it",
          to_string(loss.spec()));
  if (!value(loss.id()).needs_gradient) fail("backward", "nothing that the loss depends on has a gradient");
  require_recorded(loss);
  fill(write_gradient(loss.id()), 1);
  run_backward();
}

void Graph::backward(const Var& y, const Var& dy) {
  require(y.spec() == dy.spec(), "backward", "the gradient must be {}, got {}", to_string(y.spec()),
          to_string(dy.spec()));
  require(value(y.id()).base == y.id() && value(y.id()).gradient_slot < 0, "backward",
          "y must be the output of an op, without gradient so far");
  require_recorded(y);
  auto& v = value(y.id());
  v.gradient_slot = dy.operand().slot;
  v.written = {v.region};
  run_backward();
}

void Graph::count_parameter_uses() {
  for (auto& p : parameters_) p.uses = 0;
  for (const auto& node : nodes_)
    for (int id : node.in)
      if (id >= 0 && base(id).parameter >= 0) ++parameters_[static_cast<std::size_t>(base(id).parameter)].uses;
}

void Graph::finish_parameter_uses(const Node& node) {
  for (int id : node.in) {
    if (id < 0 || base(id).parameter < 0) continue;
    auto& p = parameters_[static_cast<std::size_t>(base(id).parameter)];
    if (--p.uses > 0) continue;
    if (base(id).gradient_slot < 0) {
      write_gradient(p.value);
      if (options_.parameter_gradients == Write::overwrite) base(id).written.clear();
    }
    read_gradient(p.value);  // zeroes parts that were not written
  }
}

void Graph::run_backward() {
  require(!options_.inference, "backward", "this graph records inference only");
  rematerialised_.assign(static_cast<std::size_t>(segments_), 0);
  remap_.assign(values_.size(), -1);
  count_parameter_uses();
  const auto outer = scope_;
  for (auto i = nodes_.size(); i-- > 0;) {
    const Node node = nodes_[i];
    scope_ = node.scope;
    const bool wanted =
        std::any_of(node.out.begin(), node.out.end(), [&](int id) { return id >= 0 && base(id).gradient_slot >= 0; });
    const bool useful =
        std::any_of(node.in.begin(), node.in.end(), [&](int id) { return id >= 0 && value(id).needs_gradient; });
    if (wanted && useful && node.op->differentiable()) {
      if (node.segment >= 0 && !rematerialised_[static_cast<std::size_t>(node.segment)]) rematerialise(node.segment);
      backward_of(node);
    }
    finish_parameter_uses(node);
  }
  scope_ = outer;
  nodes_.clear();
}

void Graph::backward_of(const Node& node) {
  const auto& op = *node.op;
  std::vector<Operand> operands;
  std::vector<std::pair<int, Operand>> late;  // second gradient of one input within one record: added afterwards
  std::vector<Spec> specs;
  for (int id : node.in) specs.push_back(id < 0 ? Spec() : value(id).operand.spec);
  const void* args = program_.args.data() + node.args;
  Spec scratches[OpInfo::kMaxScratch];
  if (op.backward_scratch) op.backward_scratch(specs.data(), args, scratches);
  std::vector<int> written;
  const auto overlaps = [&](int a, int b) {
    return value(a).base == value(b).base && common(value(a).region, value(b).region).size() > 0;
  };
  const auto forward_value = [&](int id) {
    if (id < 0) return Operand();
    Operand o = value(id).operand;
    if (const int slot = remapped(id); slot >= 0) o.slot = slot;
    o.access = Access::read;
    return o;
  };
  for (const auto& ref : op.backward_operands) {
    const auto i = static_cast<std::size_t>(ref.index);
    Operand o;
    switch (ref.kind) {
      case OperandKind::in: o = forward_value(node.in[i]); break;
      case OperandKind::out: o = forward_value(node.out[i]); break;
      case OperandKind::grad_out:
        if (node.out[i] >= 0 && base(node.out[i]).gradient_slot >= 0) o = read_gradient(node.out[i]);
        break;
      case OperandKind::grad_in:
        if (const int id = node.in[i]; id >= 0 && value(id).needs_gradient) {
          if (std::any_of(written.begin(), written.end(), [&](int other) { return overlaps(id, other); })) {
            o = whole(add_slot({gradient_spec(id), SlotKind::temp, "second.grad"}), gradient_spec(id), Access::write);
            late.emplace_back(id, o);
          } else if (!take_over_gradient(node, ref.index)) {
            o = write_gradient(id);
            written.push_back(id);
          }
        }
        break;
      case OperandKind::scratch: o = scratch(scratches[i]); break;
    }
    operands.push_back(o);
  }
  if (op.record_backward) {
    std::vector<std::byte> own(program_.args.begin() + node.args,  // which its records add to
                               program_.args.begin() + node.args + static_cast<std::ptrdiff_t>(op.args_bytes));
    if (auto* bound = op.bound ? op.bound(own.data()) : nullptr) bound->at = bindings_.object(bound->name);
    op.record_backward(*this, operands, own.data());
  } else {
    push_backward(node, specs, operands);
  }
  for (const auto& [id, from] : late) {
    Operand pair[2] = {write_gradient(id), from};
    pair[1].access = Access::read;
    emit<AddInto>(pair, nullptr, 0, AddInto::cost(from.spec), Phase::backward);
  }
}

namespace {

/// What the op states of a record with these operands.
Cost backward_cost(const OpInfo& op, const Spec* in, const void* args, std::span<const Operand> operands) {
  if (op.backward_cost) return op.backward_cost(in, args);
  const Cost forward = op.stated_cost(in, args);
  double passes = op.splits < 0 ? 2 : 0;
  for (std::size_t i = 0; i < op.backward_operands.size() && op.splits >= 0; ++i)
    if (const auto& ref = op.backward_operands[i]; ref.kind == OperandKind::grad_in && operands[i].slot >= 0)
      passes += ref.index == 0 || ref.index == op.splits;
  return {.operations = passes * forward.operations, .unit = forward.unit};
}

}  // namespace

/// One record, or two if the gradient of a weight goes to a separate lane. `in`: the inputs of forward.
void Graph::push_backward(const Node& node, const std::vector<Spec>& in, std::vector<Operand> operands) {
  const auto& op = *node.op;
  const auto record = [&](std::span<const Operand> list) {
    const Cost stated = backward_cost(op, in.data(), program_.args.data() + node.args, list);
    push(op.name, true, list, node.args, stated, Phase::backward);
  };
  std::vector<Operand> weight = operands;
  bool weight_wanted = false, more_wanted = false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& ref = op.backward_operands[i];
    if (ref.kind != OperandKind::grad_in || operands[i].slot < 0) continue;
    const bool is_weight = ref.index == op.splits;
    (is_weight ? weight_wanted : more_wanted) = true;
  }
  if (!options_.weights_beside || !weight_wanted || !more_wanted) return record(operands);
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (const auto& ref = op.backward_operands[i]; ref.kind == OperandKind::grad_in)
      (ref.index == op.splits ? operands[i] : weight[i]) = Operand();
  record(operands);
  const OnLane lane(*this, Lane::weights);
  record(weight);
}

// ---------------------------------------------------------------- recompute

/// Slot of the recomputed copy of a value's base; -1 if the original is still valid.
int Graph::remapped(int id) const {
  const auto b = static_cast<std::size_t>(value(id).base);
  return b < remap_.size() ? remap_[b] : -1;
}

/// Records the part of the forward of a segment again that its backward reads.
void Graph::rematerialise(int segment) {
  rematerialised_[static_cast<std::size_t>(segment)] = 1;
  const auto inside = [&](const Node& n) { return n.segment == segment; };
  const auto first = static_cast<std::size_t>(std::find_if(nodes_.begin(), nodes_.end(), inside) - nodes_.begin());
  auto last = first;
  while (last < nodes_.size() && inside(nodes_[last])) ++last;

  std::vector<char> made(values_.size()), needed(values_.size());
  const auto base_of = [&](int id) { return static_cast<std::size_t>(value(id).base); };
  for (auto i = first; i < last; ++i)
    for (int id : nodes_[i].out)
      if (id >= 0) made[base_of(id)] = 1;
  // Values that are read outside of the segment are still alive: the gradients of their readers were just recorded.
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (i < first || i >= last)
      for (int id : nodes_[i].in)
        if (id >= 0) made[base_of(id)] = 0;

  for (auto i = first; i < last; ++i) {
    for (const auto& ref : nodes_[i].op->backward_operands) {
      const auto k = static_cast<std::size_t>(ref.index);
      const int id = ref.kind == OperandKind::in    ? nodes_[i].in[k]
                     : ref.kind == OperandKind::out ? nodes_[i].out[k]
                                                    : -1;
      if (id >= 0) needed[base_of(id)] = 1;
    }
  }
  std::vector<char> again(last - first);
  for (auto i = last; i-- > first;) {
    for (int id : nodes_[i].out) again[i - first] |= id >= 0 && made[base_of(id)] && needed[base_of(id)];
    if (again[i - first])
      for (int id : nodes_[i].in)
        if (id >= 0) needed[base_of(id)] = 1;
  }
  const auto outer = scope_;
  for (auto i = first; i < last; ++i) {
    if (!again[i - first]) continue;
    const Node& node = nodes_[i];
    if (node.op->renames) {
      remap_[base_of(node.out[0])] = remapped(node.in[0]);
      continue;
    }
    scope_ = node.scope;
    const void* args = program_.args.data() + node.args;
    std::vector<Spec> specs;
    for (int id : node.in) specs.push_back(id < 0 ? Spec() : value(id).operand.spec);
    const Cost stated = node.op->stated_cost(specs.data(), args);
    auto operands = forward_operands(*node.op, node.in, node.out, args);
    for (std::size_t k = 0; k < node.out.size(); ++k) {
      if (node.out[k] < 0) continue;
      if (node.op->updates) {
        operands[k].slot = remapped(node.out[k]);
        continue;
      }
      const auto& v = value(node.out[k]);
      operands[k].slot = add_slot({v.operand.spec, SlotKind::temp, v.name + ".again"});
      if (made[base_of(node.out[k])]) remap_[base_of(node.out[k])] = operands[k].slot;
    }
    const std::size_t updated = node.op->updates ? 1 : 0;  // that input is the output
    for (std::size_t k = updated; k < node.in.size(); ++k)
      if (node.in[k] >= 0)
        if (const int slot = remapped(node.in[k]); slot >= 0) operands[node.out.size() + k - updated].slot = slot;
    push(node.op->name, false, operands, node.args, stated, Phase::recompute);
  }
  scope_ = outer;
}

}  // namespace hpcdl
