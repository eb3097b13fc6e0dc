#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::testing {

/// A toy run from the run or folder tmp/base into tmp/NAME on so many ranks, after `change` of its config; the result of
/// the first.
inline train::RunSummary tune_toy(const io::TempFolder& tmp, const std::string& name, int ranks,
                                  const std::function<void(train::RunConfig&)>& change) {
  std::vector<train::RunSummary> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& world) {
    train::RunConfig c;
    toy_config(c, tmp, name);
    c.model = {};
    c.init = (tmp / "base").string();
    if (change) change(c);
    train::Hooks hooks;
    hooks.world = world;
    all[static_cast<std::size_t>(world.rank())] = run(c, hooks);
  });
  return all[0];
}

}  // namespace hpcdl::testing
