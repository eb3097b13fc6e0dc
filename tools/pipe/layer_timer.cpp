#include "tools/pipe/layer_timer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hpcdl/core/clock.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/layer_costs.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/micro_batch.h"
#include "hpcdl/train/step_programs.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab::pipe {

namespace engine = hpcdl::pipe;

LayerTimer::LayerTimer(train::RunConfig& config, Pool& pool, engine::Backward backward)
    : stream_({}, pool, &params_), model_(train::model_without_data(config, 1)) {
  const auto options = train::step_options(config);
  const train::StepPrograms step(*model_, options, stream_);
  batch_ = std::make_unique<train::DrawnBatch>(config, step.inputs());
  const auto record = [&](Write write) {
    return engine::record_micro_batch(
        *model_,
        {.batch = options.batch, .length = options.length, .forward = options.forward, .autocast = options.autocast},
        write);
  };
  auto first = record(Write::overwrite), more = record(Write::accumulate);
  layers_ = engine::layer_costs(more.recording.program, step.update()->planned->program,
                                [](const Record&) { return std::numeric_limits<double>::infinity(); });
  const auto whole = [](engine::RecordedMicroBatch& r) {
    return engine::WholePass{std::move(r.recording.program), r.inputs, r.outputs};
  };
  const auto count = static_cast<int>(layers_.size());
  const auto parts = engine::training_parts(whole(first), whole(more), engine::Partition(layers_.size(), 1), backward);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& layer = layers_[i];
    bytes = std::max(bytes, parts[i].arena_bytes());
    times_[parts[i].forward.get()] = &layer.forward;
    times_[parts[i].backward[1].get()] = &layer.input_gradient;
    if (parts[i].weights[1]) times_[parts[i].weights[1].get()] = &layer.weight_gradient;
    else layer.weight_gradient = 0;
  }
  runner_ = std::make_unique<engine::Runner>(engine::lower(engine::gpipe({.ranks = 1, .chunks = count, .micros = 2})),
                                             parts, nullptr, comm::Group(), more.recording.bindings,
                                             std::make_shared<Buffer>(bytes), stream_);
}

void LayerTimer::round() {
  const auto views = batch_->views();
  runner_->advance(stream_, 2, [&](Instance& exe, std::int32_t, auto inputs, auto) {
    for (const auto& [i, to] : inputs) copy(stream_, to, views[i]);
    const auto begin = Clock::now();
    exe.run(stream_);
    const double seconds = seconds_since(begin);
    if (const auto it = times_.find(exe.planned().get()); it != times_.end())
      *it->second = std::min(*it->second, seconds);
  });
}

}  // namespace hpcdl::lab::pipe
