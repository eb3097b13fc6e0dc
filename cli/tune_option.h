#pragma once
// --tune off|cached|full, for the verbs that run programs.

#include <memory>
#include <optional>
#include <vector>

#include "cli/verb.h"
#include "tools/tune/session.h"

namespace hpcdl::cli {

struct TuneOption {
  std::string mode = "cached", ways;
  double seconds = 30;
};

void add_tune_option(const Command& sub, TuneOption& o);
/// --ways, for verbs without train.ways.
void add_ways_option(const Command& sub, TuneOption& o);

/// To be called before the first step. On a CPU there is nothing to choose, and no session.
std::optional<lab::tune::Session> start_tuning(const TuneOption& o, Device device, Pool& pool);
/// With "full", tunes the shapes of the programs that the file does not have yet, and prints what changed. Returns the
/// ways to use; null: there are none to prefer to the built-in ones.
std::shared_ptr<const Ways> tuned_ways(std::optional<lab::tune::Session>& session, const TuneOption& o,
                                       const std::vector<const Instance*>& programs);

}  // namespace hpcdl::cli
