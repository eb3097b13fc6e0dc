#include "hpcdl/infer/evaluate_images.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/instance.h"

namespace hpcdl::infer {

namespace {

/// Inputs: images and targets; outputs: loss and number of correct answers.
std::shared_ptr<const Pass> score_of(const models::ImageModel& model, std::int64_t batch,
                                     const nn::ForwardOptions& options) {
  return model.programs().pass(fmt::format("score {} {}", batch, options.key()), [&] {
    Graph g({.inference = true});
    std::vector<Var> inputs;
    for (const auto& input : model.inputs(batch, 0, options))
      inputs.push_back(g.input(input.name, input.spec, input.role));
    require(inputs.size() == 2, "eval", "expected a model of images and targets");
    const auto out = model.pass(g, inputs, options);
    return Pass::of(g, inputs, {out.loss, out.correct});
  });
}

/// The normalisation that the model was trained with, which may differ from the usual one for these images.
std::optional<data::Normalisation> normalisation_of(const models::ImageConfig& c) {
  if (c.mean.size() != 3 || c.std.size() != 3) return {};
  data::Normalisation n;
  std::copy(c.mean.begin(), c.mean.end(), n.mean.begin()), std::copy(c.std.begin(), c.std.end(), n.std.begin());
  return n;
}

}  // namespace

ImageScore evaluate_images(const models::ImageModel& model, Pool& pool, std::shared_ptr<const data::ImageSet> set,
                           const ImageEvalOptions& o, const std::function<void(std::int64_t)>& progress) {
  require(set->classes() <= model.config().classes, "eval", "{} has {} classes, but the model has {}", set->info().name,
          set->classes(), model.config().classes);
  StepParams params;
  Stream stream(model.device(), pool, &params);
  const Instance exe(*score_of(model, o.batch, {.compute = o.compute}), nullptr, model.device());
  const auto& images = exe.planned()->inputs[0].spec();
  data::ImageEvalBatches batches(set, {.batch = o.batch,
                                       .workers = o.workers,
                                       .augment = {.height = static_cast<int>(images.shape[1]),
                                                   .width = static_cast<int>(images.shape[2]),
                                                   .normalise = model.config().normalise,
                                                   .by = normalisation_of(model.config())}});
  const auto number = [&](std::size_t output) {
    float x = 0;
    copy(stream, Tensor(&x, exe.output(output).spec()), exe.output(output));
    return static_cast<double>(x);
  };
  double loss = 0, correct = 0;
  std::int64_t samples = 0;
  while (const auto* batch = batches.next()) {
    copy(stream, exe.input(0), View(batch->images.data(), images));
    copy(stream, exe.input(1), View(batch->targets.data(), exe.input(1).spec()));
    exe.run(stream);
    loss += number(0), correct += number(1);
    samples += batch->valid;
    if (progress) progress(samples);
  }
  const auto n = static_cast<double>(samples);
  require(std::isfinite(loss), "eval",
          "the loss is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`", loss / n);
  return {loss / n, correct / n, samples};
}

}  // namespace hpcdl::infer
