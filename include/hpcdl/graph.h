#pragma once
// The recorder. Ops called on Vars push records; backward() pushes the gradient records; finish() returns the
// program. In eager mode every record is also run as it is pushed.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/autocast.h"
#include "hpcdl/box.h"
#include "hpcdl/buffer.h"
#include "hpcdl/program.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

// The memory and the objects to which the names of a program are bound in one process.

class Bindings {
 public:
  /// A name is bound to one thing: throws Error if it is already bound to another.
  void bind(const std::string& name, const Tensor& memory);
  void bind(const std::string& name, const void* object);

  /// Absent if nothing is bound to that name.
  Tensor memory(std::string_view name) const;
  const void* object(std::string_view name) const;

 private:
  std::map<std::string, Tensor, std::less<>> memory_;        // of state slots
  std::map<std::string, const void*, std::less<>> objects_;  // of Bounds
};

/// A program, and what its recorder was given for the names in it.
struct Recording {
  Program program;
  Bindings bindings;
};

class Graph;

/// A value of a program being recorded: a handle, cheap to copy. A default Var is an absent optional operand.
/// Vars stay valid for Instance::tensor() after the Graph is gone.
class Var {
 public:
  using symbolic_tag = void;

  Var() = default;
  Var(Graph* graph, int id, Operand operand) : graph_(graph), id_(id), operand_(operand) {}

  explicit operator bool() const { return id_ >= 0; }
  Graph& graph() const { return *graph_; }
  int id() const { return id_; }
  const Operand& operand() const { return operand_; }
  const Spec& spec() const { return operand_.spec; }
  const Shape& shape() const { return operand_.spec.shape; }
  DType dtype() const { return operand_.spec.dtype; }
  std::int64_t operator[](int i) const { return operand_.spec.shape[i]; }

 private:
  Graph* graph_ = nullptr;
  int id_ = -1;
  Operand operand_;
};

class Graph {
 public:
  struct Options {
    /// Parameter gradients: the first contribution of this program overwrites, or adds to the result of an earlier run.
    Write parameter_gradients = Write::overwrite;
    /// GPU: gradients of the weights of linear layers, for which only the optimizer waits, are separate records on
    /// Lane::weights.
    bool weights_beside = false;
    /// Record no gradient rules (inference): nothing is kept alive for backward.
    bool inference = false;
    /// What kernels keep to: a property of the program.
    Numerics numerics = {};
    /// Non-null: run every record on this stream as it is pushed.
    Stream* eager = nullptr;
  };

  Graph() : Graph(Options{}) {}
  explicit Graph(Options options);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // -- leaves. The program names those in memory of the caller. A Tensor with a spec and without memory is
  // enough to record; the code that makes an Instance then binds its memory.
  /// Filled by the caller before each run; no gradient.
  Var input(std::string name, Spec spec, SlotRole role = SlotRole::data);
  /// Memory of the caller, without gradient: frozen weights, buffers, caches, state. The same name returns
  /// the same Var, so a module may call this whenever it is called.
  Var constant(std::string name, Tensor memory);
  /// Memory of the caller with a gradient, also in memory of the caller, as NAME.grad; the same Var for the same name.
  Var parameter(std::string name, Tensor value, Tensor gradient);
  /// A copy of the parameter `of` in other memory of the caller, rounded to another type: ops read the copy, gradients
  /// are those of `of`.
  Var stand_in(const Var& of, std::string name, Tensor memory);
  /// A leaf in the arena that has a gradient: tests, and stages whose input gradient leaves the program.
  Var differentiable_input(std::string name, Spec spec);
  /// Sets the memory of leaves of this name that are recorded with only a spec, from now on.
  void bind(const std::string& name, const Tensor& memory) { bindings_.bind(name, memory); }

  // -- views: no record, no copy; gradients are views too
  Var reshape(const Var& x, Shape shape);
  /// Columns [begin, begin + count) of the last dim.
  Var slice(const Var& x, std::int64_t begin, std::int64_t count);
  /// Rows [begin, begin + count) of the first dim.
  Var rows(const Var& x, std::int64_t begin, std::int64_t count);

  // -- records
  /// Pushes a record of a typed op and returns its non-auxiliary outputs. Use record<Op>() below.
  std::vector<Var> apply(const OpInfo& op, std::span<const Var> given, const void* args);
  /// Pushes a record outside the op protocol (optimizer over many tensors, collectives): `operands` in the order that
  /// `run` expects them, `bound` within `args` where they have one. `stated`: what does not follow from
  /// the operands (op.h). Has no gradient.
  void emit(OpName name, RunFn run, std::span<const Operand> operands, const void* args, std::size_t args_bytes,
            const Cost& stated = {}, Phase phase = Phase::forward, const Bound* bound = nullptr);
  /// The same of Raw::run() as Raw::name, which programs from files find.
  template <class Raw>
  void emit(std::span<const Operand> operands, const void* args, std::size_t args_bytes, const Cost& stated = {},
            Phase phase = Phase::forward, const Bound* bound = nullptr) {
    static_cast<void>(known_op<Raw>);
    emit(Raw::name, Raw::run, operands, args, args_bytes, stated, phase, bound);
  }
  /// A new arena variable without gradient, e.g. an output for emit().
  Var temporary(std::string name, Spec spec);
  /// Keeps x readable after a run.
  Var keep(const Var& x);

  // -- gradients
  /// Records d(loss)/d(everything that needs it). loss must have one element; its gradient is seeded with 1. Only once
  /// for the ops recorded so far: a second loss of the same ops is an error.
  void backward(const Var& loss);
  /// The same for a tensor-valued y with a given gradient of y.
  void backward(const Var& y, const Var& dy);
  /// The gradient of x after backward(); absent when none was recorded. Only for leaves: other gradients may be
  /// overwritten.
  Var gradient(const Var& x) const;
  /// Whether backward() can give x a gradient.
  bool wants_gradient(const Var& x) const { return x && value(x.id()).needs_gradient && !options_.inference; }

  /// Runs f and drops its intermediates: backward records them again just before they are needed
  /// (Chen et al., "Training deep nets with sublinear memory cost", 2016). Bitwise neutral.
  template <class F> auto checkpoint(F&& f) {
    const int outer = begin_segment();
    auto out = f();
    end_segment(outer);
    return out;
  }

  /// Names records pushed during its lifetime: Scope s(graph, "layers.3"); nested scopes join with dots. An empty name
  /// adds nothing.
  class Scope {
   public:
    Scope(Graph& g, std::string_view name);
    ~Scope() { graph_.scope_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    std::uint32_t outer_;
  };

  /// Records pushed during its lifetime are on `lane`.
  class OnLane {
   public:
    OnLane(Graph& g, Lane lane) : graph_(g), outer_(g.lane_) { g.lane_ = lane; }
    ~OnLane() { graph_.lane_ = outer_; }
    OnLane(const OnLane&) = delete;
    OnLane& operator=(const OnLane&) = delete;

   private:
    Graph& graph_;
    Lane outer_;
  };

  /// Ops called during its lifetime compute in the types of a policy (autocast.h); null: in those of their inputs.
  class Autocast {
   public:
    Autocast(Graph& g, std::optional<AutocastPolicy> policy);
    ~Autocast() { graph_.autocast_ = outer_; }
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

   private:
    Graph& graph_;
    std::optional<AutocastPolicy> outer_;
  };
  /// The type in which an op of class c computes here, given an input of type `input`: modules with rounded copies of
  /// weights use it.
  DType compute_type(OpClass c, DType input) const {
    const DType wanted = autocast_ ? autocast_->of(c) : DType::none;
    return wanted == DType::none ? input : wanted;
  }

  /// Key for counter-based random numbers: one per call, the same for the same order of recording.
  std::uint64_t next_rng_stream() { return ++rng_streams_; }
  /// Index of the next record.
  int position() const { return static_cast<int>(program_.records.size()); }
  const Program& program() const { return program_; }
  Recording finish();
  bool is_eager() const { return options_.eager != nullptr; }
  /// Eager mode: the memory of x.
  Tensor eager_tensor(const Var& x) const;

 private:
  struct Value {
    Operand operand;
    int base;    // value that owns the slot; the value itself unless it is a view
    Box region;  // of the base, that a view covers
    bool needs_gradient = false;
    // of a base:
    int gradient_slot = -1;
    std::vector<Box> written;  // of the gradient, disjoint
    int parameter = -1;
    std::string name;
  };
  struct Parameter {
    int value;
    int gradient_slot;
    int uses = 0;  // contributions still to come in backward()
  };
  struct Node {
    const OpInfo* op;
    std::vector<int> in, out;  // value ids; -1 absent
    std::uint32_t args;
    std::uint32_t scope;
    int segment;  // -1: none
  };

  int add_slot(Slot slot);
  int add_value(Value v);
  Var var(int id) { return id < 0 ? Var() : Var(this, id, values_[static_cast<std::size_t>(id)].operand); }
  Value& value(int id) { return values_[static_cast<std::size_t>(id)]; }
  const Value& value(int id) const { return values_[static_cast<std::size_t>(id)]; }
  Value& base(int id) { return value(value(id).base); }
  Var window(const Var& x, int dim, std::int64_t begin, std::int64_t count);
  Operand gradient_operand(int id) const;
  Spec gradient_spec(int id) const;
  static Operand whole(int slot, const Spec& spec, Access access);
  Operand scratch(const Spec& spec);

  Var update(const OpInfo& op, Node node, std::span<const Spec> specs);
  std::vector<Operand> forward_operands(const OpInfo& op, std::span<const int> in, std::span<const int> out,
                                        const void* args);
  void push(OpName name, bool backward, std::span<const Operand> operands, std::uint32_t args, const Cost& stated,
            Phase phase);
  std::uint32_t store_args(const void* args, std::size_t bytes, const Bound* bound);
  int add_state(const std::string& name, const Tensor& memory);
  std::byte* eager_data(int slot) const { return eager_data_[static_cast<std::size_t>(slot)]; }
  void fill(const Operand& where, float v);
  void cast_inputs(const OpInfo& op, std::span<Var> in);
  Var cast_once(const Var& x, DType to);
  void forget_casts(std::span<const Operand> operands);

  int begin_segment();
  void end_segment(int outer);
  void require_recorded(const Var& y) const;
  void run_backward();
  void backward_of(const Node& node);
  void push_backward(const Node& node, const std::vector<Spec>& in, std::vector<Operand> operands);
  bool take_over_gradient(const Node& node, int input);
  std::vector<Box> missing_gradient(int id);
  void zero_gradient(int id, std::span<const Box> boxes);
  Operand write_gradient(int id);
  Operand read_gradient(int id);
  void rematerialise(int segment);
  int remapped(int id) const;
  void count_parameter_uses();
  void finish_parameter_uses(const Node& node);

  Options options_;
  Program program_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<Parameter> parameters_;
  std::map<std::string, int> states_;  // value id, by name
  Bindings bindings_;
  std::vector<std::unique_ptr<Buffer>> eager_memory_;
  std::vector<std::byte*> eager_data_;  // by slot; empty unless eager
  std::vector<int> remap_;              // value id -> its recomputed twin, while a segment runs backward
  std::vector<char> rematerialised_;    // per segment
  std::optional<AutocastPolicy> autocast_;
  struct KnownCast {
    int value;    // the result
    int segment;  // where it was recorded
  };
  std::map<std::pair<int, DType>, KnownCast> casts_;  // by value and type
  std::uint32_t scope_ = 0;
  Lane lane_ = Lane::compute;
  std::uint64_t rng_streams_ = 0;
  int segment_ = -1, segments_ = 0;
};

/// Records Op on Vars; absent optional operands are default Vars. Returns the one Var, or an array of the
/// non-auxiliary outputs.
template <class Op, class... Vars> auto record(const typename Op::Args& given, const Vars&... in) {
  constexpr const OpInfo& info = op_info<Op>;
  static_cast<void>(known_op<Op>);
  auto args = given;
  clear_padding(args);
  static_assert(sizeof...(Vars) == static_cast<std::size_t>(info.n_in), "one Var per input of the op");
  const Var list[] = {Var(in)...};
  Graph* graph = nullptr;
  for (const auto& v : list)
    if (v) graph = &v.graph();
  auto out = graph->apply(info, list, &args);
  if constexpr (info.n_out - info.n_aux == 1) {
    return out[0];
  } else {
    std::array<Var, static_cast<std::size_t>(info.n_out - info.n_aux)> many;
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = out[i];
    return many;
  }
}

}  // namespace hpcdl
