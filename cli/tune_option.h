#pragma once
// --tune off|cached|full, for the verbs that run programs.

#include <optional>

#include "cli/verb.h"
#include "tools/tune/session.h"

namespace hpcdl::cli {

struct TuneOption {
  std::string mode = "cached";
  double seconds = 30;
};

void add_tune_option(const Command& sub, TuneOption& o);

/// To be called before the first step. On a CPU there is nothing to choose, and no session.
std::optional<lab::tune::Session> start_tuning(const TuneOption& o, Device device, Pool& pool);
/// With "full", tunes the shapes of the programs that the file does not have yet, and prints what changed.
void tune_programs(std::optional<lab::tune::Session>& session, const TuneOption& o,
                   const std::vector<const Instance*>& programs);

}  // namespace hpcdl::cli
