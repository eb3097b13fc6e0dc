// hpcdl inspect: what is in a safetensors file, a model folder or a checkpoint.

#include <filesystem>

#include "cli/verb.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string path;
  bool json = false;
};

/// The safetensors file, or the folder that holds the model: a training run keeps it in model/.
fs::path model_of(const fs::path& path) {
  require(fs::exists(path), "inspect", "{}: no such file or folder", path.string());
  if (!fs::is_directory(path)) return path;
  const auto holds_model = [](const fs::path& p) { return fs::exists(p / "model.safetensors") || fs::exists(p / "model.safetensors.index.json"); };
  if (!holds_model(path) && holds_model(path / "model")) return path / "model";
  require(holds_model(path), "inspect", "{}: expected model.safetensors or model.safetensors.index.json in this folder, found neither", path.string());
  return path;
}

int inspect(Options& o) {
  const fs::path path = model_of(o.path);
  const auto folder = io::TensorFolder::open(path);
  const auto config_file = fs::is_directory(path) ? path / "config.json" : path.parent_path() / "config.json";
  std::int64_t parameters = 0, bytes = 0;
  for (const auto& t : folder.tensors()) parameters += t.spec.size(), bytes += t.spec.bytes();
  const auto config = fs::exists(config_file) ? Json::parse(io::read_json(config_file).dump()) : Json();

  if (o.json) {
    Json out = {{"path", path.string()}, {"parameters", parameters}, {"bytes", bytes}, {"config", config}, {"tensors", Json::array()}};
    for (std::size_t i = 0; i < folder.tensors().size(); ++i) {
      const auto& t = folder.tensors()[i];
      out["tensors"].push_back({{"name", t.name}, {"dtype", dtype_name(t.spec.dtype)}, {"shape", std::vector<std::int64_t>(t.spec.shape.begin(), t.spec.shape.end())},
                                {"bytes", t.spec.bytes()}, {"offset", t.offset}, {"file", folder.shard_of(i).file().path().filename().string()}});
    }
    print_json(out);
    return exit_code::kDone;
  }
  std::string text;
  std::size_t width = 0;
  for (const auto& t : folder.tensors()) width = std::max(width, t.name.size());
  for (const auto& t : folder.tensors())
    text += fmt::format("{:<{}}  {:<8} {:>10}  {}\n", t.name, width, dtype_name(t.spec.dtype), format_bytes(static_cast<double>(t.spec.bytes())), to_string(t.spec.shape));
  text += fmt::format("{} tensors in {} file(s), {} elements, {}\n", folder.tensors().size(), folder.shards().size(), format_count(static_cast<double>(parameters)),
                      format_bytes(static_cast<double>(bytes)));
  if (!config.is_null()) text += "config " + config.dump() + "\n";
  print_text(text);
  return exit_code::kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  add_verb<Options>(app, run, "inspect", "Tensors, parameters and config of a safetensors file, a model folder or a run",
                    [](CLI::App& sub, Options& o) {
                      sub.add_option("path", o.path, "A .safetensors file, a model folder, a checkpoint or a run's output")->required();
                      sub.add_flag("--json", o.json, "One JSON object on stdout");
                    }, inspect);
}

}  // namespace hpcdl::cli
