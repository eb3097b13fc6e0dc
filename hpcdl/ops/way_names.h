#pragma once
// The ops whose calls a GPU can compute in several ways, and the names of these.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl {

struct OpWays {
  std::string_view op;             // the name under which a way is preferred (core/ways.h)
  std::vector<std::string> names;  // none in a build without CUDA
};
std::vector<OpWays> all_ways();

/// Throws UsageError for an op that has no ways, and in a build with CUDA for a way that the op does not have. `where`
/// is the source of the names.
void check_preferred_ways(const std::map<std::string, std::string>& preferred, std::string_view where);

}  // namespace hpcdl
