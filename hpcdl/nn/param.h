#pragma once
// Parameters of modules. A module is a plain struct whose visit() is the only list of its parts:
//
//   struct Mlp {
//     Linear c_fc, c_proj;
//     void visit(auto&& f) { f("c_fc", c_fc), f("c_proj", c_proj); }
//   };
//
// The names are those of the Hugging Face files, so that no table translates between the two.

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/graph.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/nn/expert_share.h"
#include "hpcdl/nn/sharing.h"
#include "hpcdl/tensor.h"

namespace hpcdl::nn {

enum class Init : unsigned char { zeros, ones, normal, uniform };

/// How a tensor of a module is used.
enum class Role : unsigned char {
  trained,
  state,    // f32; programs read and write it, files hold it, the optimizer does not update it: running statistics
  counter,  // one i64 in host memory: the number of training passes so far
  frozen,   // never changes: it has no gradient, and checkpoints do not hold it
};

/// One parameter: its definition (set by its module), and the specs of its tensors. The StateTable (state/table.h) owns
/// their memory, to which programs refer by name. An absent parameter (a Linear without bias) has an absent spec.
struct Param {
  Spec spec;
  Init init = Init::zeros;
  float std = 0;  // for Init::normal; for Init::uniform the bound: (-std, std)
  Role role = Role::trained;
  bool decay = false;  // weight decay: matrices yes, norms and biases no
  bool multiplied =
      false;  // a matrix of products: the weight of a Linear or a convolution, the table that the head reads
  Part part;  // the part that this rank holds; `spec` is the spec of the part
  const Sharing* sharing = nullptr;  // set if several ranks share the layers
  Place place = Place::whole;        // along the axis of these ranks
  bool partial_gradient = false;     // the ranks that share the layers hold summands of the gradient
  /// Set for a matrix of an expert if ranks divide the experts; `expert_rank` has it, and on the others it is an empty part.
  const ExpertShare* experts = nullptr;
  int expert_rank = 0;
  /// For rank 4: memory holds (N, H, W, C) where files hold (N, C, H, W), also if dims are joined. This applies to the
  /// kernels of convolutions, and to the columns of a linear layer after a flattened image.
  Shape channels_last;

  std::string name;  // full name, e.g. "transformer.h.0.attn.c_attn.weight"
  // Set by the table for entries with these names; absent until then, and if there are none.
  Spec value;
  Spec gradient;          // NAME.grad; absent if the parameter is frozen
  Spec copy;              // NAME.copy: the value rounded to bf16 or f16, for products
  bool gathered = false;  // it is frozen, and every pass gathers it from several ranks

  /// The shape of the parameter over all ranks.
  const Shape& whole() const { return part.all() ? spec.shape : part.whole; }
  /// The shape in files.
  Shape file_shape() const {
    const auto& c = channels_last;
    return c.rank() == 4 && whole().rank() == 4 ? Shape{c[0], c[3], c[1], c[2]} : whole();
  }
  /// The parameter as a variable of a program; an absent Var for an absent parameter.
  Var operator()(Graph& g) const {
    if (!value) return {};
    return gradient ? g.parameter(name, Tensor(nullptr, value), Tensor(nullptr, gradient))
                    : g.constant(name, Tensor(nullptr, value));
  }
  /// How ranks share the layer that owns it, if it has this place; else null.
  const Sharing* shared_as(Place p) const { return place == p ? sharing : nullptr; }
  /// The axis of these ranks, for exchanges that carry the name of the module that owns the parameter.
  Axis axis() const { return sharing->axis.with(std::string_view(name).substr(0, name.rfind('.'))); }
  /// Whether no program writes the tensor that products read.
  bool constant() const { return !gradient && !copy && !gathered; }
  /// The tensor that a product with activations of type x reads: the copy, if it has the type in which the product is
  /// computed.
  Var rounded(Graph& g, DType x) const {
    const Var v = (*this)(g);
    const DType compute = g.compute_type(OpClass::product, x);
    return v && copy && copy.dtype == compute ? g.stand_in(v, name + ".copy", Tensor(nullptr, copy)) : v;
  }
};

/// A matrix. It may be quantised: then `value` is absent, and there are the parts of its codec.
struct Weight : Param {
  const Codec* codec = nullptr;
  Codec::Parts<Spec> parts = {};

  bool quantized() const { return codec != nullptr; }
  /// The parts of a quantised matrix as variables of a program; absent where their specs are.
  Codec::Parts<Var> part_vars(Graph& g) const {
    Codec::Parts<Var> vars;
    for (std::size_t i = 0; i < vars.size(); ++i)
      if (parts[i]) vars[i] = g.constant(name + std::string(codec->names[i].in_programs), Tensor(nullptr, parts[i]));
    return vars;
  }
};

/// A scope for the records of the module that owns p, from the name of p: "transformer.h.0.mlp.c_fc.weight" gives
/// "c_fc".
inline Graph::Scope module_scope(Graph& g, const Param& p) {
  const auto dot = p.name.rfind('.');
  const auto module = std::string_view(p.name).substr(0, dot == std::string::npos ? 0 : dot);
  return Graph::Scope(g, module.substr(module.rfind('.') + 1));
}

namespace detail {
template <class F> struct Walker {
  F& f;
  std::string prefix;

  template <class T> void operator()(std::string_view name, T& part) const {
    const std::string path = prefix.empty() ? std::string(name) : prefix + "." + std::string(name);
    if constexpr (std::is_base_of_v<Param, T>) {
      f(path, part);
    } else {
      part.visit(Walker{f, path});
    }
  }
  template <class T> void operator()(std::string_view name, std::vector<T>& parts) const {
    for (std::size_t i = 0; i < parts.size(); ++i) (*this)(std::string(name) + "." + std::to_string(i), parts[i]);
  }
};
}  // namespace detail

/// f(full name, Param& or Weight&) for every parameter of a module, including absent ones, in the order of visit().
template <class M, class F> void for_each_param(M& module, F f, std::string prefix = "") {
  module.visit(detail::Walker<F>{f, std::move(prefix)});
}

}  // namespace hpcdl::nn
