#include "tools/profile/session.h"

#include "tools/profile/recorder.h"

namespace hpcdl::lab {

Profiled profile_training(train::RunConfig& config, const ProfileOptions& options, train::Hooks hooks) {
  if (options.steps < 1 || options.warmup < 0)
    fail_usage("profile", "expected at least one step and no negative warm-up");
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    fail_usage("profile", "rank {} does not lie within a world of {}", options.rank, options.world);
  config.train.steps = options.warmup + 2 * options.steps, config.train.epochs = 0;
  Profiled out;
  const auto policy = [&](std::int64_t n) {
    if (n < options.warmup) return Look::away;
    const auto k = n - options.warmup;
    return (k % 2 == 0) == (k / 2 % 2 == 0) ? Look::record : Look::plain;
  };
  Recorder recorder(policy, [&](StepTrace&& step) { out.profile.steps.push_back(std::move(step)); });
  hooks.observer = &recorder;
  out.summary = train::run(config, hooks);
  out.profile.programs = recorder.programs();
  out.profile.threads = recorder.threads();
  out.profile.how = recorder.how();
  const bool alone = hooks.world.size() == 1;
  out.profile.rank = alone ? options.rank : hooks.world.rank(),
  out.profile.world = alone ? options.world : hooks.world.size();
  return out;
}

}  // namespace hpcdl::lab
