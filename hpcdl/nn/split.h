#pragma once
// What a module does where several ranks compute a layer together. Modules know no more of it than this; parallel/ sets
// and implements it.

#include "hpcdl/graph/graph.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl::nn {

struct Embedding;
struct LayerNorm;
struct Linear;
struct RmsNorm;

class Split {
 public:
  virtual ~Split() = default;
  /// A layer whose inputs are spread over the ranks: activation(x W^T + b) + residual, with bias and residual counted
  /// once.
  virtual Var linear(const Linear& l, const Var& x, Activation activation, const Var& residual) const = 0;
  /// second(activation(first(x))) + residual, with the layer in between spread over the ranks.
  virtual Var mlp(const Linear& first, const Linear& second, const Var& x, Activation activation,
                  const Var& residual) const = 0;
  /// A norm before layers that are spread over the ranks.
  virtual Var norm(const LayerNorm& n, const Var& x) const = 0;
  virtual Var norm(const RmsNorm& n, const Var& x) const = 0;
  /// Rows of a table that is spread over the ranks.
  virtual Var embed(const Embedding& table, const Var& ids, DType compute, const Var& positions) const = 0;
  /// Dropout of the activations between the layers; `part` as in ForwardOptions.
  virtual Var dropout(const Var& x, float p, std::int64_t part) const = 0;
};

}  // namespace hpcdl::nn
