#pragma once
// Keeps the history of magnitudes (history.h) that fp8_cast reads. Two records:
//
//   fp8_amax       in a pass: raises row 0 of three neighbouring columns to the largest of the magnitudes that casts have
//                  measured. What is not finite is left out. Doing it twice, or in another order, changes nothing
//   fp8_amax.step  after the gradient norm: moves all rows down by one and sets row 0 to 0. Where the step is skipped
//                  (StepParams::skip), only row 0 becomes 0
//
// Between the two, ranks take the maximum of row 0, so that all of them have one history.

#include "hpcdl/ops/fp8_amax/history.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct Fp8Amax {
  static constexpr std::string_view name = "fp8_amax";
  static constexpr int kTensors = 3;
  /// Operands: row 0 of the columns (3), f32; the magnitudes that belong to each, f32.
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* operands, const void*);

  struct Step {
    static constexpr std::string_view name = "fp8_amax.step";
    /// Operand: the history.
    static void check_record(const RawRecord& r);
    static void run(Stream& s, const Grad* operands, const void*);
  };
};

namespace cuda {
void fp8_amax(Stream&, Tensor now, View x, View w, View dy);
void fp8_amax_step(Stream&, Tensor history);
}  // namespace cuda

/// Records fp8_amax; x, w, dy: magnitudes. `first`: the column of x.
template <class Graph>
void record_fp8_amax(Graph& g, const Operand& history, std::int64_t first, const Operand& x, const Operand& w,
                     const Operand& dy) {
  Operand now = history;
  now.offset += first;
  now.spec.shape = {Fp8Amax::kTensors}, now.strides = {1};
  now.access = Access::update;
  const Operand operands[] = {now, x, w, dy};
  g.template emit<Fp8Amax>(operands, nullptr, 0, {}, Phase::backward);
}

/// Row 0 of a history, which ranks reduce.
template <class Graph, Symbolic V> V amax_of_this_step(Graph& g, const V& history) {
  return g.reshape(g.rows(history, 0, 1), {history[1]});
}

template <class Graph, Symbolic V> void record_fp8_amax_step(Graph& g, const V& history) {
  emit_update<Fp8Amax::Step>(g, std::vector{update_operand(history)}, nullptr, 0);
}

}  // namespace hpcdl
