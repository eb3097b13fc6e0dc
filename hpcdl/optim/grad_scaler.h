#pragma once
// Dynamic loss scaling with the meaning and the defaults of torch.amp.GradScaler: backward starts from the scale
// instead of 1, so that f16 gradients do not vanish below 2^-24; gradients that overflow halve the scale, and that step
// changes nothing.
//
//   GradScaler scaler({.terms = kBatch});                  // scale 2^16 of the mean of kBatch losses
//   scaler.backward(g, loss);                              // in place of g.backward(loss); once per micro-batch
//   scaler.step(o, gradients, {}, [&] { record_adamw(o, tensors, {}); });
//
// All work is in records (ops/loss_scale): a step reads nothing on the host, and ranks whose gradients have been
// summed agree without further communication. StepParams::grad_scale is the same as without scaling; gradients in
// memory are scaled.

#include <cstddef>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"

namespace hpcdl {

class GradScaler {
 public:
  struct Options {
    float init_scale = 65536, growth_factor = 2, backoff_factor = 0.5f;
    std::int32_t growth_interval = 2000;  // good steps in a row before the scale grows
    float min_scale = 0;                  // 0: no limit
    /// Number of losses whose sum is the loss of backward(): the scale is that of their mean, as usual with a mean
    /// loss. Rounded up to a power of two, so that with scales that are powers of two no bit of a gradient within the
    /// range of the type changes.
    std::int64_t terms = 1;
  };
  /// The state in a checkpoint: the values of GradScaler.state_dict(), and the number of skipped steps.
  struct State {
    float scale = 65536;
    LossScale::Counts counts = {};  // good: the growth tracker
  };

  explicit GradScaler(const Options& options, Device device = {});
  /// Without memory: programs with it can be recorded, but not run.
  static GradScaler described(const Options& options) { return GradScaler(options, nullptr); }

  /// Records the gradients of the scaled loss. The loss itself is not changed.
  void backward(Graph& g, const Var& loss) const;
  /// Records one optimizer step: `optimizer` records the update of the weights, which does nothing if a gradient is not
  /// finite.
  template <class F>
  void step(Graph& g, std::span<const Var> gradients, const GradNorm::Args& norm, F&& optimizer) const {
    around(g, [&] {
      record_grad_norm(g, gradients, {.max_norm = norm.max_norm, .skip_nonfinite = true});
      optimizer();
    });
  }
  /// The same for an `update` that also records the gradient norm (with skip_nonfinite), for a norm that is summed over
  /// ranks.
  template <class F> void around(Graph& g, F&& update) const {
    record_loss_scale(g, g.constant("loss_scale", scale_.tensor), g.constant("loss_scale.counts", counts_.tensor),
                      args_, update);
  }

  /// The state after all work of the stream; waits for it.
  State state(const Stream& s) const;
  /// The same without waiting: queues copies to `pinned` memory; after them, state(*pinned) is the state.
  void queue_state(const Stream& s, State* pinned) const;
  State state(State pinned) const;
  void set_state(const Stream& s, const State& state);

 private:
  GradScaler(const Options& options, std::nullptr_t);
  LossScale::Args args_;
  float divisor_;               // factor of the scale, for a loss that is a sum
  OwnedTensor scale_, counts_;  // LossScale's: of the sum
};

}  // namespace hpcdl
