#include "cli/run_config.h"

#include <iterator>

#include "cli/complaint.h"
#include "cli/own_variables.h"
#include "cli/verb.h"
#include "hpcdl/comm/bootstrap/place.h"

namespace hpcdl::cli {

namespace {

/// Keys of a run contain a dot. A word without a dot that resembles no option is left to the table, which knows the
/// keys.
void refuse_misspelt_options(const io::ConfigTable& table, const std::vector<std::string>& words, const Command& verb) {
  for (const auto& word : words) {
    const auto name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name.find('.') != std::string::npos || table.find(name.substr(2))) continue;
    const auto text = unknown_option_text(name, verb.option_names());
    if (text.ends_with('?')) fail_usage("config", "{}", text);
  }
}

}  // namespace

void load(io::ConfigTable& table, const std::vector<std::filesystem::path>& files,
          const std::vector<std::string>& words, const Command& verb) {
  refuse_misspelt_options(table, words, verb);
  const auto environment = comm::process_environment();
  std::vector<std::string> names;
  for (const auto& [name, _] : environment) names.push_back(name);
  const auto unread = table.unread_variables(names, {std::begin(kOwnVariables), std::end(kOwnVariables)});
  if (!unread.empty() && comm::find_place(environment).rank == 0)
    for (const auto& line : unread) say("warning: {}", line);
  table.load(files, words);
}

void refuse_keys(const std::string& verb, const std::string& word, const Command& command) {
  const auto name = word.substr(0, word.find('='));
  if (name.find('.') != std::string::npos)
    fail_usage(verb, "{} is a key of a run, but no run is given: add -c run.toml", name);
  if (!name.starts_with("--")) fail_usage(verb, "{} takes no argument \"{}\" here", verb, name);
  fail_usage(verb, "{}", unknown_option_text(name, command.option_names()));
}

}  // namespace hpcdl::cli
