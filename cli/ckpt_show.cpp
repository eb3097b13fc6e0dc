// hpcdl ckpt show: what a checkpoint holds.

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/ckpt.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/checkpoint_place.h"
#include "hpcdl/io/stored_checkpoint.h"
#include "hpcdl/io/toml_values.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::cli::ckpt {
namespace {

namespace fs = std::filesystem;

struct ShowOptions {
  std::string path;
  bool json = false;
};

using Values = std::map<std::string, std::string>;

Values config_of(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "config.toml";
  return io::toml_values(io::read_file(file), file.string());
}

/// A number of the config, or `otherwise` if it is not there: a newer or an older program may have other keys.
std::int64_t number_in(const Values& config, const std::string& key, std::int64_t otherwise) {
  const auto it = config.find(key);
  std::int64_t n = otherwise;
  if (it != config.end()) std::from_chars(it->second.data(), it->second.data() + it->second.size(), n);
  return n;
}

/// The keys that are not at the defaults of this program, which may not know all of them.
std::string set_keys(const Values& config) {
  train::RunConfig untouched;
  const io::ConfigTable defaults = train::table_of(untouched);
  std::string text;
  for (const auto& [key, value] : config) {
    const auto* field = defaults.find(key);
    if (!field || field->toml() != value) text += fmt::format(" {}={}", key, value);
  }
  return text;
}

/// The ranks that saved it, along each axis.
struct SavedBy {
  std::int64_t ranks, pp, dp, cp, tp;

  SavedBy(std::int64_t all, const Values& config)
      : ranks(all),
        pp(std::clamp<std::int64_t>(number_in(config, "parallel.pp", 1), 1, all)),
        cp(std::clamp<std::int64_t>(number_in(config, "parallel.cp", 1), 1, all)),
        tp(std::clamp<std::int64_t>(number_in(config, "parallel.tp", 1), 1, all)) {
    dp = number_in(config, "parallel.dp", 0);
    if (dp == 0) dp = std::max<std::int64_t>(1, ranks / (pp * cp * tp));  // "all ranks / (pp * cp * tp)"
  }
};

std::int64_t file_bytes(const fs::path& folder) {
  std::int64_t bytes = 0;
  for (const auto& path : io::list_folder(folder, true))
    if (fs::is_regular_file(path)) bytes += static_cast<std::int64_t>(fs::file_size(path));
  return bytes;
}

struct Totals {
  std::int64_t tensors = 0, elements = 0, bytes = 0;

  explicit Totals(const std::vector<io::StoredTensor>& list) : tensors(std::ssize(list)), bytes(bytes_of(list)) {
    for (const auto& t : list) elements += t.whole.size();
  }
  Json json() const { return {{"tensors", tensors}, {"elements", elements}, {"bytes", bytes}}; }
};

std::vector<std::int64_t> dims(const Shape& s) { return {s.begin(), s.end()}; }

std::string file_of(const io::StoredPart& p) { return p.file->path().filename().string(); }

Json json_of(const io::StoredTensor& t, const char* role) {
  Json shards = Json::array();
  for (const auto& p : t.parts) {
    Json shard = {{"file", file_of(p)}, {"bytes", p.view.bytes()}};
    if (!p.part.all())
      for (const auto& box : p.part.boxes)
        shard["boxes"].push_back({{"begin", dims(box.begin)}, {"extent", dims(box.extent)}});
    shards.push_back(std::move(shard));
  }
  return {{"name", t.name},
          {"role", role},
          {"dtype", dtype_name(t.whole.dtype)},
          {"shape", dims(t.whole.shape)},
          {"bytes", t.whole.bytes()},
          {"shards", std::move(shards)}};
}

void show_json(const io::CheckpointPlace& place, const io::StoredCheckpoint& stored, const Values& config) {
  const auto& info = stored.info();
  const SavedBy by(info.ranks, config);
  Json kept = Json::array(), tensors = Json::array();
  for (const auto& c : place.kept) {
    Json one = {{"path", c.path.string()}, {"bytes", file_bytes(c.path)}};
    if (c.info) one.update({{"step", c.info->state.step}, {"tokens", c.info->state.tokens}});
    else one["flaw"] = c.flaw;
    kept.push_back(std::move(one));
  }
  for (const auto& t : stored.model()) tensors.push_back(json_of(t, "model"));
  for (const auto& t : stored.optimizer()) tensors.push_back(json_of(t, "optimizer"));
  print_json({{"path", place.checkpoint.string()},
              {"step", info.state.step},
              {"tokens", info.state.tokens},
              {"seed", info.state.seed},
              {"epoch", info.state.epoch},
              {"index", info.state.index},
              {"scalars", info.state.scalars},
              {"ranks", by.ranks},
              {"mesh", {{"pp", by.pp}, {"dp", by.dp}, {"cp", by.cp}, {"tp", by.tp}}},
              {"kept", std::move(kept)},
              {"config", config},
              {"tensors", std::move(tensors)},
              {"totals",
               {{"model", Totals(stored.model()).json()},
                {"optimizer", Totals(stored.optimizer()).json()},
                {"file_bytes", file_bytes(place.checkpoint)}}}});
}

std::string amount(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string table_of(const std::vector<io::StoredTensor>& list, const char* role, std::size_t width) {
  std::string text;
  for (const auto& t : list) {
    std::string files = t.parts.empty() ? "" : file_of(t.parts[0]);
    if (t.parts.size() > 1) files = fmt::format("{} shards, from {}", t.parts.size(), files);
    text += fmt::format("{:<{}}  {:<9}  {:<5} {:>10}  {}  {}\n", t.name, width, role, dtype_name(t.whole.dtype),
                        amount(t.whole.bytes()), to_string(t.whole.shape), files);
  }
  return text;
}

void show_text(const io::CheckpointPlace& place, const io::StoredCheckpoint& stored, const Values& config) {
  const auto& info = stored.info();
  const SavedBy by(info.ranks, config);
  std::string text =
      fmt::format("{}\nstep {}, {} tokens or samples, seed {}; saved by {} {} (pp {}, dp {}, cp {}, tp {})\n",
                  place.checkpoint.string(), info.state.step, info.state.tokens, info.state.seed, by.ranks,
                  by.ranks == 1 ? "rank" : "ranks", by.pp, by.dp, by.cp, by.tp);
  for (const auto& c : place.kept)
    text += fmt::format("kept: {}, {}{}\n", c.path.filename().string(), amount(file_bytes(c.path)),
                        c.info ? "" : ", damaged: " + c.flaw);
  text += "config:" + set_keys(config) + "\n\n";
  std::size_t width = 0;
  for (const auto* list : {&stored.model(), &stored.optimizer()})
    for (const auto& t : *list) width = std::max(width, t.name.size());
  text += table_of(stored.model(), "model", width) + table_of(stored.optimizer(), "optimizer", width);
  const Totals model(stored.model()), optimizer(stored.optimizer());
  text += fmt::format("model: {} tensors, {} elements, {}; optimizer: {} tensors, {} elements, {}; all files: {}\n",
                      model.tensors, format_count(static_cast<double>(model.elements)), amount(model.bytes),
                      optimizer.tensors, format_count(static_cast<double>(optimizer.elements)), amount(optimizer.bytes),
                      amount(file_bytes(place.checkpoint)));
  print_text(text);
}

int show(const ShowOptions& o) {
  const auto place = io::find_checkpoint(o.path);
  const io::StoredCheckpoint stored(place.checkpoint);
  (o.json ? show_json : show_text)(place, stored, config_of(place.checkpoint));
  return exit_code::kDone;
}

}  // namespace

void add_show(const Command& verb, Run& run) {
  add_verb<ShowOptions>(
      verb, run, "show", "Prints the step, the ranks that saved it, and every tensor of a checkpoint with its shards",
      [](const Command& sub, ShowOptions& o) {
        sub.option("path", o.path, kCheckpointHelp).required();
        sub.flag("--json", o.json, "One JSON object on stdout, with the whole config");
      },
      show);
}

}  // namespace hpcdl::cli::ckpt
