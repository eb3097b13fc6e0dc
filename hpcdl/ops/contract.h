#pragma once
// The only definition of what an op computes: `ops/X/X.spec.h` gives its formula, operands, shapes, arguments, minimum
// cost, and a naive reference in double with the magnitudes that bound rounding errors. The op's test, the verifier of
// external kernels and the lists of verifiable ops read it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/core/element.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/kernel_abi.h"
#include "hpcdl/op_info.h"
#include "hpcdl/tensor.h"

namespace hpcdl::contract {

/// The data pattern of a case. The last three put one such value among normal ones.
enum class Pattern : std::uint8_t {
  normal,
  positive,
  huge,
  tiny,
  denormal,
  offset,
  constant,
  zero,
  mixed,
  nan,
  pos_inf,
  neg_inf
};

/// Where an input's values come from: the pattern; always normal; uniform in 0.1 .. 1.1; integers in [0, below),
/// without or with an occasional -1; the contract's `derive`.
enum class Role : std::uint8_t { data, weight, positive, index, index_or_none, derived };

struct Input {
  Spec spec;  // default: absent
  Role role = Role::data;
  std::int64_t below = 0;
};

/// A tensor in double, already rounded to its storage type; false if absent.
struct Values {
  Spec spec;
  std::vector<double> v;

  explicit operator bool() const { return static_cast<bool>(spec); }
  double operator[](std::int64_t i) const { return v[static_cast<std::size_t>(i)]; }
  double& operator[](std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return spec.size(); }
  std::int64_t dim(int i) const { return spec.shape[i]; }
};

inline Values values_of(const View& t) {
  Values r{t.spec(), std::vector<double>(static_cast<std::size_t>(t.size()))};
  for (std::int64_t i = 0; i < t.size(); ++i) r[i] = element(t, i);
  return r;
}

/// The operands and arguments of one call.
struct Problem {
  std::vector<Input> in;
  std::vector<Spec> out;        // default: not requested
  std::vector<std::byte> args;  // kAbiBytes of kernel_abi.h, then the op's arguments; empty: Contract::args

  static constexpr std::size_t kAbiBytes = 64;
  template <class Abi, class Args> void set_args(const Abi& abi, const Args& op) {
    static_assert(sizeof abi <= kAbiBytes);
    args.resize(kAbiBytes + sizeof op);
    std::memcpy(args.data(), &abi, sizeof abi);
    std::memcpy(args.data() + kAbiBytes, &op, sizeof op);
  }
  /// For ops that have only the arguments of kernel_abi.h.
  template <class Abi> void set_args(const Abi& abi) { set_args(abi, abi); }
  /// The arguments of the op.
  template <class Args> Args as() const {
    Args a;
    std::memcpy(&a, args.data() + kAbiBytes, sizeof a);
    return a;
  }
};

/// An element whose value the contract leaves unspecified: a function's value where its limit and its formula disagree.
inline constexpr double kAny = std::numeric_limits<double>::infinity();

/// One output as computed by the reference. For each element: its value; the sum of magnitudes that it was computed
/// from (rounding errors are relative to it, core/tolerance.h); the magnitude at which it is rounded to the storage
/// type.
struct Expected {
  Spec spec;
  std::vector<double> value, scale, stored;

  Expected() = default;
  explicit Expected(const Spec& s)
      : spec(s), value(static_cast<std::size_t>(s.size())), scale(value.size()), stored(value.size()) {}
  double operator[](std::int64_t i) const { return value[static_cast<std::size_t>(i)]; }
  double& operator[](std::int64_t i) { return value[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return spec.size(); }
  /// Does nothing if the output is not requested.
  void set(std::int64_t i, double x, double summed, double rounded) {
    if (value.empty()) return;
    const auto at = static_cast<std::size_t>(i);
    value[at] = x, scale[at] = summed, stored[at] = rounded;
  }
  void set(std::int64_t i, double x, double summed) { set(i, x, summed, std::fabs(x)); }
  void add(std::int64_t i, double x) {
    if (value.empty()) return;
    const auto at = static_cast<std::size_t>(i);
    set(i, value[at] + x, scale[at] + std::fabs(x));
  }
};

using Outputs = std::span<Expected>;
using Inputs = std::span<const Values>;
/// Fills all outputs, which are initially 0; outputs that backward keeps come last. `args` are those of the op.
using Reference = std::function<void(Outputs out, Inputs in, const void* args)>;

/// A reference of an op with typed arguments.
template <class Args, class F> Reference with_args(F f) {
  return [f](Outputs out, Inputs in, const void* args) { f(out, in, *static_cast<const Args*>(args)); };
}

struct Dim {
  std::string_view name;
  std::int64_t least = 1, most = 300;  // in fuzzing; 0 rows are a separate edge case
};
using Dims = std::vector<std::int64_t>;

/// Of Contract::rows.
inline constexpr std::string_view kNoRows = "none";

struct Contract {
  std::string_view name;
  std::string_view formula;
  std::vector<std::string_view> inputs, outputs;

  /// The op that must fulfil the contract; null if programs do not record it by name (the optimizer).
  const OpInfo* op = nullptr;
  /// Another op, selected by the arguments.
  const OpInfo* (*op_for)(const void* args) = nullptr;
  bool backward = false;
  bool in_place = false;   // our kernel may overwrite input 0 with output 0
  bool needs_aux = false;  // our kernel requires its auxiliary outputs
  std::vector<std::byte> args;

  std::vector<Dim> dims;
  /// Awkward sizes; the first is the smoke test, the last the largest for which correctness is checked.
  std::vector<Dims> shapes;
  /// An ordinary size with remainders in all dimensions.
  Dims typical;
  /// The size for timings: a few MiB, so that results stand out from noise.
  Dims timed;
  int variants = 1;  // of arguments and optional operands

  /// The dim that counts rows of the results which do not depend on each other; kNoRows: there are none.
  std::string_view rows;
  /// Where rows are compared with themselves alone, for any number of them; default: `typical`.
  std::vector<Dims> row_shapes;
  /// The dims of the problem that is row `row` alone, whose operands are that row of those of `many` or their
  /// beginnings; empty: it cannot be posed alone. Default: one row.
  std::function<Dims(const Dims& many, int variant, std::int64_t row)> row_alone;
  std::function<Problem(const Dims&, DType, int variant)> problem;
  /// Fills input `i` of Role::derived from the preceding ones. random(k): uniform in [0, 1).
  std::function<void(std::vector<Values>& in, std::size_t i, const Problem&,
                     const std::function<double(std::int64_t)>& random)>
      derive;
  Reference reference;
  /// Length of the longest sum that one result depends on.
  std::function<std::int64_t(const Problem&)> reduction = [](const Problem&) { return std::int64_t{1}; };
  /// The minimum arithmetic of any implementation.
  std::function<double(const Problem&)> flops;
  /// The minimum traffic, results included; default: all operands.
  std::function<double(const Problem&)> bytes;
  std::vector<Pattern> patterns;  // for numerical stability
  double huge = 1e4;              // the magnitude of Pattern::huge
  /// Results and the terms of a sum may be flushed to zero below this: yes for functions of exp and products, no for
  /// copies.
  double flush = 0x1p-126;
  /// The input that receives a single NaN or infinity; -1: any. Where a masked key is multiplied by a weight of 0, a
  /// NaN in it may or may not propagate.
  int special_input = -1;

  const void* args_of(const Problem& p) const {
    return p.args.empty() ? args.data() : p.args.data() + Problem::kAbiBytes;
  }
  Cost cost(const Problem& p) const {
    Cost c{.operations = flops(p)};
    for (const auto& i : p.in) c.reads += static_cast<double>(i.spec.bytes());
    for (const auto& o : p.out) c.writes += static_cast<double>(o.bytes());
    if (bytes) c.reads = bytes(p) - c.writes;
    return c;
  }
  /// The allowed error of element `at` of an output for operands of `type`; infinite: unspecified.
  double allowed(const Expected& e, std::size_t at, DType type, double length) const {
    if (e.scale[at] == kAny) return kAny;
    // bf16 instructions flush subnormal numbers, both results and terms of sums; f16 has a spacing of 2^-24 there.
    const bool bf16 = e.spec.dtype == DType::bf16 || type == DType::bf16;
    const double least = std::max(bf16 ? 0x1p-126 : 0x1p-149, flush) * std::max(length, 1.0) +
                         (e.spec.dtype == DType::f16 ? 0x1p-24 : 0);
    return allowed_error(e.spec.dtype, e.stored[at], length, e.scale[at]) + least;
  }
};
using Contracts = std::vector<Contract>;

/// A contract of Op, whose arguments are `args` unless a problem says otherwise.
template <class Op>
Contract of(std::string_view name, std::string_view formula, std::vector<std::string_view> inputs,
            std::vector<std::string_view> outputs, const typename Op::Args& args = {}) {
  Contract c;
  c.name = name, c.formula = formula, c.inputs = std::move(inputs), c.outputs = std::move(outputs);
  c.op = &op_info<Op>;
  if constexpr (requires { Op::kInPlace; }) c.in_place = Op::kInPlace;
  c.args.resize(sizeof args);
  std::memcpy(c.args.data(), &args, sizeof args);
  return c;
}
/// The contract of the gradient, with the same shapes.
inline Contract backward_of(const Contract& forward, std::string_view name, std::string_view formula,
                            std::vector<std::string_view> inputs, std::vector<std::string_view> outputs) {
  Contract c = forward;
  c.name = name, c.formula = formula, c.inputs = std::move(inputs), c.outputs = std::move(outputs);
  c.backward = true, c.in_place = c.needs_aux = false;
  return c;
}

/// The operands of the op that fulfils a contract, as it takes them but for scratch, whose specs follow them.
struct OpOperands {
  std::vector<Grad> list;
  std::vector<Spec> scratch;
};
/// in(i): input i of the contract, or Grad(); out(i, spec): its output i, where `spec` is that of a forward, whose
/// auxiliary outputs come last.
template <class In, class Out>
OpOperands op_operands(const OpInfo& op, const void* args, bool backward, In&& in, Out&& out) {
  OpOperands o;
  Spec specs[16], more[std::max(OpInfo::kMaxOut, OpInfo::kMaxScratch)];
  int next_in = 0, next_out = 0;
  if (!backward) {
    for (int i = 0; i < op.n_in; ++i) specs[i] = in(i).spec();
    op.infer(specs, args, more);
    for (int i = 0; i < op.n_out; ++i) o.list.push_back(out(i, more[i]));
    for (int i = 0; i < op.n_in; ++i) o.list.push_back(in(i));
  } else {
    for (const auto& ref : op.backward_operands) {
      if (ref.kind == OperandKind::scratch) continue;
      o.list.push_back(ref.kind == OperandKind::grad_in ? out(next_out++, Spec()) : in(next_in++));
      const bool of_input = ref.kind == OperandKind::grad_in || ref.kind == OperandKind::in;
      if (of_input && o.list.back()) specs[ref.index] = o.list.back().spec();
    }
  }
  const auto scratch = backward ? op.backward_scratch : op.scratch;
  o.scratch.assign(more, more + (scratch ? scratch(specs, args, more) : 0));
  return o;
}

inline std::vector<Pattern> all_patterns() {
  return {Pattern::positive, Pattern::huge,  Pattern::tiny, Pattern::denormal, Pattern::offset, Pattern::constant,
          Pattern::zero,     Pattern::mixed, Pattern::nan,  Pattern::pos_inf,  Pattern::neg_inf};
}
/// Patterns without infinities.
inline std::vector<Pattern> finite_patterns() {
  auto p = all_patterns();
  p.resize(p.size() - 2);
  return p;
}
/// Patterns for contracts that cover several ops: no intermediate value exceeds the range of a float.
inline std::vector<Pattern> tame_patterns() {
  return {Pattern::positive, Pattern::tiny, Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::nan};
}

/// Difficult sizes of ops on rows, (rows, cols): 1, primes, one more or less than a vector or tile, no rows, one long
/// row.
inline void set_row_sizes(Contract& c, std::string_view cols = "cols", Dims timed = {1024, 1024}) {
  c.dims = {{"rows", 1, 24}, {cols, 1, 600}};
  c.rows = "rows";
  c.row_shapes = {{1, 131}, {1, 768}};
  c.shapes = {{4, 64}, {1, 1},   {1, 2},   {2, 3},   {3, 7},    {5, 8},    {7, 13},   {2, 15},
              {2, 16}, {3, 17},  {2, 31},  {4, 33},  {3, 63},   {2, 65},   {1, 127},  {2, 129},
              {0, 64}, {131, 5}, {1, 257}, {33, 96}, {1, 1023}, {2, 1025}, {3, 4099}, {37, 768}};
  c.typical = {5, 131};
  c.timed = std::move(timed);
  c.patterns = all_patterns();
}
/// Operations per element of output 0.
inline auto flops_per_result(double n) {
  return [n](const Problem& p) { return n * static_cast<double>(p.out[0].size()); };
}
inline auto flops_per_input(double n) {
  return [n](const Problem& p) { return n * static_cast<double>(p.in[0].spec.size()); };
}

/// `n` operands (rows, cols) of one dtype, one result like them.
inline Problem alike(const Dims& d, DType t, int n) {
  Problem p;
  const Spec s{{d[0], d[1]}, t};
  p.in.assign(static_cast<std::size_t>(n), {s});
  p.out = {s};
  return p;
}

/// Computes output 0 by `f(i, in, args) -> {value, scale}`, element by element.
template <class Args, class F> Reference each(F f) {
  return with_args<Args>([f](Outputs out, Inputs in, const Args& a) {
    for (std::int64_t i = 0; i < out[0].spec.size(); ++i) {
      const std::pair<double, double> element = f(i, in, a);
      out[0].set(i, element.first, element.second);
    }
  });
}

/// A sum and the sum of magnitudes of its terms.
struct Sum {
  double value = 0, scale = 0;
  void add(double x) { value += x, scale += std::fabs(x); }
  void put(Expected& e, std::int64_t i) const { e.set(i, value, scale); }
};

}  // namespace hpcdl::contract
