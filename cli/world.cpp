#include "cli/world.h"

#include <unistd.h>

#include "cli/verb.h"
#include "cli/version.h"
#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/mesh_shape.h"
#include "hpcdl/train/stop.h"
#include "tools/comm/bench.h"

namespace hpcdl::cli {
namespace {

/// Prints why, and ends the process even if it is waiting for ranks that will not come.
auto leaves_with(int code) {
  return [code](const std::string& sentence) {
    say("hpcdl: {}", sentence);
    _exit(code);
  };
}

}  // namespace

comm::Joined join_ranks(const train::DistConfig& c, const train::ParallelConfig* p) {
  const auto place = comm::find_place(
      comm::process_environment(),
      {.rank = c.rank, .world = c.world, .local_rank = c.local_rank, .local_world = c.local_world, .master = c.master});
  if (!place.hint.empty()) say("hint: {}", place.hint);
  if (const char* restarts = std::getenv("SLURM_RESTART_COUNT"); restarts && place.rank == 0)
    say("start {} of this Slurm job", std::atoi(restarts) + 1);
  if (p) parallel::fit(train::mesh_shape(*p), place.world);
  auto joined = comm::join(place, {.method = c.method,
                                   .transport = c.transport,
                                   .init_timeout = c.init_timeout,
                                   .timeout = c.timeout,
                                   .leave = leaves_with(exit_code::kPeerLost),
                                   .program = version(),
                                   .asked_to_stop = [] { return train::StopSignals::requested() != 0; },
                                   .leave_asked = leaves_with(exit_code::kRequeue),
                                   .say = [](const std::string& sentence) { say("hpcdl: [dist] {}", sentence); }});
  if (place.world > 1) comm::algo::adopt(joined.world(), comm::algo::Policy::read(lab::comm_policy_file()));
  if (place.world > 1 && place.rank == 0)
    say("{} ranks over {}, as {} says", place.world, joined.world().transport(), place.source);
  return joined;
}

std::vector<parallel::Fact> program_facts(const std::string& verb) {
  return {{"the program", version()}, {"the verb", verb}};
}

void expect_same_start(const comm::Joined& ranks, const std::string& verb, const std::vector<parallel::Fact>& options) {
  auto facts = program_facts(verb);
  facts.insert(facts.end(), options.begin(), options.end());
  facts.push_back(train::instruction_set());
  parallel::expect_agreement(ranks.world(), facts);
}

void close_after_disagreement(comm::Joined& joined) try { joined.close(); } catch (const comm::PeerLost&) {
  // What the ranks differ in is more useful than which of them ended first.
}

std::string device_of_rank(const std::string& device, const comm::Place& place) {
  if (device != "cuda" || place.world == 1) return device;
  return fmt::format("cuda:{}", comm::device_of(place, cuda_devices()));
}

}  // namespace hpcdl::cli
