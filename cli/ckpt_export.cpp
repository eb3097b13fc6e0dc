// hpcdl ckpt export: from a checkpoint to the files of other programs.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/ckpt.h"
#include "cli/out_folder.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/checkpoint_place.h"
#include "hpcdl/models/export_folder.h"

namespace hpcdl::cli::ckpt {
namespace {

struct ExportWords {
  std::string path, to = "hf", out, dtype;
  bool force = false, json = false;
};

DType dtype_of_word(const std::string& word) {
  for (const auto d : {DType::f32, DType::bf16, DType::f16})
    if (word == (d == DType::f32 ? "f32" : d == DType::bf16 ? "bf16" : "f16")) return d;
  return DType::none;
}

int export_verb(const ExportWords& o) {
  const auto place = io::find_checkpoint(o.path);
  check_out_folder("ckpt export", place.checkpoint, o.out, o.force);
  const io::StoredCheckpoint stored(place.checkpoint);
  Work progress(console());
  const auto report = models::export_folder(
      stored, o.out,
      {.dcp = o.to == "dcp", .dtype = dtype_of_word(o.dtype), .progress = [&](double share, const std::string& tensor) {
         progress.show("exporting", share, {{tensor}});
       }});
  progress.end();
  if (o.json)
    print_json({{"from", place.checkpoint.string()},
                {"out", o.out},
                {"step", stored.info().state.step},
                {"tensors", report.tensors},
                {"bytes", report.bytes}});
  else
    say("{} tensors, {} of step {} written to {}", report.tensors, format_bytes(static_cast<double>(report.bytes)),
        stored.info().state.step, o.out);
  return exit_code::kDone;
}

}  // namespace

void add_export(const Command& verb, Run& run) {
  add_verb<ExportWords>(
      verb, run, "export", "Writes the model of a checkpoint, however it is sharded, for transformers or PyTorch",
      [](const Command& sub, ExportWords& o) {
        sub.option("path", o.path, kCheckpointHelp).required();
        sub.option("--to", o.to, "Form of the result; hf: a Hugging Face folder; dcp: for torch.distributed.checkpoint")
            .one_of({"hf", "dcp"})
            .shows_default();
        sub.option("--out", o.out, "Folder to write").required();
        sub.option("--dtype", o.dtype, "Type of the weights; default: as they are stored")
            .one_of({"f32", "bf16", "f16"});
        sub.flag("--force", o.force, kForce);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      export_verb);
}

}  // namespace hpcdl::cli::ckpt
