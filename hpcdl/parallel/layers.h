#pragma once
// Layers that several ranks compute together, as ops: those of one rank with a collective where it costs no pass over
// memory of its own.
//
// Row layers (x and the weight split along what is summed over): every rank's product is an addend of y. Bias and
// residual are added by rank 0 alone, so that the sum holds them once; their gradients are those of y, which all ranks
// have, so that each computes them as if it had added them. Norms in front of column layers get an addend of dy from
// each rank, and sum it up where it lies: nobody else reads it.

#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/parallel/collectives.h"

namespace hpcdl::parallel {

struct RowLinear : Linear {
  static constexpr std::string_view name = "row_linear";
  struct Args : LinearArgs {
    Peers peers;
    bool sums = true;  // false: y stays this rank's addend, for a collective of its own behind
    bool valid() const { return valid_args<LinearArgs>(*this) && peers.valid() && valid_args(sums); }
  };
  static void forward(Stream& s, Tensor y, View x, View w, View bias, View residual, const Args& a) {
    const bool first = a.peers.rank() == 0;
    Linear::forward(s, y, x, w, first ? bias : View(), first ? residual : View(), a);
    if (a.sums) a.peers.all_reduce(s, y);
  }
};

struct RowMlp : Mlp {
  static constexpr std::string_view name = "row_mlp";
  struct Args : Mlp::Args {
    Peers peers;
    bool valid() const { return valid_args<Mlp::Args>(*this) && peers.valid(); }
  };
  static void forward(Stream& s, Tensor y, Tensor z, Tensor h, View x, View w1, View b1, View w2, View b2,
                      View residual, const Args& a) {
    const bool first = a.peers.rank() == 0;
    Mlp::forward(s, y, z, h, x, w1, b1, w2, first ? b2 : View(), first ? residual : View(), a);
    a.peers.all_reduce(s, y);
  }
};

namespace detail {
inline void sum_in_place(Stream& s, const View& dy, const Peers& p) {
  p.all_reduce(s, Tensor(const_cast<void*>(dy.data()), dy.spec(), dy.device()));
}
}  // namespace detail

struct EnteringLayerNorm : LayerNorm {
  static constexpr std::string_view name = "entering_layer_norm";
  struct Args : LayerNorm::Args {
    Peers peers;
    bool valid() const { return peers.valid(); }
  };
  static void backward(Stream& s, Grad dx, Grad dgamma, Grad dbeta, View x, View gamma, View mean, View rstd, View dy,
                       Tensor partial, const Args& a) {
    detail::sum_in_place(s, dy, a.peers);
    LayerNorm::backward(s, dx, dgamma, dbeta, x, gamma, mean, rstd, dy, partial, a);
  }
};

struct EnteringRmsNorm : RmsNorm {
  static constexpr std::string_view name = "entering_rms_norm";
  struct Args : RmsNorm::Args {
    Peers peers;
    bool valid() const { return peers.valid(); }
  };
  static void backward(Stream& s, Grad dx, Grad dweight, View x, View weight, View rstd, View dy, Tensor partial,
                       const Args& a) {
    detail::sum_in_place(s, dy, a.peers);
    RmsNorm::backward(s, dx, dweight, x, weight, rstd, dy, partial, a);
  }
};

}  // namespace hpcdl::parallel
