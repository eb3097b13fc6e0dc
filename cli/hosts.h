#pragma once
// Ranks on several hosts. `hpcdl launch --hosts` runs ssh for each host, and ssh runs `hpcdl launch --agent`, which
// says who it is, reads one order and runs the ranks. Messages between the two go over ssh's standard input and
// output: the secret is on no command line, and each side notices when the other ends.
//
//   agent:  hpcdl-agent PORT VERSION        once; a port that is free there
//   launch: {"ranks": ...}                  once; then "15", a signal for all ranks
//   agent:  o RANK LINE, e RANK LINE        of a rank's standard output and error
//   agent:  x RANK CODE SIGNAL              of a rank, when it has ended

#include <string>
#include <vector>

#include "cli/ranks.h"

namespace hpcdl::cli {

inline constexpr char kOutLine = 'o', kErrLine = 'e', kEndLine = 'x';

struct HostsOptions {
  std::vector<std::string> hosts;  // as ssh takes them
  std::string ssh;                 // the command that is given a host and a command for it, in words
  std::string program;             // hpcdl there
  RanksOptions ranks;              // of each host
};

/// Like run_ranks(). MASTER_ADDR and MASTER_PORT are those of the first host. Throws UsageError, before any rank has
/// started, that names the host and says what is wrong with it.
RanksResult run_on_hosts(const HostsOptions& options);

/// `hpcdl launch --agent`.
int run_agent();

}  // namespace hpcdl::cli
