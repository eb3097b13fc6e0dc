#pragma once

#include <optional>

#include "hpcdl/nn/param.h"
#include "hpcdl/ops/fp8_layer/fp8_layer.h"

namespace hpcdl::nn {

/// The magnitudes from which delayed scales follow, of all layers of a model (ops/fp8_amax): state of the model.
struct Fp8History {
  Param amax;

  void visit(auto&& f) { f("amax", amax); }
};

/// Whether an entry of the state table is such a history.
inline bool is_fp8_history(std::string_view name) { return name.ends_with("fp8.amax"); }

class Fp8;
class Mx4;

/// What a layer reads. Several layers may read one Input, whose cast to 8-bit floats, or projection to MXFP4, is then
/// recorded once.
class Input {
 public:
  Input(const Var& x) : value_(x) {}
  const Var& value() const { return value_; }

 private:
  friend class Fp8;
  friend class Mx4;
  Var value_;
  mutable std::optional<Fp8Operand<Var>> cast_;
  mutable Var projected_;
};

/// How a layer multiplies in 8-bit floats: activations and weights in E4M3, gradients in E5M2. Weights are rounded from
/// their f32 values.
class Fp8 {
 public:
  /// `history`: null unless scales are delayed; this is layer number `layer` of it. It must outlive this.
  Fp8(Fp8Scaling scaling, const Param* history, int layer) : scaling_(scaling), history_(history), layer_(layer) {}

  struct Form {
    bool conv1d = false, addend = false;  // as in LinearArgs
  };
  /// x W^T + bias + residual. Throws UsageError if the layer or the number of tokens does not fit tensor cores.
  Var operator()(const Input& x, const Param& weight, const Var& bias, const Var& residual, const Form& form) const;

 private:
  Fp8Scaling scaling_;
  const Param* history_;
  int layer_;
};

}  // namespace hpcdl::nn
