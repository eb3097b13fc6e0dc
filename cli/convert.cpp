// hpcdl convert: writes a model in another form: GGUF or a folder, other data types, other shards, NF4 of bitsandbytes.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/compare_logits.h"
#include "cli/out_folder.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/gguf/encode.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/export_bitsandbytes.h"
#include "hpcdl/models/gguf/export.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/resave.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct ConvertOptions {
  std::string model, out, to = "hpcdl", type;
  double shard_gb = 5, max_kl = 1e-4;
  bool force = false, json = false, verify = false, nested = false;
  ThreadsOption threads;
};

constexpr double kNoLimit = 0x1p62;  // bytes

struct Converted {
  std::int64_t tensors = 0, bytes = 0;
  std::string type, note = {};
  double kl = -1;  // not verified
};

/// Throws Error if the model at `written` differs more from the one at `from` than is allowed.
void verify(const ConvertOptions& o, const fs::path& from, const fs::path& written, Pool& pool, Converted& c) {
  if (!o.verify) return;
  c.kl = divergence(from, written, pool);
  require(c.kl <= o.max_kl, "convert",
          "{}: its next tokens differ from those of {} by a divergence of {:.3g}, expected at most {:.3g}: nothing was "
          "written; a smaller loss needs a type of more bits, and --max-kl allows a larger one",
          o.out, from.string(), c.kl, o.max_kl);
}

DType dtype_named(const std::string& word) {
  return word == "f32" ? DType::f32 : word == "bf16" ? DType::bf16 : word == "f16" ? DType::f16 : DType::none;
}

Converted to_folder(const ConvertOptions& o, const fs::path& from, io::ModelConfig config, Pool& pool) {
  check_out_folder("convert", from, o.out, o.force);
  quant::StagedFolder folder(o.out);
  const auto shard = static_cast<std::int64_t>(std::min(o.shard_gb * 1e9, kNoLimit));
  const bool nf4 = o.to == "bnb";
  const auto written =
      nf4 ? models::export_bitsandbytes(from, config, folder.path(), {o.nested, shard}, pool)
          : models::resave(from, config, folder.path(), {.dtype = dtype_named(o.to), .shard_bytes = shard}, pool);
  Converted c{
      .tensors = written.tensors, .bytes = written.bytes, .type = nf4 ? "NF4" : std::string(dtype_name(written.dtype))};
  verify(o, from, folder.path(), pool, c);
  folder.commit();
  return c;
}

/// The type that is asked for, or the one nearest to that of the weights.
io::GgufType gguf_type(const ConvertOptions& o, DType stored) {
  if (o.type.empty())
    return stored == DType::f32 ? io::GgufType::f32 : stored == DType::f16 ? io::GgufType::f16 : io::GgufType::bf16;
  const auto* info = io::find_gguf_type(o.type);
  if (!info || !io::can_encode(info->type))
    fail_usage("convert", "--type: expected one of {}, got \"{}\"", io::encoded_gguf_types(), o.type);
  return info->type;
}

Converted to_gguf(const ConvertOptions& o, const fs::path& from, const io::ModelConfig& config, Pool& pool) {
  const auto type = gguf_type(o, config.dtype);
  const fs::path out(o.out);
  if (fs::is_directory(out)) fail_usage("convert", "--out: expected a file to write, found the folder {}", o.out);
  if (fs::exists(out) && fs::equivalent(from, out)) fail_usage("convert", "--out is the model itself");
  if (fs::exists(out) && !o.force) fail_usage("convert", "{} exists: give --force to replace it", o.out);
  const fs::path aside = out.parent_path() / (".checked-" + out.filename().string());
  const auto written = models::write_gguf(from, config, o.verify ? aside : out, type, pool);
  Converted c{.tensors = written.tensors, .bytes = written.bytes, .type = std::string(io::info_of(type).name)};
  if (written.in_other_types > 0)
    c.note = fmt::format("{} matrices have rows that are no whole blocks of {} and are in Q8_0 or F16",
                         written.in_other_types, c.type);
  if (!o.verify) return c;
  try {
    verify(o, from, aside, pool, c);
  } catch (...) {
    fs::remove(aside);
    throw;
  }
  io::rename_durably(aside, out);
  return c;
}

int convert(ConvertOptions& o) {
  Pool pool(o.threads.checked("convert"));
  const auto from = io::find_model_folder(o.model);
  const auto config = models::read_hf_config(from);
  if (config.quant) fail_usage("convert", "{} is quantised: convert the original model instead", from.string());
  if (o.nested && o.to != "bnb") fail_usage("convert", "--double is for --to bnb");
  if (!o.type.empty() && o.to != "gguf") fail_usage("convert", "--type is for --to gguf");
  const auto c = o.to == "gguf" ? to_gguf(o, from, config, pool) : to_folder(o, from, config, pool);
  if (!c.note.empty()) say("note: {}", c.note);
  if (o.json) {
    Json out = {{"out", o.out}, {"tensors", c.tensors}, {"bytes", c.bytes}, {"dtype", c.type}};
    if (o.verify) out["kl"] = c.kl;
    print_json(out);
  } else {
    say("{} tensors, {} written to {}{}", c.tensors, format_bytes(static_cast<double>(c.bytes)), o.out,
        o.verify ? fmt::format(", divergence {:.3g}", c.kl) : "");
  }
  return exit_code::kDone;
}

}  // namespace

void add_convert(const Command& program, Run& run) {
  add_verb<ConvertOptions>(
      program, run, "convert", "Writes a model as a GGUF file or as a folder, with other data types or other shards",
      [](const Command& sub, ConvertOptions& o) {
        sub.option("--model", o.model, "Model folder, GGUF file, or a name in the local Hugging Face cache").required();
        sub.option("--out", o.out, "Folder to write; with --to gguf the file").required();
        sub.option("--to", o.to,
                   "gguf: a file for llama.cpp; hpcdl: a folder of safetensors with the types of the model, BF16 where "
                   "they are quantised; f32, bf16, f16: such a folder with all weights in this type; bnb: a folder for "
                   "bitsandbytes, with the layers of the blocks in NF4")
            .one_of({"gguf", "hpcdl", "f32", "bf16", "f16", "bnb"})
            .shows_default();
        sub.option(
               "--type", o.type,
               "With --to gguf: type of the matrices, F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K; default: that of the "
               "model")
            .kind("TYPE");
        sub.flag("--double", o.nested, "With --to bnb: quantise the scales, too");
        sub.flag("--verify", o.verify, "Compare logits of both models, and write nothing if they differ too much");
        sub.option("--max-kl", o.max_kl, "With --verify: the largest mean divergence of next tokens, in nats")
            .positive()
            .shows_default();
        sub.flag("--force", o.force, kForce);
        sub.option("--max-shard", o.shard_gb, "Largest file of a folder, in GB").positive().shows_default();
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      convert);
}

}  // namespace hpcdl::cli
