#pragma once

#include <memory>
#include <optional>

#include "hpcdl/nn/adapter.h"
#include "hpcdl/nn/adapter_set.h"
#include "hpcdl/nn/mx4.h"
#include "hpcdl/nn/structured.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matrix.h"

namespace hpcdl::nn {

/// The layout of a weight matrix in memory and in files.
enum class Layout : unsigned char {
  out_in,  // (out, in): torch.nn.Linear
  in_out,  // (in, out): the Conv1D of GPT-2
};

/// y = activation(x W^T + b) + residual; an adapter adds to x W^T + b. x: (..., in), y: (..., out). For a row layer
/// (sharing.h) x is this rank's columns, and there is no activation.
struct Linear {
  Weight weight;
  Param bias;
  std::optional<Adapter> adapter;
  std::shared_ptr<const AdapterSet> choices;  // of which each token of a batch has one or none; null: there are none
  std::optional<Fp8> fp8;                     // multiplies in 8-bit floats
  std::optional<Mx4> mx4;                     // in an emulation of MXFP4
  std::optional<Structured> structured;       // the factors of a compressed matrix, in place of `weight`
  Layout layout = Layout::out_in;

  Linear() = default;
  Linear(std::int64_t in, std::int64_t out, bool with_bias, float std, Layout l = Layout::out_in) : layout(l) {
    weight.spec = {l == Layout::out_in ? Shape{out, in} : Shape{in, out}, DType::f32};
    weight.init = Init::normal;
    weight.std = std;
    weight.decay = weight.multiplied = true;
    if (with_bias) bias.spec = {{out}, DType::f32};
  }

  std::int64_t in() const { return structured ? structured->in : weight.spec.shape[layout == Layout::out_in ? 1 : 0]; }
  std::int64_t out() const {
    return structured ? structured->out : weight.spec.shape[layout == Layout::out_in ? 0 : 1];
  }
  /// Gives it factors in place of its matrix. Throws Error if they do not fit its size.
  void compress(const Structure& s) {
    structured.emplace(in(), out(), s, weight.std);
    weight.spec = {};
  }

  /// `o`: for the dropout of the adapter. Layers that share an Input share its casts.
  Var operator()(const Input& x, Activation activation = Activation::none, const Var& residual = {},
                 const ForwardOptions& o = {}) const;
  /// Whether the tokens of this pass have adapters of their own.
  bool chooses(const ForwardOptions& o) const { return choices && o.batch && o.batch->adapters; }
  /// Whether its products have operands of few bits, made from full weights.
  bool narrow() const { return fp8 || mx4; }
  /// Whether ops that hold several layers can hold this one.
  bool has_matrix() const {
    return !adapter && !narrow() && !structured && (!weight.quantized() || weight.codec->matrix);
  }
  /// Whether it is a matrix of numbers and no more.
  bool is_plain() const { return !adapter && !weight.quantized() && !narrow() && !structured; }
  /// Its operands for them, of layout out_in; x: the type of its inputs.
  Matrix<Var> matrix(Graph& g, DType x) const;
  void visit(auto&& f) {
    if (!structured) f("weight", weight);
    else structured->visit(f);
    if (bias.spec) f("bias", bias);
    if (adapter) adapter->visit(f);
  }
};

/// activation(x), as an op of its own.
Var activated(const Var& x, Activation activation);

/// second(activation(first(x))) + residual as one op of training programs, unless ranks share the layers in a different
/// way; both are plain.
Var mlp(const Linear& first, const Linear& second, const Var& x, Activation activation, const Var& residual);

}  // namespace hpcdl::nn
