#include "cli/run_config.h"

#include <iterator>

#include "cli/own_variables.h"
#include "cli/verb.h"
#include "hpcdl/comm/bootstrap/place.h"

namespace hpcdl::cli {

void load(io::ConfigTable& table, const std::vector<std::filesystem::path>& files,
          const std::vector<std::string>& words) {
  const auto environment = comm::process_environment();
  std::vector<std::string> names;
  for (const auto& [name, _] : environment) names.push_back(name);
  const auto unread = table.unread_variables(names, {std::begin(kOwnVariables), std::end(kOwnVariables)});
  if (!unread.empty() && comm::find_place(environment).rank == 0)
    for (const auto& line : unread) say("warning: {}", line);
  table.load(files, words);
}

}  // namespace hpcdl::cli
