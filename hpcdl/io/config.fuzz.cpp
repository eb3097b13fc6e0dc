// Any text, as TOML, as an override and as config.json, gives a config or an Error; an accepted config survives saving.

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "hpcdl/io/config_table.h"
#include "hpcdl/models/hf_config.h"

namespace {

struct Everything {
  hpcdl::io::ModelConfig model;
  bool flag = false;
  std::uint64_t seed = 0;
  float rate = 0;
  double every = 1;
  std::int64_t bytes = 0;
  std::string name;
  std::optional<double> clip;
  std::vector<std::string> files;
  void visit(auto&& f) {
    f.section("model", model);
    f("flag", flag, "a switch");
    f("seed", seed, "a seed");
    f("rate", rate, "a rate");
    f("every", every, "a time", {.unit = hpcdl::io::Unit::seconds});
    f("bytes", bytes, "a size", {.unit = hpcdl::io::Unit::bytes});
    f("name", name, "a name");
    f("clip", clip, "a limit");
    f("files", files, "files");
  }
};

template <class F> void accept_errors(F&& f) {
  try {
    f();
  } catch (const hpcdl::Error&) {}
}

void toml(std::string_view text) {
  Everything c;
  hpcdl::io::ConfigTable table(c);
  table.apply_toml(text, "fuzz");
  const std::string saved = table.to_toml();
  Everything again;
  hpcdl::io::ConfigTable(again).apply_toml(saved, "saved");
  if (hpcdl::io::ConfigTable(again).to_toml() != saved) throw std::logic_error("the saved config reads back otherwise");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accept_errors([&] { toml(text); });
  accept_errors([&] {
    Everything c;
    hpcdl::io::ConfigTable(c).apply_override(text);
  });
  accept_errors([&] {
    const auto config = hpcdl::models::parse_hf_config(hpcdl::io::parse_json(text, "fuzz"), "fuzz");
    if (hpcdl::models::parse_hf_config(hpcdl::models::make_hf_config(config), "again") != config)
      throw std::logic_error("config.json reads back otherwise");
  });
  return 0;
}
