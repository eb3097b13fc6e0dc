#pragma once
// Collectives as ops with adjoints. All ranks of the group record the same ops in the same order; a Group that records
// name lives as long as the Instance does. N tokens, width C, p ranks, ring algorithms: bytes
// that each rank sends.
//
//   op            forward             backward             bytes forward and backward, of one (N, C) tensor of S bytes
//   Enter         identity            all-reduce           0                + 2 (p-1)/p S
//   Leave         all-reduce          identity             2 (p-1)/p S      + 0
//   GatherRows    all-gather          reduce-scatter       (p-1)/p S        + (p-1)/p S
//   ScatterRows   reduce-scatter      all-gather           (p-1)/p S        + (p-1)/p S
//   GatherColumns all-gather          reduce-scatter (or the rank's slice, where all ranks have the whole gradient)
//
// Source: Shoeybi et al., "Megatron-LM", 2019 (f and g are Enter and Leave); Korthikanti et al., "Reducing activation
// recomputation in large transformer models", 2022 (rows along the sequence).

#include <fmt/format.h>

#include <string_view>

#include "hpcdl/comm/group.h"
#include "hpcdl/graph/graph.h"

namespace hpcdl::parallel {

/// What a collective record needs to know: an axis, by its name and how many ranks it has. Trivially copyable on purpose.
struct Peers : Bound {
  int ranks = 1;
  comm::Algorithm algorithm = comm::Algorithm::automatic;
  char tensor[40] = {};  // what its tensors are known by when ranks ask each other what they are in

  Peers() = default;
  explicit Peers(const comm::Group& g, comm::Algorithm a = comm::Algorithm::automatic)
      : Bound(fmt::format("{} of {}", g.name(), g.size()), &g), ranks(g.size()), algorithm(a) {}

  int size() const { return ranks; }
  /// Arguments from a file: names end, and the axis has as many ranks as it says.
  bool valid() const;
  /// Only where it is bound.
  const comm::Group& group() const { return *static_cast<const comm::Group*>(at); }
  int rank() const { return group().rank(); }
  /// The same for tensors of this name.
  Peers of(std::string_view what) const;

  // The collectives of the group, until they are done.
  void all_reduce(Stream& s, const Tensor& t, comm::Reduce op = comm::Reduce::sum) const;
  void reduce_scatter(Stream& s, const Tensor& mine, const View& all) const;
  void all_gather(Stream& s, const Tensor& all, const View& mine) const;
};

/// In front of layers that are spread over the ranks: each gives an addend of the gradient of x.
struct Enter {
  static constexpr std::string_view name = "enter";
  using Args = Peers;
  static Spec infer(const Spec& x, const Args&) { return x; }
  static Cost cost(const Spec& x, const Args&) { return {0, 2.0 * static_cast<double>(x.bytes())}; }
  static void forward(Stream& s, Tensor y, View x, const Args&);
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Args&) { return {x}; }
  static void backward(Stream& s, Grad dx, View dy, Tensor sum, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>, Scratch<0>>;
};

/// Behind them: each gives an addend of y.
struct Leave {
  static constexpr std::string_view name = "leave";
  static constexpr int kPasses = 0;
  using Args = Peers;
  static Spec infer(const Spec& x, const Args&) { return x; }
  static Cost cost(const Spec& x, const Args&) {
    return {static_cast<double>(x.size()), 3.0 * static_cast<double>(x.bytes())};
  }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args&);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// (B, T / p, C) of each rank to (B, T, C). The rows of rank r are the r-th p-th of all B * T rows: what works on rows
/// alone does not mind which they are, and nothing has to be reordered.
struct GatherRows {
  static constexpr std::string_view name = "gather_rows";
  using Args = Peers;
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args& a) { return {0, (1.0 + a.size()) * static_cast<double>(x.bytes())}; }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Args&) { return {x}; }
  static void backward(Stream& s, Grad dx, View dy, Tensor part, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>, Scratch<0>>;
};

/// The sum over the ranks of (B, T, C), as (B, T / p, C) on each.
struct ScatterRows {
  static constexpr std::string_view name = "scatter_rows";
  using Args = Peers;
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args&) {
    return {static_cast<double>(x.size()), 2.0 * static_cast<double>(x.bytes())};
  }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Args&) { return {x}; }
  static void backward(Stream& s, Grad dx, View dy, Tensor all, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>, Scratch<0>>;
};

/// (..., C / p) of each rank to (..., C). `sums`: the gradient of y is an addend on each rank; otherwise it is the same
/// on all.
struct GatherColumns {
  static constexpr std::string_view name = "gather_columns";
  struct Args : Peers {
    bool sums = false;
    bool valid() const { return Peers::valid() && valid_args(sums); }
  };
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args& a) {
    return {0, (1.0 + 3.0 * a.size()) * static_cast<double>(x.bytes())};
  }
  /// The parts of all ranks, one after the other.
  static std::array<Spec, 1> scratch(const Spec& x, const Args& a);
  static void forward(Stream& s, Tensor y, View x, Tensor parts, const Args& a);
  static std::array<Spec, 2> backward_scratch(const Spec& x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, Tensor parts, Tensor part, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>, Scratch<0>, Scratch<1>>;
};

/// Rows of one length, at any distances, on either device.
void copy_rows(Stream& s, const Tensor& to, const View& from);
/// to (+)= from
void put(Stream& s, const Grad& to, const View& from);

inline Var enter(const Var& x, const Peers& p) { return record<Enter>(p, x); }
inline Var leave(const Var& x, const Peers& p) { return record<Leave>(p, x); }
inline Var gather_rows(const Var& x, const Peers& p) { return record<GatherRows>(p, x); }
inline Var scatter_rows(const Var& x, const Peers& p) { return record<ScatterRows>(p, x); }
inline Var gather_columns(const Var& x, const Peers& p, bool sums) { return record<GatherColumns>({p, sums}, x); }

}  // namespace hpcdl::parallel
