#pragma once
// Dynamic loss scaling, for f16 gradients that would vanish below 2^-24 or overflow beyond 65504 (Micikevicius et al.,
// "Mixed precision training", 2018). Backward starts from `scale` instead of 1; the optimizer's records are between two
// records of this op:
//
//   begin    StepParams::grad_scale /= scale, StepParams::step -= skipped     the optimizer counts the steps it takes
//   ...      grad_norm, which sets StepParams::skip if a gradient is not finite; adamw, which then changes nothing
//   end      skip:  scale = max(scale * backoff, least); counts one more skipped step
//            else:  scale = min(scale * growth, most) after `interval` good steps in a row
//
// Nothing is read on the host. The scale should be a power of two: it then changes no bit of a gradient that neither
// overflows nor vanishes.

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct LossScale {
  static constexpr std::string_view name = "loss_scale";
  struct Args {
    float growth = 2, backoff = 0.5f, least = 1, most = 16777216;
    std::int32_t interval = 2000;
  };
  /// The state kept between steps, in the counts tensor.
  struct Counts {
    std::int32_t good = 0;     // consecutive steps without overflow
    std::int32_t skipped = 0;  // in total
    std::int32_t stuck = 0;    // consecutive overflows at the minimum scale
  };
  static constexpr Spec kScale{{1}, DType::f32}, kCounts{{3}, DType::i32};

  HPCDL_HOST_DEVICE static void begin(StepParams& p, float scale, const Counts& c) {
    p.grad_scale /= scale;
    p.step -= c.skipped;
  }
  HPCDL_HOST_DEVICE static void end(const StepParams& p, float& scale, Counts& c, const Args& a) {
    if (p.skip) {
      c.good = 0;
      c.skipped += 1;
      c.stuck = scale <= a.least ? c.stuck + 1 : 0;
      scale = scale * a.backoff > a.least ? scale * a.backoff : a.least;
      return;
    }
    c.stuck = 0;
    if (++c.good < a.interval) return;
    c.good = 0;
    scale = scale * a.growth < a.most ? scale * a.growth : a.most;
  }
  static void check_args(const Args& a) {
    require(a.growth >= 1 && a.backoff > 0 && a.backoff < 1 && a.least > 0 && a.most >= a.least && a.interval > 0, name,
            "expected growth >= 1 > backoff > 0, most >= least > 0 and an interval of at least 1 step, got {}, {}, {}, "
            "{} and {}",
            a.growth, a.backoff, a.most, a.least, a.interval);
  }
  /// Operands: scale, counts.
  using RecordArgs = Args;
  static void run(Stream& s, const Grad* operands, const void*);
  static void check_record(const RawRecord& r);
  /// The record after the optimizer's update.
  struct End {
    static constexpr std::string_view name = "loss_scale.end";
    using RecordArgs = Args;
    static void run(Stream& s, const Grad* operands, const void* args);
    static void check_record(const RawRecord& r) { LossScale::check_record(r); }
  };
};

namespace cuda {
void loss_scale_begin(Stream&, Tensor scale, Tensor counts);
void loss_scale_end(Stream&, Tensor scale, Tensor counts, const LossScale::Args& args);
}  // namespace cuda

/// scale: LossScale::kScale, counts: LossScale::kCounts, both owned by the caller. update() records the gradient norm
/// and the optimizer.
template <class Graph, Symbolic V, class F>
void record_loss_scale(Graph& g, const V& scale, const V& counts, const LossScale::Args& a, F&& update) {
  require_spec(LossScale::name, "scale", scale.spec(), LossScale::kScale);
  require_spec(LossScale::name, "counts", counts.spec(), LossScale::kCounts);
  LossScale::check_args(a);
  auto args = a;
  clear_padding(args);
  emit_update<LossScale>(g, std::vector{read_operand(scale), read_operand(counts)}, &args, sizeof args);
  update();
  emit_update<LossScale::End>(g, std::vector{update_operand(scale), update_operand(counts)}, &args, sizeof args);
}

}  // namespace hpcdl
