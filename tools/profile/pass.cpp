#include "tools/profile/pass.h"

#include "tools/profile/recorder.h"

namespace hpcdl::lab {

Report profile_pass(const Instance& pass, Stream& s, const Roofs& roofs, int runs) {
  constexpr int kWarmup = 3;
  Profile profile;
  const auto policy = [](std::int64_t n) {
    if (n < kWarmup) return Look::away;
    return n % 2 ? Look::record : Look::plain;
  };
  Recorder recorder(policy, [&](StepTrace&& step) { profile.steps.push_back(std::move(step)); });
  for (int i = 0; i < kWarmup + 2 * runs; ++i) {
    recorder.begin_step(i);
    recorder.begin(train::Stage::pass);
    recorder.run(pass, s);
    s.synchronize();
    recorder.end(train::Stage::pass);
    recorder.end_step(i);
  }
  profile.programs = recorder.programs();
  profile.threads = recorder.threads();
  profile.how = recorder.how();
  return report(profile, roofs);
}

}  // namespace hpcdl::lab
