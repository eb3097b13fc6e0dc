// hpcdl ckpt import: from the files of other programs to a checkpoint.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/ckpt.h"
#include "cli/run_config.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/dcp/dcp_folder.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/stored_checkpoint.h"
#include "hpcdl/train/import_checkpoint.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::cli::ckpt {
namespace {

namespace fs = std::filesystem;

struct ImportWords {
  std::string path, from = "hf", model, out, prefix;
  std::vector<std::string> configs;
  bool json = false;
};

/// The files to import, opened.
struct Opened {
  fs::path path;
  std::optional<io::TensorFolder> hf;
  std::optional<io::DcpFolder> dcp;

  explicit Opened(const ImportWords& o) : path(o.path) {
    if (o.from == "hf") hf.emplace(io::TensorFolder::open(path = io::find_model_folder(o.path)));
    else dcp.emplace(path);
  }
  std::vector<io::StoredTensor> tensors() const { return hf ? io::stored_tensors(*hf) : dcp->tensors(); }
};

/// The folder with the config.json that describes the model; empty: [model] of the run does.
fs::path described_by(const ImportWords& o, const Opened& files) {
  if (!o.model.empty()) return io::find_model_folder(o.model);
  std::error_code ignored;
  return fs::exists(files.path / "config.json", ignored) ? files.path : fs::path();
}

int import_verb(const ImportWords& o, const Command& sub) {
  train::RunConfig config;
  io::ConfigTable table = train::table_of(config);
  load(table, {o.configs.begin(), o.configs.end()}, overrides(sub.rest()), sub);
  const Opened files(o);
  const auto folder = described_by(o, files);
  if (folder.empty() && o.configs.empty())
    fail_usage("ckpt import", "{} has no config.json: describe the model with -c run.toml, or with --model FOLDER",
               files.path.string());
  if (!folder.empty()) train::take_over_model(config, folder);
  if (config.data.tokenizer.empty() && fs::exists(folder / "tokenizer.json"))
    config.data.tokenizer = fs::absolute(folder).string();
  Work progress(console());
  train::ImportSource source{files.path, files.tensors(), {}, folder};
  if (sub.given("--prefix")) source.prefix = o.prefix;
  const auto report = train::import_checkpoint(config, source, o.out, [&](double share, const std::string& tensor) {
    progress.show("importing", share, {{tensor}});
  });
  progress.end();
  if (o.json) {
    print_json({{"checkpoint", report.checkpoint.string()},
                {"prefix", report.prefix},
                {"tensors", report.tensors},
                {"bytes", report.bytes},
                {"unused", report.unused}});
    return exit_code::kDone;
  }
  if (!report.unused.empty())
    say("{} tensors do not belong to the model and are left out, such as {}", report.unused.size(), report.unused[0]);
  say("{} tensors, {} written to {}; to train: hpcdl train -c {} --out {} --data.text=FILES", report.tensors,
      format_bytes(static_cast<double>(report.bytes)), report.checkpoint.string(),
      quoted((report.checkpoint / "config.toml").string()), quoted(o.out));
  return exit_code::kDone;
}

}  // namespace

void add_import(const Command& verb, Run& run) {
  add_verb<ImportWords>(
      verb, run, "import",
      "Makes a checkpoint of step 0 from the weights of another program, with which hpcdl train starts",
      [](const Command& sub, ImportWords& o) {
        sub.option("path", o.path, "Folder to read; a name in the local Hugging Face cache with --from hf").required();
        sub.option("--from", o.from,
                   "Form of the folder; hf: Hugging Face, dcp: a distributed checkpoint of PyTorch (.metadata and "
                   "*.distcp) whose names are those of Hugging Face")
            .one_of({"hf", "dcp"})
            .shows_default();
        sub.option("--out", o.out, "Output folder of the run, which gets checkpoints/step_00000000").required();
        sub.option("-c,--config", o.configs,
                   "TOML file of the run; its [model] describes the model if there is no config.json");
        sub.option("--model", o.model, "Model folder whose config.json and tokenizer belong to the weights");
        sub.option("--prefix", o.prefix, "What stands before the names of tensors; default: found out").kind("WORD");
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.takes_rest();
        sub.footer("Keys of the run may be given as for hpcdl train: --train.seed=2");
      },
      import_verb);
}

}  // namespace hpcdl::cli::ckpt
