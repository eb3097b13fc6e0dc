#pragma once
// A linear layer in a training step whose products have operands of MXFP4 (OCP Microscaling: E2M1 elements, E8M0 scales of
// groups of 32), emulated: what is multiplied are the values of codes, held as bf16 or f32, which have them exactly. It
// shows what such a training would learn; it is slower than the product that it replaces.
//
// mx4_project(x) rounds the rows of x to values that products read, q. mx4_layer(qx, qw, bias, residual) is
// y = qx qw^T + bias + residual. Groups lie along what a product sums over: K forward, N for dx, M, the rows of x, for dW.
// Two methods:
//
//   quest   q = Q(H x): H is Sylvester's Hadamard matrix of 32 over the root of 32, which leaves the product of two
//           operands as it is and makes their groups nearly normal. Q clips: of the scale that the specification gives,
//           half and twice of it, a group has the one with the smallest squared error. Backward of q keeps what Q has
//           not moved by more than half of its largest step (the trust region), and rotates it back.
//           Backward of the layer rotates dy and qw, and dy and qx, by H S, S random signs of 32 elements, and rounds them
//           at random, so that gradients are right on average. Scales put the largest magnitude between 3 and 6: no
//           element is clipped
//   plain   rounding to nearest with the scale of the specification everywhere, and gradients that pass through it: what
//           quest is compared with
//
// x and w: bf16, f16 or f32; K, N and M are multiples of 32. An element that is not finite becomes NaN, and with quest its
// group does.
// Draws are functions of (seed, rng_stream, step, part, element): they depend neither on threads nor on when a run was
// stopped. CPUs.
//
// Sources: Panferov et al., "QuEST: stable training of LLMs with 1-bit weights and activations", ICML 2025; Castro et al.,
// "Quartet: native FP4 training can be optimal for large language models", 2025.

#include "hpcdl/core/mx.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/fp8_layer/fp8_layer.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/program/emit.h"
#include "hpcdl/rng.h"

namespace hpcdl {

enum class Mx4Method : std::uint8_t { quest, plain };

struct Mx4Project {
  static constexpr std::string_view name = "mx4_project";
  struct Args {
    Mx4Method method = Mx4Method::quest;
    bool along_rows = false;  // groups are 32 rows of a column: x is W (K, N)
  };
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args&) { return {.operations = 32 * static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor q, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View x, View dq, const Args& a);
  using Backward = Operands<dIn<0>, In<0>, dOut<0>>;
};

struct Mx4Layer {
  static constexpr std::string_view name = "mx4_layer";
  static constexpr int kPasses = 3;   // dresidual = dy
  static constexpr int kStreams = 6;  // of random numbers
  struct Args {
    Mx4Method method = Mx4Method::quest;
    bool conv1d = false;           // W is (K, N)
    std::int64_t part = 0;         // of a batch that ranks share
    std::uint64_t rng_stream = 0;  // the first of kStreams
  };
  static Spec infer(const Spec& qx, const Spec& qw, const Spec& bias, const Spec& residual, const Args& a);
  static Cost cost(const Spec& qx, const Spec& qw, const Spec& bias, const Spec& residual, const Args&) {
    return linear_cost(qx, qw, bias, residual, false);
  }
  static void forward(Stream& s, Tensor y, View qx, View qw, View bias, View residual, const Args& a);
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, dOut<0>>;
};

/// Rounds an operand of a product of backward. A raw record of q and x, alike but for their types.
struct Mx4Round {
  static constexpr std::string_view name = "mx4_round";
  struct Args {
    Mx4Method method = Mx4Method::quest;
    bool along_rows = false;
    std::int64_t part = 0;
    std::uint64_t signs = 0, draws = 0;  // streams of random numbers
  };
  using RecordArgs = Args;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};

/// dx = dy W, or dW = dy^T x. A raw record of the gradient, the other operand, and dy.
struct Mx4Gradient {
  static constexpr std::string_view name = "mx4_gradient";
  struct Args {
    bool of_w = false, conv1d = false;
  };
  using RecordArgs = Args;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};

/// What kernels receive. `dq`: then q is the gradient of x.
struct Mx4Call {
  Grad q;
  View x, dq = {};
  Mx4Method method = Mx4Method::quest;
  bool along_rows = false, at_random = false;
  Rng signs = {}, draws = {};
  std::int64_t first = 0;  // number of the first draw
};

namespace cpu {
template <class Isa> void mx4_round(Isa, Pool&, const Mx4Call& c);
}  // namespace cpu

template <class G> void Mx4Layer::record_backward(G& g, std::span<const Operand> o, const Args& a) {
  const Operand &dx = o[0], &dw = o[1], &dbias = o[2], &dresidual = o[3], &qx = o[4], &qw = o[5], &dy = o[6];
  if (dbias.slot >= 0 || dresidual.slot >= 0) {
    const Operand sums[] = {dbias, dresidual, dy};
    g.template emit<Fp8LayerSums>(sums, nullptr, 0, {}, Phase::backward);
  }
  const auto rounded = [&](const char* what, const Operand& x, bool along_rows, std::int64_t part, int signs,
                           int draws) {
    const Operand q = write_operand(g.temporary(what, Spec{x.spec.shape, dy.spec.dtype}));
    const Operand list[] = {q, x};
    Mx4Round::Args args{a.method, along_rows, part, a.rng_stream + static_cast<std::uint64_t>(signs),
                        a.rng_stream + static_cast<std::uint64_t>(draws)};
    clear_padding(args);
    g.template emit<Mx4Round>(list, &args, sizeof args, {.operations = 32 * static_cast<double>(x.spec.size())},
                              Phase::backward);
    Operand result = q;
    result.access = Access::read;
    return result;
  };
  const auto product = [&](const Operand& d, const Operand& other, const Operand& gradient, bool of_w) {
    const Operand list[] = {d, other, gradient};
    Mx4Gradient::Args args{of_w, a.conv1d};
    clear_padding(args);
    const auto columns = static_cast<double>(qx.spec[-1]);
    g.template emit<Mx4Gradient>(list, &args, sizeof args,
                                 {.operations = 2 * static_cast<double>(dy.spec.size()) * columns}, Phase::backward);
  };
  if (dx.slot >= 0)
    product(dx, rounded("mx4_layer.w", qw, !a.conv1d, 0, 0, 1), rounded("mx4_layer.dy", dy, false, a.part, 0, 2),
            false);
  if (dw.slot >= 0)
    product(dw, rounded("mx4_layer.x", qx, true, a.part, 3, 4), rounded("mx4_layer.dyt", dy, true, a.part, 3, 5), true);
}

template <Symbolic V> V mx4_project(const V& x, const Mx4Project::Args& a) { return record<Mx4Project>(a, x); }

/// bias and residual may be default (absent).
template <Symbolic V> V mx4_layer(const V& qx, const V& qw, const V& bias, const V& residual, Mx4Layer::Args a) {
  a.rng_stream = qx.graph().next_rng_stream();
  for (int i = 1; i < Mx4Layer::kStreams; ++i) qx.graph().next_rng_stream();
  return record<Mx4Layer>(a, qx, qw, bias, residual);
}

}  // namespace hpcdl
