#pragma once
// Expands node lists of Slurm without `scontrol`, which may not be installed.

#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::comm {

/// "gpu[01-03,7],login2" -> gpu01 gpu02 gpu03 gpu7 login2; several brackets in one name multiply. Throws UsageError for
/// text that is not a node list, or that names more than 65536 nodes.
std::vector<std::string> expand_nodes(std::string_view list);

/// "8(x2),4" -> 8 8 4. Throws UsageError.
std::vector<int> expand_counts(std::string_view list);

}  // namespace hpcdl::comm
