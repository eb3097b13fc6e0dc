// hpcdl ckpt verify: reads everything in a checkpoint, or in all of a run.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/ckpt.h"
#include "hpcdl/io/checkpoint_check.h"
#include "hpcdl/io/checkpoint_place.h"

namespace hpcdl::cli::ckpt {
namespace {

namespace fs = std::filesystem;

struct VerifyOptions {
  std::string path;
  bool all = false, json = false;
};

std::vector<fs::path> chosen(const VerifyOptions& o) {
  if (io::is_checkpoint(o.path)) return {o.path};
  std::vector<fs::path> list;
  for (const auto& c : io::kept_checkpoints(o.path)) list.push_back(c.path);
  if (!o.all) list.resize(1);
  return list;
}

int verify(const VerifyOptions& o) {
  Work progress(console());
  Json list = Json::array();
  std::size_t flaws = 0;
  for (const auto& path : chosen(o)) {
    std::vector<std::string> found;
    io::check_checkpoint(path, [&](const std::string& what) { found.push_back(what); },
                         {.progress = [&](double share, const std::string& file) {
                           progress.show("verifying " + path.filename().string(), share, {{file}});
                         }});
    flaws += found.size();
    if (!o.json) {
      progress.end();
      for (const auto& what : found) print_text(what + "\n");
      print_text(
          fmt::format("{}: {}\n", path.string(),
                      found.empty() ? "whole" : fmt::format("{} flaw{}", found.size(), found.size() == 1 ? "" : "s")));
    }
    list.push_back({{"path", path.string()}, {"whole", found.empty()}, {"flaws", found}});
  }
  progress.end();
  if (o.json) print_json({{"whole", flaws == 0}, {"checkpoints", std::move(list)}});
  return flaws == 0 ? exit_code::kDone : kFlawed;
}

}  // namespace

void add_verify(const Command& verb, Run& run) {
  add_verb<VerifyOptions>(
      verb, run, "verify",
      "Reads a whole checkpoint and names each file or tensor that is torn, missing, swapped, doubled or of another "
      "save; exit code 1 if there is one",
      [](const Command& sub, VerifyOptions& o) {
        sub.option("path", o.path,
                   "A checkpoint, a folder of checkpoints, or the output of a run: the last one written")
            .required();
        sub.flag("--all", o.all, "Every checkpoint of the folder, not only the last one");
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      verify);
}

}  // namespace hpcdl::cli::ckpt
