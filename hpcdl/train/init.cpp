#include "hpcdl/train/init.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::train {
std::vector<std::string> model_contradictions(RunConfig& given, RunConfig& found) {
  RunConfig untouched;
  const io::ConfigTable table = table_of(given), theirs = table_of(found), defaults = table_of(untouched);
  std::vector<std::string> list;
  for (const auto& field : table.fields()) {
    if (!field.key.starts_with("model.")) continue;
    const auto value = field.toml(), in_folder = theirs.find(field.key)->toml();
    if (value != in_folder && value != defaults.find(field.key)->toml())
      list.push_back(fmt::format("{} = {}, where it has {}", field.key, value, in_folder));
  }
  return list;
}

std::filesystem::path init_folder(const RunConfig& config) { return io::find_model_folder(config.init); }

void take_over_init(RunConfig& config) {
  if (config.init.empty()) return;
  const auto folder = init_folder(config);
  RunConfig found;
  found.init = config.init, found.base = config.base, found.capacity = config.capacity;
  found.model = models::read_hf_config(folder);
  require(!found.model.quant || config.adapter.given(), "config",
          "model.init: {} is quantised, so only an adapter can be trained: start from the original model, or set "
          "adapter.method",
          folder.string());
  const auto list = model_contradictions(config, found);
  if (!list.empty())
    fail_usage("config", "model.init = \"{}\" has a model of its own, which contradicts {}: leave {} out", config.init,
               fmt::join(list, ", and "), list.size() == 1 ? "this key" : "these keys");
  found.model.dtype = DType::f32;  // in which runs keep and save weights
  config.model = found.model;
}

}  // namespace hpcdl::train
