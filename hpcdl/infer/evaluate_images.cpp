#include "hpcdl/infer/evaluate_images.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/graph/instance.h"

namespace hpcdl::infer {

namespace {

struct Pass {
  std::vector<Var> inputs;  // images, targets
  models::PassOutputs out;
  Instance exe;
};

Pass record(const models::ImageModel& model, std::int64_t batch, const nn::ForwardOptions& options) {
  Graph g({.inference = true});
  std::vector<Var> inputs;
  for (const auto& [name, spec] : model.inputs(batch, 0, options)) inputs.push_back(g.input(name, spec));
  require(inputs.size() == 2, "eval", "expected a model of images and targets");
  const auto out = model.pass(g, inputs, options);
  g.keep(out.loss), g.keep(out.correct);
  return {inputs, out, Instance(g.finish(), nullptr, model.device())};
}

/// As the model was trained, whatever is usual for the images at hand.
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
  const auto pass = record(model, o.batch, {.compute = o.compute});
  const auto& images = pass.inputs[0].spec();
  data::ImageEvalBatches batches(set, {.batch = o.batch,
                                       .workers = o.workers,
                                       .augment = {.height = static_cast<int>(images.shape[1]),
                                                   .width = static_cast<int>(images.shape[2]),
                                                   .normalise = model.config().normalise,
                                                   .by = normalisation_of(model.config())}});
  const auto number = [&](const Var& v) {
    float x = 0;
    copy(stream, Tensor(&x, v.spec()), pass.exe.tensor(v));
    return static_cast<double>(x);
  };
  double loss = 0, correct = 0;
  std::int64_t samples = 0;
  while (const auto* batch = batches.next()) {
    copy(stream, pass.exe.tensor(pass.inputs[0]), View(batch->images.data(), images));
    copy(stream, pass.exe.tensor(pass.inputs[1]), View(batch->targets.data(), pass.inputs[1].spec()));
    pass.exe.run(stream);
    loss += number(pass.out.loss), correct += number(pass.out.correct);
    samples += batch->valid;
    if (progress) progress(samples);
  }
  const auto n = static_cast<double>(samples);
  require(std::isfinite(loss), "eval",
          "the loss is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`", loss / n);
  return {loss / n, correct / n, samples};
}

}  // namespace hpcdl::infer
