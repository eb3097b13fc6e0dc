#pragma once
// Exchanges between the ranks of an axis, each a separate record. All ranks of the axis record the same exchanges in
// the same order. Bytes that each rank sends with ring algorithms, for S bytes of the whole tensor and p ranks:
//
//   call            forward                   backward                  bytes forward and backward
//   enter           nothing                   all_reduce, in place      0               + 2 (p-1)/p S
//   leave           all_reduce, in place      nothing                   2 (p-1)/p S     + 0
//   gather_rows     all_gather                reduce_scatter            (p-1)/p S       + (p-1)/p S
//   scatter_rows    reduce_scatter            all_gather                (p-1)/p S       + (p-1)/p S
//   swap_parts      all_to_all                all_to_all                (p-1)/p S       + (p-1)/p S, S of one rank
//   gather_columns  all_gather, a local copy  a local copy and reduce_scatter, or the rank's columns alone
//
// Steps around a ring, which have no gradient of their own: rotate.h.
//
// Source: Shoeybi et al., "Megatron-LM", 2019 (f and g are enter and leave); Korthikanti et al., "Reducing activation
// recomputation in large transformer models", 2022 (rows along the sequence).

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

/// Replaces x on every rank by the sum, or the maximum, over all ranks.
struct AllReduce {
  static constexpr std::string_view name = "all_reduce";
  static constexpr bool kUpdates = true;
  struct Args {
    Axis axis;
    bool maximum = false;
  };
  static Spec infer(const Spec& x, const Args&) { return x; }
  static Cost cost(const Spec& x, const Args&) { return {.operations = static_cast<double>(x.size())}; }
  static void check_record(const RawRecord& r);
  static std::vector<Exchange> exchanges(std::span<const Spec> operands, const void* args);
  static void forward(Stream& s, Tensor x, const Args& a) { a.axis.bound().all_reduce(s, x, a.maximum, a.axis.tensor); }
};

struct AxisArgs {
  Axis axis;
};

/// Concatenates (..., T / p, C) of each rank to (..., T, C). The rows of rank r are the r-th p-th of all rows: ops on
/// single rows do not depend on the order of rows, and nothing has to be reordered. A tensor of one dim is concatenated
/// along it.
struct AllGather {
  static constexpr std::string_view name = "all_gather";
  using Args = AxisArgs;
  static Spec infer(const Spec& x, const Args& a);
  static std::vector<Exchange> exchanges(std::span<const Spec> operands, const void* args);
  static void forward(Stream& s, Tensor y, View x, const Args& a) { a.axis.bound().all_gather(s, y, x, a.axis.tensor); }
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// The sum over the ranks of (..., T, C), divided into (..., T / p, C) on each.
struct ReduceScatter {
  static constexpr std::string_view name = "reduce_scatter";
  using Args = AxisArgs;
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args&) { return {.operations = static_cast<double>(x.size())}; }
  static std::vector<Exchange> exchanges(std::span<const Spec> operands, const void* args);
  static void forward(Stream& s, Tensor y, View x, const Args& a) {
    a.axis.bound().reduce_scatter(s, y, x, a.axis.tensor);
  }
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// Of p equal parts of the first dim, part r goes to rank r, and its place takes what rank r has for this one. It is its
/// own adjoint.
struct AllToAll {
  static constexpr std::string_view name = "all_to_all";
  using Args = AxisArgs;
  static Spec infer(const Spec& x, const Args& a);
  static std::vector<Exchange> exchanges(std::span<const Spec> operands, const void* args);
  static void forward(Stream& s, Tensor y, View x, const Args& a) { a.axis.bound().all_to_all(s, y, x, a.axis.tensor); }
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// to = from, or to += from. A raw record: operands to, from.
struct PassOn {
  static constexpr std::string_view name = "pass_on";
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*);
};

/// Used before layers that are distributed over the ranks: each rank contributes a summand of the gradient of x. The
/// sum is computed in place, because no other record reads the summand, and becomes the gradient of x.
struct Enter {
  static constexpr std::string_view name = "enter";
  static constexpr int kPasses = 0;
  using Args = AxisArgs;
  static Spec infer(const Spec& x, const Args&) { return x; }
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a) {
    Operand sum = o[1];
    const auto pass_on = [&](const Operand& to, const Operand& from) {
      const Operand pair[] = {to, from};
      g.template emit<PassOn>(pair, nullptr, 0, {}, Phase::backward);
    };
    if (g.program().slots[static_cast<std::size_t>(sum.slot)].kind != SlotKind::temp) {  // passed to backward()
      sum = write_operand(g.temporary("enter.sum", sum.spec));
      pass_on(sum, o[1]);
    }
    sum.access = Access::update;
    emit_op<AllReduce>(g, std::span<const Operand>(&sum, 1), {a.axis});
    sum.access = Access::read;
    if (o[0].slot >= 0) pass_on(o[0], sum);
  }
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// Shares of columns that differ by at most `unit`; begin(ranks) is the end of the last.
struct ColumnShares {
  std::int64_t columns = 0, unit = 1;
  int ranks = 1;
  std::int64_t begin(int rank) const { return rank == ranks ? columns : columns / unit * rank / ranks * unit; }
  std::int64_t count(int rank) const { return begin(rank + 1) - begin(rank); }
  std::int64_t widest() const;
};

/// Joins gathered columns: (..., p T, w) with the columns of rank r in the r-th p-th of the rows, to (..., T, C). w is
/// the widest share; columns beyond a narrower share are skipped.
struct JoinColumns {
  static constexpr std::string_view name = "join_columns";
  struct Args {
    std::int64_t columns = 0, unit = 1;
    int ranks = 1;
    bool valid() const { return columns >= 1 && unit >= 1 && ranks >= 1 && ranks <= 1 << 20; }
  };
  static ColumnShares shares(const Args& a) { return {a.columns, a.unit, a.ranks}; }
  static Spec infer(const Spec& parts, const Args& a);
  static void forward(Stream& s, Tensor y, View parts, const Args& a);
  /// For equal shares.
  static void backward(Stream& s, Grad dparts, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// The inverse for equal shares: (R, T, C) of any uniform rows to (p R, T, C / p), contiguous, with the columns of rank r
/// in the r-th p-th. Of one rank it is a copy.
struct DivideColumns {
  static constexpr std::string_view name = "divide_columns";
  struct Args {
    int ranks = 1;
    bool valid() const { return ranks >= 1 && ranks <= 1 << 20; }
  };
  static Spec infer(const Spec& x, const Args& a);
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// The same if all ranks have the whole gradient of y: the gradient of `mine`, the columns of this rank, is a part of
/// it, and nothing is exchanged. Equal shares only.
struct JoinMyColumns {
  static constexpr std::string_view name = "join_my_columns";
  struct Args {
    int ranks = 1, rank = 0;
    bool valid() const { return rank >= 0 && ranks > rank && ranks <= 1 << 20; }
  };
  static Spec infer(const Spec& parts, const Spec& mine, const Args& a);
  /// `mine` is an operand only for its gradient.
  static Cost cost(const Spec&, const Spec& mine, const Args&) { return {.reads = -static_cast<double>(mine.bytes())}; }
  static Cost backward_cost(const Spec&, const Spec& mine, const Args& a) {  // of dy, only the columns of this rank
    return {.reads = (1.0 - a.ranks) * static_cast<double>(mine.bytes())};
  }
  static void forward(Stream& s, Tensor y, View parts, View mine, const Args& a);
  static void backward(Stream& s, Grad dmine, View dy, const Args& a);
  using Backward = Operands<dIn<1>, dOut<0>>;
};

/// (..., w) to (..., width), whose last columns are left unset. Not differentiable.
struct PadColumns {
  static constexpr std::string_view name = "pad_columns";
  struct Args {
    std::int64_t width = 0;
  };
  static Spec infer(const Spec& x, const Args& a);
  /// The columns beyond those of x are not written.
  static Cost cost(const Spec& x, const Args& a) {
    return {.writes = static_cast<double>(x.bytes()) * (1 - static_cast<double>(a.width) / static_cast<double>(x[-1]))};
  }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
};

namespace detail {
/// dx = Op(dy), or dx += Op(dy) through temporary memory.
template <class Op, class G> void record_adjoint(G& g, const Operand& dx, const Operand& dy, const AxisArgs& a) {
  Operand result = dx;
  if (dx.access == Access::update) result = write_operand(g.temporary("exchange.addend", dx.spec));
  const Operand moved[] = {result, dy};
  emit_op<Op>(g, moved, a);
  if (dx.access != Access::update) return;
  result.access = Access::read;
  const Operand sum[] = {dx, result};
  g.template emit<AddInto>(sum, nullptr, 0, AddInto::cost(dx.spec), Phase::backward);
}
}  // namespace detail
template <class G> void AllGather::record_backward(G& g, std::span<const Operand> o, const Args& a) {
  detail::record_adjoint<ReduceScatter>(g, o[0], o[1], a);
}
template <class G> void ReduceScatter::record_backward(G& g, std::span<const Operand> o, const Args& a) {
  detail::record_adjoint<AllGather>(g, o[0], o[1], a);
}

template <class G> void AllToAll::record_backward(G& g, std::span<const Operand> o, const Args& a) {
  detail::record_adjoint<AllToAll>(g, o[0], o[1], a);
}

template <Symbolic V> V enter(const V& x, const Axis& axis) { return record<Enter>({axis}, x); }
/// Used after layers that are distributed over the ranks: x, a newly computed output, is a summand on each rank and is
/// replaced by the sum.
template <Symbolic V> V leave(const V& x, const Axis& axis) { return record<AllReduce>({axis}, x); }
/// The same for a maximum, which has no gradient.
template <Symbolic V> V all_maximum(const V& x, const Axis& axis) { return record<AllReduce>({axis, true}, x); }
template <Symbolic V> V gather_rows(const V& x, const Axis& axis) { return record<AllGather>({axis}, x); }
template <Symbolic V> V scatter_rows(const V& x, const Axis& axis) { return record<ReduceScatter>({axis}, x); }
template <Symbolic V> V swap_parts(const V& x, const Axis& axis) { return record<AllToAll>({axis}, x); }
/// (..., T, C / p) of each rank to (..., T, C); the gradient of the result is a summand on each rank.
template <Symbolic V> V gather_columns(const V& x, const Axis& axis) {
  return record<JoinColumns>({x[-1] * axis.ranks, 1, axis.ranks}, gather_rows(x, axis));
}
/// The same if the gradient of the result is equal on all ranks; `rank` is this one.
template <Symbolic V> V gather_columns(const V& x, const Axis& axis, int rank) {
  return record<JoinMyColumns>({axis.ranks, rank}, gather_rows(x, axis), x);
}
/// Columns of uneven shares, bit for bit. Not differentiable.
template <Symbolic V> V gather_columns(const V& x, const Axis& axis, const ColumnShares& shares) {
  const V wide = x[-1] == shares.widest() ? x : record<PadColumns>({shares.widest()}, x);
  return record<JoinColumns>({shares.columns, shares.unit, shares.ranks}, gather_rows(wide, axis));
}

}  // namespace hpcdl
