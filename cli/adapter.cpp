// hpcdl adapter: what is done with an adapter beside training and using it.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/out_folder.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/extract_adapter.h"
#include "hpcdl/models/merge_adapter.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::cli {
namespace {

struct MergeOptions {
  std::string model, adapter, out, dtype;
  bool force = false, json = false;
  ThreadsOption threads;
};

struct InspectOptions {
  std::string adapter;
  bool json = false;
};

struct ExtractOptions {
  std::string model, tuned, out;
  std::int64_t rank = 16;
  bool force = false, json = false;
  ThreadsOption threads;
};

struct AdapterVerb {
  MergeOptions merge;
  ExtractOptions extract;
  InspectOptions inspect;
};

int merge(MergeOptions& o) {
  Pool pool(o.threads.checked("adapter"));
  const auto from = io::find_model_folder(o.model);
  check_out_folder("adapter", from, o.out, o.force);
  const auto adapter = models::AdapterFolder::open(o.adapter);
  const auto dtype = o.dtype.empty()     ? DType::none
                     : o.dtype == "bf16" ? DType::bf16
                     : o.dtype == "f16"  ? DType::f16
                                         : DType::f32;
  quant::StagedFolder folder(o.out);
  models::merge_adapter(pool, from, adapter, folder.path(), dtype);
  quant::copy_companions(from, folder.path());
  folder.commit();
  if (o.json) print_json({{"out", o.out}});
  else say("model written to {}", o.out);
  return exit_code::kDone;
}

int extract(ExtractOptions& o) {
  Pool pool(o.threads.checked("adapter"));
  const auto base = io::find_model_folder(o.model), tuned = io::find_model_folder(o.tuned);
  check_out_folder("adapter", base, o.out, o.force);
  const auto found = models::extract_adapter(pool, base, tuned, o.out, o.rank);
  if (o.json) {
    print_json({{"out", o.out},
                {"layers", found.layers},
                {"relative_error", found.relative_error()},
                {"not_held", found.others}});
    return exit_code::kDone;
  }
  say("adapter written to {}: {} layers, without {:.2f} % of their differences", o.out, found.layers,
      100 * found.relative_error());
  if (!found.others.empty())
    say("these tensors differ, too, and an adapter of layers does not hold them: {}", fmt::join(found.others, ", "));
  return exit_code::kDone;
}

int inspect(InspectOptions& o) {
  const auto adapter = models::AdapterFolder::open(o.adapter);
  const auto json = io::read_json(adapter.path() / models::kAdapterConfig);
  const auto& a = adapter.options();
  std::int64_t parameters = 0, layers = 0;
  for (const auto& t : adapter.tensors()) {
    parameters += t.spec.size();
    layers += t.name.ends_with(".lora_A.weight");
  }
  const auto base = models::read_adapter_base(adapter.path());
  const auto of = json.value("base_model_name_or_path", Json()).is_string()
                      ? json.at("base_model_name_or_path").get<std::string>()
                      : std::string();
  if (o.json) {
    print_json({{"method", "lora"},
                {"base", of},
                {"fingerprint", base ? Json(base->fingerprint) : Json()},
                {"r", a.r},
                {"alpha", a.alpha},
                {"scale", a.scale()},
                {"dropout", a.dropout},
                {"bias", io::enum_name(a.bias)},
                {"targets", a.targets},
                {"keep", a.keep},
                {"layers", layers},
                {"parameters", parameters}});
    return exit_code::kDone;
  }
  std::string text = fmt::format("LoRA of rank {}, alpha {}{}: {} layers, {} parameters\n", a.r, a.alpha,
                                 a.rs ? " (rsLoRA)" : "", layers, format_count(static_cast<double>(parameters)));
  text += fmt::format("targets {}\n", fmt::join(a.targets, ", "));
  if (!a.keep.empty()) text += fmt::format("trained whole: {}\n", fmt::join(a.keep, ", "));
  if (a.bias != models::AdapterBias::none) text += fmt::format("biases: {}\n", io::enum_name(a.bias));
  text += fmt::format("base {}{}\n", of.empty() ? "not named" : of,
                      base ? ", weights with the fingerprint " + base->fingerprint : "");
  print_text(text);
  return exit_code::kDone;
}

}  // namespace

void add_adapter(const Command& program, Run& run) {
  auto options = std::make_shared<AdapterVerb>();
  const Command verb =
      program.subcommand("adapter", "Merges an adapter into its model, shows what it is, or finds one");
  const Command merging = verb.subcommand("merge", "Writes the model with the adapter added to its weights");
  merging.option("--model", options->merge.model, "Model folder, or a name in the local Hugging Face cache").required();
  merging.option("--adapter", options->merge.adapter, "Folder of the adapter, or of the run that made it").required();
  merging.option("--out", options->merge.out, "Folder to write").required();
  merging.flag("--force", options->merge.force, kForce);
  merging.option("--dtype", options->merge.dtype, "Type of the weights; default: that of the model")
      .one_of({"f32", "bf16", "f16"});
  add_threads_option(merging, options->merge.threads);
  merging.flag("--json", options->merge.json, "One JSON object on stdout");
  const Command extracting =
      verb.subcommand("extract", "Writes the adapter that is nearest to the difference of two models");
  extracting.option("--model", options->extract.model, "The model before it was trained further").required();
  extracting.option("--tuned", options->extract.tuned, "The model after that").required();
  extracting.option("--out", options->extract.out, "Folder to write").required();
  extracting.option("--rank", options->extract.rank, "Rank of the adapter").range(1, 1 << 16).shows_default();
  extracting.flag("--force", options->extract.force, kForce);
  add_threads_option(extracting, options->extract.threads);
  extracting.flag("--json", options->extract.json, "One JSON object on stdout");
  const Command showing = verb.subcommand("inspect", "Prints rank, targets and size of an adapter");
  showing.option("--adapter", options->inspect.adapter, "Folder of the adapter, or of the run that made it").required();
  showing.flag("--json", options->inspect.json, "One JSON object on stdout");
  verb.when_chosen([options, verb, &run] {
    run = [options, verb] {
      if (verb.chosen("merge")) return merge(options->merge);
      if (verb.chosen("inspect")) return inspect(options->inspect);
      if (verb.chosen("extract")) return extract(options->extract);
      fail_usage("adapter", "expected merge, inspect or extract after \"adapter\"");
    };
  });
}

}  // namespace hpcdl::cli
