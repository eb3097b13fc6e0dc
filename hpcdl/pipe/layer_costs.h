#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "hpcdl/pipe/costs.h"
#include "hpcdl/program.h"

namespace hpcdl::pipe {

/// What each layer costs, in the order of forward. `pass`: forward and backward of one micro-batch (micro_batch.h). Its
/// records that write only gradients of parameters are weight gradients; all others of backward count as gradients of
/// the input, as does what an op computes together. `update`: the program that updates all parameters. `seconds`: of a
/// record.
///
/// Frames are slots that forward writes and backward reads; slots that cross from one layer to the next are sent. State
/// is what the programs keep for each parameter of a layer. Tables that more than two layers read belong to none.
/// Throws Error if the pass has no layers.
std::vector<PartCost> layer_costs(const Program& pass, const Program& update,
                                  const std::function<double(const Record&)>& seconds);

/// The same of the share of a vocabulary whose rows the ranks divide, which then is in no layer; nothing if they divide
/// none.
std::optional<VocabularyCost> vocabulary_cost(const Program& pass, const Program& update,
                                              const std::function<double(const Record&)>& seconds);

}  // namespace hpcdl::pipe
