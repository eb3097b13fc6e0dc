#pragma once

#include "hpcdl/graph.h"

namespace hpcdl::models {

/// Where the layers of a model come from if they do not all stay in the memory in which programs read them.
class LayerSource {
 public:
  virtual ~LayerSource() = default;
  /// Records that a layer is needed from here on, and until here. No effect on a layer that stays.
  virtual void fetch(Graph& g, int layer) const = 0;
  virtual void release(Graph& g, int layer) const = 0;
  /// Records that experts of a layer are needed until the next record of this kind: those that `chosen` names (i32, any
  /// shape; negative numbers name none). No effect on layers whose experts are all in memory.
  virtual void fetch_experts(Graph&, int /*layer*/, const Var& /*chosen*/) const {}
};

}  // namespace hpcdl::models
