#pragma once
// --tune off|cached|full, for the verbs that run programs.

#include <optional>

#include "cli/verb.h"
#include "hpcdl/lab/tune/session.h"

namespace hpcdl::cli {

struct TuneOption {
  std::string mode = "cached";
  double seconds = 30;
};

void add_tune_option(const Command& sub, TuneOption& o);

/// Before the first step of anything. On a CPU there is nothing to choose: no session.
std::optional<lab::tune::Session> start_tuning(const TuneOption& o, Device device, Pool& pool);
/// Tunes what the programs ask for and the file does not answer, where that is asked for; says what changed.
void tune_programs(std::optional<lab::tune::Session>& session, const TuneOption& o,
                   const std::vector<const Instance*>& programs);

}  // namespace hpcdl::cli
