#pragma once

#include <string>
#include <vector>

#include "hpcdl/core/ways.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// How the programs of a run computed their calls, so that a resumed run can compute them in the same ways.
struct UsedWays {
  struct Call {
    WayKey key;
    std::string way;    // its name
    std::string call;   // in words
    bool told = false;  // by a table; otherwise it was the built-in choice
    bool operator==(const Call&) const = default;
  };
  std::string device;       // "NVIDIA H200"; "cpu"
  std::vector<Call> calls;  // on a CPU one, "cpu", whose way is the instruction set
  bool operator==(const UsedWays&) const = default;
};

Json to_json(const UsedWays& ways);
/// Throws Error that names `where`.
UsedWays used_ways_from(const Json& json, const std::string& where);

}  // namespace hpcdl::io
