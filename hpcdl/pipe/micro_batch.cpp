#include "hpcdl/pipe/micro_batch.h"

namespace hpcdl::pipe {

RecordedMicroBatch record_micro_batch(const models::Trainable& model, const MicroBatch& options, Write gradients) {
  Graph g({.parameter_gradients = gradients, .weights_beside = true, .numerics = options.numerics});
  auto forward = options.forward;
  forward.training = true;
  forward.fused_mlp = forward.head_gradient_now = false;
  RecordedMicroBatch r;
  for (const auto& input : model.inputs(options.batch, options.length, forward))
    r.inputs.push_back(g.input(input.name, input.spec, input.role));
  models::PassOutputs out;
  {
    const Graph::Autocast types(g, options.autocast);
    out = model.pass(g, r.inputs, forward);
  }
  r.outputs.push_back(g.keep(out.loss));
  if (out.correct) r.outputs.push_back(g.keep(out.correct));
  g.backward(out.loss);
  r.recording = g.finish();
  return r;
}

}  // namespace hpcdl::pipe
