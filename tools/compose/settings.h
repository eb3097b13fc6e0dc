#pragma once
// What a training can be set to besides its defaults, one setting at a time, and which settings go together: the function
// that checks configs decides.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/train/config.h"

namespace hpcdl::lab {

/// One thing that a run can do beside its defaults.
struct Setting {
  std::string_view name;    // as in a config: "parallel.tp = 2"
  std::string_view choice;  // settings of one choice exclude each other
  void (*apply)(train::RunConfig&);
};

/// In the order in which they are applied.
const std::vector<Setting>& settings();

/// All pairs that do not exclude each other, a setting alone first: then `second` is null.
struct SettingPair {
  const Setting* first = nullptr;
  const Setting* second = nullptr;
  std::string name() const;
};
std::vector<SettingPair> setting_pairs();

/// A small text model with the settings of a pair, on as many ranks as they need. The caller sets data and output.
void configure(train::RunConfig& config, const SettingPair& pair);
/// The same learning on one rank.
void configure_alone(train::RunConfig& config, const SettingPair& pair);
/// The number of ranks of such a run.
int ranks_of(const SettingPair& pair);

/// What train::check_config() says against a pair; empty: nothing.
std::string refusal(const SettingPair& pair);
/// A Markdown table of all pairs: which are refused.
std::string composition_table();

}  // namespace hpcdl::lab
