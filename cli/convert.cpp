// hpcdl convert: writes a model with another data type or other shards.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/out_folder.h"
#include "cli/verb.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct ConvertOptions {
  std::string model, out, dtype;
  double shard_gb = 5;
  bool force = false, json = false;
};

constexpr double kNoLimit = 0x1p62;  // bytes

bool converts(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; }

int convert(ConvertOptions& o) {
  const auto from = io::find_model_folder(o.model);
  auto config = models::read_hf_config(from);
  if (config.quant) fail_usage("convert", "{} is quantised: convert the original model instead", from.string());
  check_out_folder("convert", from, o.out, o.force);
  const DType target = o.dtype.empty()     ? DType::none
                       : o.dtype == "bf16" ? DType::bf16
                       : o.dtype == "f16"  ? DType::f16
                                           : DType::f32;
  const auto files = io::TensorFolder::open(from);
  std::vector<io::NamedSpec> specs;
  std::int64_t bytes = 0;
  for (const auto& t : files.tensors()) {
    specs.push_back({t.name, {t.spec.shape, target != DType::none && converts(t.spec.dtype) ? target : t.spec.dtype}});
    bytes += specs.back().spec.bytes();
  }
  quant::StagedFolder folder(o.out);
  io::TensorFolderWriter writer(folder.path(), specs, static_cast<std::int64_t>(std::min(o.shard_gb * 1e9, kNoLimit)));
  for (const auto& s : specs) {
    const View view = files.at(s.name);
    if (s.spec == view.spec()) {
      writer.write(s.name, view);
    } else {
      const OwnedTensor copy(s.spec);
      convert_elements(copy.tensor, view);
      require(count_non_finite(copy.tensor) == count_non_finite(view), "convert",
              "{}: {} has numbers that {} cannot represent: choose bf16, which has the range of f32", from.string(),
              s.name, dtype_name(s.spec.dtype));
      writer.write(s.name, copy.tensor);
    }
  }
  writer.commit();
  if (target != DType::none) config.dtype = target;
  models::write_hf_config(folder.path(), config);
  quant::copy_companions(from, folder.path());
  folder.commit();
  if (o.json)
    print_json({{"out", o.out}, {"tensors", specs.size()}, {"bytes", bytes}, {"dtype", dtype_name(config.dtype)}});
  else say("{} tensors, {} written to {}", specs.size(), format_bytes(static_cast<double>(bytes)), o.out);
  return exit_code::kDone;
}

}  // namespace

void add_convert(const Command& program, Run& run) {
  add_verb<ConvertOptions>(
      program, run, "convert", "Writes a copy of a model folder with another data type or other shards",
      [](const Command& sub, ConvertOptions& o) {
        sub.option("--model", o.model, "Model folder, or a name in the local Hugging Face cache").required();
        sub.option("--out", o.out, "Folder to write").required();
        sub.flag("--force", o.force, kForce);
        sub.option("--dtype", o.dtype, "Type of the weights; default: unchanged").one_of({"f32", "bf16", "f16"});
        sub.option("--max-shard", o.shard_gb, "Largest file, in GB").positive().shows_default();
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      convert);
}

}  // namespace hpcdl::cli
