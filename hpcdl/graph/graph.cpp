#include "hpcdl/graph.h"

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/program/edit.h"

namespace hpcdl {

Graph::Graph(Options options) : options_(options) { program_.numerics = options.numerics; }
Graph::~Graph() = default;

// ---------------------------------------------------------------- leaves and views

int Graph::add_slot(Slot slot) {
  if (options_.eager && slot.kind == SlotKind::state) {
    eager_data_.push_back(static_cast<std::byte*>(bindings_.memory(slot.name).data()));
    require(eager_data_.back() != nullptr || slot.spec.bytes() == 0, "graph",
            "\"{}\" has no memory, which an eager graph needs", slot.name);
  } else if (options_.eager) {
    eager_memory_.push_back(std::make_unique<Buffer>(slot.spec.bytes(), options_.eager->device()));
    eager_data_.push_back(eager_memory_.back()->data());
  }
  program_.slots.push_back(std::move(slot));
  return static_cast<int>(program_.slots.size()) - 1;
}

int Graph::add_value(Value v) {
  values_.push_back(std::move(v));
  const int id = static_cast<int>(values_.size()) - 1;
  if (values_.back().base < 0) {
    values_.back().base = id;
    auto& region = values_.back().region;
    region.extent = region.begin = values_.back().operand.spec.shape;
    for (int d = 0; d < region.begin.rank(); ++d) region.begin[d] = 0;
  }
  return id;
}

/// The slot of a tensor in memory of the caller.
int Graph::add_state(const std::string& name, const Tensor& memory) {
  if (memory) bindings_.bind(name, memory);
  return add_slot({memory.spec(), SlotKind::state, name});
}

Operand Graph::whole(int slot, const Spec& spec, Access access) {
  return {slot, 0, spec, contiguous_strides(spec.shape), access};
}

Operand Graph::scratch(const Spec& spec) {
  return whole(add_slot({spec, SlotKind::temp, "scratch", SlotRole::scratch}), spec, Access::write);
}

Var Graph::input(std::string name, Spec spec, SlotRole role) {
  const int slot = add_slot({spec, SlotKind::input, name, role});
  return var(add_value(
      {.operand = whole(slot, spec, Access::read), .base = -1, .region = {}, .written = {}, .name = std::move(name)}));
}

Var Graph::constant(std::string name, Tensor memory) {
  require(memory.is_contiguous(), "graph", "constant \"{}\" must be contiguous", name);
  if (const auto known = states_.find(name); known != states_.end()) {
    const Var v = var(known->second);
    if (memory) bindings_.bind(name, memory);
    require(v.spec() == memory.spec(), "graph",
            "\"{}\" was recorded as {} and is now {}: give the second one another name", name, to_string(v.spec()),
            to_string(memory.spec()));
    return v;
  }
  const int slot = add_state(name, memory);
  const int id = add_value(
      {.operand = whole(slot, memory.spec(), Access::read), .base = -1, .region = {}, .written = {}, .name = name});
  states_.emplace(std::move(name), id);
  return var(id);
}

Var Graph::parameter(std::string name, Tensor value, Tensor gradient) {
  const Var v = constant(name, value);
  if (options_.inference || !gradient.spec()) return v;
  require(gradient.is_contiguous() && gradient.spec() == value.spec(), "graph",
          "the gradient of parameter \"{}\" must be a contiguous {}, got {}", name, to_string(value.spec()),
          to_string(gradient.spec()));
  auto& val = this->value(v.id());
  if (val.parameter >= 0) {
    if (gradient) bindings_.bind(name + ".grad", gradient);
    return v;
  }
  val.needs_gradient = true;
  val.parameter = static_cast<int>(parameters_.size());
  const int slot = add_state(name + ".grad", gradient);
  parameters_.push_back({v.id(), slot});
  return v;
}

Var Graph::stand_in(const Var& of, std::string name, Tensor memory) {
  require(memory.is_contiguous() && memory.shape() == of.shape() && value(of.id()).base == of.id(), "graph",
          "\"{}\" must be a contiguous tensor of the shape of the parameter it stands for, {}, got {}", name,
          to_string(of.spec()), to_string(memory.spec()));
  if (const auto known = states_.find(name); known != states_.end()) {
    if (memory) bindings_.bind(name, memory);
    return var(known->second);
  }
  const int slot = add_state(name, memory);
  Value v = value(of.id());
  v.operand = whole(slot, memory.spec(), Access::read);
  v.written.clear();
  v.name = name;
  const int id = add_value(std::move(v));
  states_.emplace(std::move(name), id);
  return var(id);
}

Var Graph::differentiable_input(std::string name, Spec spec) {
  const Var v = input(std::move(name), spec);
  value(v.id()).needs_gradient = !options_.inference;
  return v;
}

Var Graph::temporary(std::string name, Spec spec) {
  const int slot = add_slot({spec, SlotKind::temp, name});
  return var(add_value(
      {.operand = whole(slot, spec, Access::read), .base = -1, .region = {}, .written = {}, .name = std::move(name)}));
}

Var Graph::keep(const Var& x) {
  require(static_cast<bool>(x), "graph",
          "an absent variable cannot be kept, for example a gradient that was not recorded");
  auto& slot = program_.slots[static_cast<std::size_t>(x.operand().slot)];
  if (slot.kind == SlotKind::temp) slot.kind = SlotKind::kept;
  return x;
}

namespace {

/// Strides of the same elements under another shape; nullopt if that needs a copy. Besides contiguous tensors, the
/// last dim of strided rows may be split.
std::optional<Shape> reshaped_strides(const Operand& o, const Shape& to) {
  const Shape& from = o.spec.shape;
  if (View(nullptr, o.spec, o.strides, {}).is_contiguous()) return contiguous_strides(to);
  const int lead = from.rank() - 1;
  if (to.rank() < from.rank() || o.strides[-1] != 1) return std::nullopt;
  for (int i = 0; i < lead; ++i)
    if (from[i] != to[i]) return std::nullopt;
  Shape strides = contiguous_strides(to);
  for (int i = 0; i < lead; ++i) strides[i] = o.strides[i];
  return strides;
}

}  // namespace

Var Graph::reshape(const Var& x, Shape shape) {
  require(shape.size() == x.shape().size(), "reshape", "{} has {} elements, {} has {}", to_string(x.shape()),
          x.shape().size(), to_string(shape), shape.size());
  const auto strides = reshaped_strides(x.operand(), shape);
  require(strides.has_value(), "reshape", "{} cannot be viewed as {} without a copy", to_string(x.shape()),
          to_string(shape));
  Value v = value(x.id());
  v.operand.spec.shape = shape;
  v.operand.strides = *strides;
  v.written.clear();
  return var(add_value(std::move(v)));
}

Var Graph::slice(const Var& x, std::int64_t begin, std::int64_t count) {
  return window(x, x.shape().rank() - 1, begin, count);
}

Var Graph::rows(const Var& x, std::int64_t begin, std::int64_t count) { return window(x, 0, begin, count); }

/// Elements [begin, begin + count) of the first or the last dim. That must be a box of the region of x in its base, of
/// which x may be a reshaped view, and one with uniform rows.
Var Graph::window(const Var& x, int dim, std::int64_t begin, std::int64_t count) {
  const Shape& shape = x.shape();
  const std::string_view what = dim == 0 ? "rows" : "columns";
  require(shape.rank() > 0 && begin >= 0 && count > 0 && begin + count <= shape[dim], "slice",
          "{} [{}, {}) do not lie within {}", what, begin, begin + count, to_string(shape));
  Value v = value(x.id());
  // Both are one sequence of elements in row-major order, so the dim of the base is the one with as much outside.
  const Shape &extent = v.region.extent, base_inner = contiguous_strides(extent);
  std::int64_t outside = 1, base_outside = 1;
  for (int d = 0; d < dim; ++d) outside *= shape[d];
  int of = -1;
  for (int d = 0; d < extent.rank(); base_outside *= extent[d++])
    if (base_outside == outside) of = d;
  if (count < shape[dim]) {
    const auto inner = contiguous_strides(shape)[dim], each = of < 0 ? 0 : base_inner[of];
    const bool uniform = outside == 1 || each == 1;
    require(each > 0 && uniform && begin * inner % each == 0 && count * inner % each == 0, "slice",
            "{} [{}, {}) of {} are no block of the tensor {} of which it is a view", what, begin, begin + count,
            to_string(shape), to_string(extent));
    v.region.begin[of] += begin * inner / each;
    v.region.extent[of] = count * inner / each;
  }
  v.operand.spec.shape[dim] = count;
  v.operand.offset += begin * v.operand.strides[dim];
  v.written.clear();
  return var(add_value(std::move(v)));
}

// ---------------------------------------------------------------- records

Graph::Scope::Scope(Graph& g, std::string_view name) : graph_(g), outer_(g.scope_) {
  if (name.empty()) return;
  auto& scopes = g.program_.scopes;
  const std::string& prefix = scopes[g.scope_];
  scopes.push_back(prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name));
  g.scope_ = static_cast<std::uint32_t>(scopes.size() - 1);
}

std::uint32_t Graph::store_args(const void* args, std::size_t bytes, const Bound* bound) {
  if (bound && bound->at) bindings_.bind(bound->name, bound->at);
  return append_args(program_, args, bytes, bound);
}

Recording Graph::finish() {
  for (const auto at : program_.bounds)  // the bindings have them; only eager records needed them here
    reinterpret_cast<Bound*>(program_.args.data() + at)->at = nullptr;
  return {std::move(program_), std::move(bindings_)};
}

void Graph::push(OpName name, bool backward, std::span<const Operand> operands, std::uint32_t args, const Cost& stated,
                 Phase phase) {
  Record r;
  r.op = name;
  r.backward = backward;
  r.args = args;
  r.operands = static_cast<std::uint32_t>(program_.operands.size());
  r.operand_count = static_cast<std::uint32_t>(operands.size());
  r.phase = phase;
  r.scope = scope_;
  r.lane = lane_;
  program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
  r.cost = whole_cost(stated, program_, r);
  program_.records.push_back(r);
  if (!options_.eager) return;
  std::vector<Grad> tensors;
  for (const auto& o : operands) {
    if (o.slot < 0) {
      tensors.emplace_back();
      continue;
    }
    tensors.emplace_back(
        Tensor(eager_data(o.slot) + o.offset * dtype_bytes(o.spec.dtype), o.spec, o.strides, options_.eager->device()),
        o.access == Access::update ? Write::accumulate : Write::overwrite);
  }
  const WithNumerics numerics(*options_.eager, options_.numerics);
  options_.eager->push_params();
  function_of(name, backward).run(*options_.eager, tensors.data(), program_.args.data() + args);
}

void Graph::emit(OpName name, RunFn run, std::span<const Operand> operands, const void* args, std::size_t args_bytes,
                 const Cost& stated, Phase phase, const Bound* bound) {
  if (!casts_.empty()) forget_casts(operands);
  know(name, false, {run});
  push(name, false, operands, store_args(args, args_bytes, bound), stated, phase);
}

std::vector<Operand> Graph::forward_operands(const OpInfo& op, std::span<const int> in, std::span<const int> out,
                                             const void* args) {
  std::vector<Operand> operands;
  std::vector<Spec> specs;
  for (int id : in) specs.push_back(id < 0 ? Spec() : value(id).operand.spec);
  for (int id : out) {
    operands.push_back(id < 0 ? Operand() : value(id).operand);
    operands.back().access = op.updates ? Access::update : Access::write;
  }
  for (int id : in.subspan(op.updates ? 1 : 0)) {
    operands.push_back(id < 0 ? Operand() : value(id).operand);
    operands.back().access = Access::read;
  }
  if (op.scratch) {
    Spec list[OpInfo::kMaxScratch];
    const int n = op.scratch(specs.data(), args, list);
    for (int i = 0; i < n; ++i) operands.push_back(scratch(list[i]));
  }
  return operands;
}

std::vector<Var> Graph::apply(const OpInfo& op, std::span<const Var> given, const void* args) {
  std::vector<Var> in(given.begin(), given.end());
  for (std::size_t i = 0; i < in.size(); ++i)
    require(!in[i] || &in[i].graph() == this, op.name, "operand {} belongs to another graph", i);
  if (autocast_ && op.casts) cast_inputs(op, in);
  know(op);
  std::vector<Spec> specs(in.size());
  Spec outs[OpInfo::kMaxOut];
  const Bound* bound = op.bound ? op.bound(const_cast<void*>(args)) : nullptr;
  Node node{&op, {}, {}, store_args(args, op.args_bytes, op.renames ? nullptr : bound), scope_, segment_};
  if (op.renames && bound) {  // no record has these arguments; backward() looks up the object by its name
    if (bound->at) bindings_.bind(bound->name, bound->at);
    op.bound(program_.args.data() + node.args)->at = nullptr;
  }
  bool needs_gradient = false;
  for (std::size_t i = 0; i < in.size(); ++i) {
    node.in.push_back(in[i].id());
    specs[i] = in[i] ? in[i].spec() : Spec();
    if (in[i]) needs_gradient |= value(in[i].id()).needs_gradient;
  }
  if (op.updates) return {update(op, std::move(node), specs)};
  needs_gradient = needs_gradient && op.differentiable() && !options_.inference;
  op.infer(specs.data(), args, outs);
  require(!op.renames || View(nullptr, in[0].spec(), in[0].operand().strides, {}).is_contiguous(), op.name,
          "needs a contiguous tensor, got columns of one");
  std::vector<Var> result;
  for (int i = 0; i < op.n_out; ++i) {
    const bool aux = i >= op.n_out - op.n_aux;
    if (aux && !needs_gradient) {  // it will not be read
      node.out.push_back(-1);
      continue;
    }
    const auto operand = op.renames
                             ? in[0].operand()
                             : whole(add_slot({outs[i], SlotKind::temp, std::string(op.name)}), outs[i], Access::read);
    const int id = add_value({.operand = operand,
                              .base = -1,
                              .region = {},
                              .needs_gradient = needs_gradient && !aux,
                              .written = {},
                              .name = std::string(op.name)});
    node.out.push_back(id);
    if (!aux) result.push_back(var(id));
  }
  if (!op.renames) {
    const auto operands = forward_operands(op, node.in, node.out, args);
    push(op.name, false, operands, node.args, op.stated_cost(specs.data(), args), Phase::forward);
  }
  if (!options_.inference) nodes_.push_back(std::move(node));
  return result;
}

/// Overwrites input 0, which must be the output of an op and unread so far: nothing has read it, and no gradient rule
/// will read its old value.
Var Graph::update(const OpInfo& op, Node node, std::span<const Spec> specs) {
  const int id = node.in[0];
  const auto& o = value(id).operand;
  const auto& slot = program_.slots[static_cast<std::size_t>(o.slot)];
  require(slot.kind == SlotKind::temp && o.spec.bytes() == slot.spec.bytes(), op.name,
          "works in place, so it needs all of what another op made, got {} of \"{}\"", to_string(o.spec), slot.name);
  bool made = false;
  for (auto r = program_.records.rbegin(); r != program_.records.rend() && !made; ++r) {
    for (const auto& other : std::span(program_.operands).subspan(r->operands, r->operand_count)) {
      if (other.slot != o.slot) continue;
      require(other.access != Access::read, op.name, "works in place, but \"{}\" has already read its operand",
              r->op.view());
      made = true;
    }
  }
  for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n) {
    const auto at = std::find(n->out.begin(), n->out.end(), value(id).base);
    if (at == n->out.end()) continue;
    require(n->segment == segment_, op.name,
            "works in place: call it within the checkpoint() that computes its operand");
    for (const auto& ref : n->op->backward_operands)
      require(ref.kind != OperandKind::out || ref.index != at - n->out.begin(), op.name,
              "works in place, but the gradient of \"{}\" needs what it would overwrite", n->op->name);
    break;
  }
  node.out = {id};
  const auto operands = forward_operands(op, node.in, node.out, program_.args.data() + node.args);
  if (!casts_.empty()) forget_casts(operands);
  push(op.name, false, operands, node.args, op.stated_cost(specs.data(), program_.args.data() + node.args),
       Phase::forward);
  if (!options_.inference) nodes_.push_back(std::move(node));
  return var(id);
}

Tensor Graph::eager_tensor(const Var& x) const {
  const auto& o = x.operand();
  require(options_.eager != nullptr, "graph", "not an eager graph: run the program and ask the Instance");
  return Tensor(eager_data(o.slot) + o.offset * dtype_bytes(o.spec.dtype), o.spec, o.strides, options_.eager->device());
}

int Graph::begin_segment() {
  const int outer = segment_;
  if (segment_ < 0) segment_ = segments_++;
  return outer;
}

void Graph::end_segment(int outer) { segment_ = outer; }

}  // namespace hpcdl
