#pragma once

#include "cli/verb.h"
#include "tools/cases.h"
#include "tools/compare/protocol.h"

namespace hpcdl::cli {

struct PythonPeers {
  std::vector<std::string> names;
  bool go_on = false;  // to the next case after one that fails, which then has no peers
};

/// Peers that live in Python (torch, triton): runs `python -m hpcdl.bench` on the same cases in the environment in
/// which they are fastest, and puts sides and ratios into the cases of `out`, what is missing into out["missing"],
/// versions into out["peers"]. Names that are not Python libraries are ignored. Returns lines for people.
std::string python_peers(const PythonPeers& peers, const std::vector<lab::Case>& cases,
                         const lab::compare::Options& protocol, int threads, const std::string& device, Json& out);

}  // namespace hpcdl::cli
