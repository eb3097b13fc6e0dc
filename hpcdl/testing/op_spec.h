#pragma once
// Makes all tests of an op from one spec.
//
//   const auto spec = testing::op<Softmax>({.cases = {...}, .contracts = contract::softmax_contracts()});
//
// registers, for every case, with every instruction set of this CPU and on a GPU, in f32, bf16 and f16 (on a CPU values
// alone):
//   forward       against the naive double-precision reference, outputs poisoned with NaN, inputs random with outliers,
//                 operands misaligned by one element
//   gradient      the op's backward, and the contract's reference of it, against central differences of the reference
//                 in double
//   accumulate    backward on top of an earlier gradient = overwrite + that gradient
//   repeat        bit for bit: run to run, one thread and two
//   replay        bit for bit: eager graph, recorded program, direct call
//   in_place      if the op allows it
// and for every contract, with every instruction set
//   rows          bit for bit: each of 1 to 300 rows, and the row alone (rows_alone.h)
//
// Tolerances are derived, not chosen: a result of magnitude m from a reduction of length L may be off by the storage
// type's half ulp, plus (4 + sqrt(L)) float ulps of the magnitudes involved ("random walk" bound, Higham, "Accuracy and
// stability of numerical algorithms", section 2.8). A contract gives these magnitudes for each result. A reference
// alone, and differences, do not: then it is the largest magnitude, times `condition` if the function amplifies
// errors.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/ops/contract.h"

namespace hpcdl::testing {

using contract::Expected;
using contract::Values;

/// Which values an integer or special input takes; float inputs default to `normal`.
enum class Fill : unsigned char { normal, uniform, positive, zero, index };

struct Input {
  Shape shape;
  bool absent = false;
  DType dtype = DType::none;  // none: the float type under test
  Fill fill = Fill::normal;
  std::int64_t below = 0;  // Fill::index: integers in [0, below); `minus_one` sprinkles -1 (ignored)
  bool minus_one = false;
  bool differentiable = true;

  Input(std::initializer_list<std::int64_t> s) : shape(s) {}
  Input(Shape s) : shape(s) {}
  static Input none() {
    Input i{};
    i.absent = true;
    i.differentiable = false;
    return i;
  }
  static Input indices(Shape s, std::int64_t below, bool minus_one = false) {
    Input i(s);
    i.dtype = DType::i32;
    i.fill = Fill::index;
    i.below = below;
    i.minus_one = minus_one;
    i.differentiable = false;
    return i;
  }
  Input as(DType d) const {
    Input i = *this;
    i.dtype = d;
    return i;
  }
  Input filled(Fill f) const {
    Input i = *this;
    i.fill = f;
    return i;
  }
  Input fixed() const {
    Input i = *this;
    i.differentiable = false;
    return i;
  }
};

/// The spec with the Args type erased, which op_spec.cpp runs.
struct ErasedSpec {
  struct Case {
    std::vector<Input> in;
    std::vector<std::byte> args;
    bool gradient = true;
    std::string label;
    bool aligned = false;
  };
  const OpInfo* op = nullptr;
  std::vector<Case> cases;
  contract::Contract forward;                // for an op without a contract: a reference of the values only
  std::vector<contract::Contract> backward;  // one or none
  bool magnitudes = false;                   // forward has magnitudes for its results
  std::function<double(std::span<const Spec>, const void*)> reduction;
  double condition = 1, operand_rounding = 0;
  bool in_place = false;
  bool bf16 = true;
  bool outliers = true;
  bool gpu = true;
};

void register_op_tests(ErasedSpec spec);

template <class Op> struct OpSpec {
  using Args = typename Op::Args;
  struct Case {
    std::vector<Input> in;
    Args args = {};
    bool gradient = true;  // false: too large for finite differences of the reference
    bool aligned = false;  // operands are aligned as in a program, to reach kernels that need it
  };
  std::vector<Case> cases;
  /// Of ops/X/X.spec.h.
  contract::Contracts contracts = {};
  /// For an op without a contract: naive loops in double. `out` holds all outputs, including auxiliary ones,
  /// shaped and zeroed.
  std::function<void(std::span<Expected> out, std::span<const Values> in, const Args&)> reference = nullptr;
  /// Length of the longest sum of one result, if no contract gives it. Default: 1.
  std::function<std::int64_t(std::span<const Spec> in, const Args&)> reduction = nullptr;
  /// How much the function (or its gradient) amplifies relative errors of intermediate results; say why where it is
  /// not 1.
  double condition = 1;
  /// Half ulps of a 16-bit type, in units of the largest magnitude, by which values between two products are
  /// rounded if products have 16-bit operands: on a GPU, and for bf16 on CPUs that multiply it.
  double operand_rounding = 0;
  bool bf16 = true;
  /// Inputs hold a few values 10 times as large as the rest.
  bool outliers = true;
  /// Whether a GPU has kernels of the op.
  bool gpu = true;
};

template <class Op> bool op(OpSpec<Op> spec) {
  using Args = typename Op::Args;
  ErasedSpec e;
  e.op = &op_info<Op>;
  for (const auto& c : spec.cases) {
    std::vector<std::byte> bytes(sizeof(Args));
    std::memcpy(bytes.data(), &c.args, sizeof(Args));
    e.cases.push_back({c.in, std::move(bytes), c.gradient, "", c.aligned});
  }
  if (spec.reference) e.forward.reference = contract::with_args<Args>(spec.reference);
  for (auto& c : spec.contracts)
    if (!c.backward) e.forward = c, e.magnitudes = true;
    else if (c.op == e.op) e.backward.push_back(c);
  if (spec.reduction || spec.reference)
    e.reduction = [f = spec.reduction](std::span<const Spec> in, const void* a) {
      return f ? static_cast<double>(f(in, *static_cast<const Args*>(a))) : 1.0;
    };
  e.condition = spec.condition;
  e.operand_rounding = spec.operand_rounding;
  e.bf16 = spec.bf16;
  e.outliers = spec.outliers;
  e.gpu = spec.gpu;
  if constexpr (requires { Op::kInPlace; }) e.in_place = Op::kInPlace;
  register_op_tests(std::move(e));
  return true;
}

}  // namespace hpcdl::testing
