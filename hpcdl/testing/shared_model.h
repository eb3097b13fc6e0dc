#pragma once
// Ranks that share a model, as threads of a test.

#include <chrono>
#include <utility>

#include "hpcdl/infer/follow.h"
#include "hpcdl/infer/rank_link.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::testing {

/// f(model, pool, link) on rank 0 while the other ranks follow it. `make`: the model of a rank, from its sharing.
template <class Make, class F>
void on_shared_model(const comm::Group& world, Make&& make, F&& f,
                     std::chrono::milliseconds silence = std::chrono::seconds(1)) {
  infer::RankLink link(world, silence);
  const models::LanguageModel model = make(models::Sharing(link.sharing()));
  Pool pool(1);
  if (!link.leads()) return infer::follow(model, pool, link);
  f(model, pool, link);
  link.end();
}

template <class Make, class F> void on_shared_model(int ranks, Make make, F f) {
  run_ranks(ranks, [&](const comm::Group& world) { on_shared_model(world, make, f); });
}

}  // namespace hpcdl::testing
