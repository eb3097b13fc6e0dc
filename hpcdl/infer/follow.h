#pragma once

#include <functional>
#include <memory>

#include "hpcdl/core/ways.h"
#include "hpcdl/infer/pass_runner.h"
#include "hpcdl/infer/rank_link.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

/// The ways in which the programs of a rank compute on a GPU; null: the built-in ones.
using ChooseWays = std::function<std::shared_ptr<const Ways>(PassRunner&)>;

/// All ranks that share the model but the first one: runs what rank 0 tells, until RankLink::end(). Throws
/// comm::PeerLost if a rank is lost.
void follow(const models::LanguageModel& model, Pool& pool, RankLink& ranks, const ChooseWays& choose_ways = {});

}  // namespace hpcdl::infer
