// hpcdl quantize: writes a model folder with matrices in few bits, which works wherever the original does.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/out_folder.h"
#include "cli/rewritten_model.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/tokenize.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/choose_formats.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/quant/rounder.h"

namespace hpcdl::cli {

namespace {

struct QuantizeOptions {
  std::string model, out, format = "int4";
  std::string keep, report;
  std::vector<std::string> text, calibration;
  std::int64_t calibration_tokens = 32'768;
  double target = 0;  // bits a weight; 0: all matrices have one format
  int group = 64;
  bool asymmetric = false, nested = false, keep_odd = false, plain = false, activation_scales = false, force = false,
       json = false;
  ThreadsOption threads;
};

/// Perplexity of the original and of the result on the same text.
Json compare(const QuantizeOptions& o, const std::filesystem::path& from, Pool& pool) {
  const auto [before, after] = evaluate_both(from, o.out, o.text, pool);
  return {{"perplexity_before", before.perplexity},
          {"perplexity_after", after.perplexity},
          {"loss_before", before.loss},
          {"loss_after", after.loss},
          {"tokens", before.tokens}};
}

void check_calibration(const QuantizeOptions& o, const nn::Codec& codec) {
  if (o.calibration.empty()) {
    if (o.target > 0)
      fail_usage("quantize", "--target-bpw measures what formats cost on a text: give --calib TEXT, too");
    if (o.activation_scales) fail_usage("quantize", "--activation-scales needs activations: give --calib TEXT, too");
    return;
  }
  if (!quant::compensation_of(codec))
    fail_usage("quantize", "--calib: errors of {} cannot be compensated: leave it out, or choose another format",
               codec.name);
}

int quantize(QuantizeOptions& o) {
  Pool pool(o.threads.checked("quantize"));
  const auto from = io::find_model_folder(o.model);
  const auto& codec = *quant::find_codec(o.format);
  check_calibration(o, codec);
  check_out_folder("quantize", from, o.out, o.force);
  Work progress(console());
  quant::QuantizeModelOptions options{
      .codec = &codec,
      .options = {.group = o.group, .symmetric = !o.asymmetric, .search = !o.plain, .nested = o.nested},
      .keep = kept_by(o.keep, "quantize"),
      .activation_scales = o.activation_scales,
      .keep_odd = o.keep_odd};
  std::vector<std::int32_t> tokens;
  std::optional<WatchedInputs> watched;
  if (!o.calibration.empty()) {
    tokens = encode_text(io::Tokenizer::load(from), o.calibration, pool, o.calibration_tokens);
    if (o.target > 0) {
      const auto formats = models::choose_formats(pool, from, options, o.target, tokens);
      options.other_codec = [formats](const std::string& name) {
        const auto found = formats.find(name);
        return found == formats.end() ? nullptr : found->second;
      };
    }
    options.calibration = &watched.emplace(from, pool, tokens).calibration;
  }
  options.progress = [&](const std::string& name, std::int64_t done, std::int64_t total) {
    if (total > 0) progress.show("quantising", static_cast<double>(done) / static_cast<double>(total), {{name}});
  };
  auto report = models::quantize_folder(pool, from, o.out, options);
  watched.reset();
  if (!o.report.empty()) {
    if (tokens.empty() && !o.text.empty()) tokens = encode_text(io::Tokenizer::load(from), o.text, pool, 0);
    if (!tokens.empty()) models::measure_layers(pool, from, o.out, tokens, report);
    io::write_file_atomic(o.report, quant::to_json(report).dump(2) + "\n");
  }
  progress.end();
  const Json comparison = o.text.empty() ? Json() : compare(o, from, pool);
  if (o.json) {
    print_report(Json::parse(quant::to_json(report).dump()), o.out, comparison);
    return exit_code::kDone;
  }
  print_text(quant::to_text(report));
  if (!comparison.is_null())
    print_text(fmt::format("perplexity {:.3f} before, {:.3f} after, over {} tokens\n",
                           comparison["perplexity_before"].get<double>(), comparison["perplexity_after"].get<double>(),
                           comparison["tokens"].get<std::int64_t>()));
  return exit_code::kDone;
}

}  // namespace

void add_quantize(const Command& program, Run& run) {
  add_verb<QuantizeOptions>(
      program, run, "quantize", "Turns the matrices of a model into numbers of few bits",
      [](const Command& sub, QuantizeOptions& o) {
        sub.option("--model", o.model, "Model folder, or a name in the local Hugging Face cache").required();
        sub.option("--out", o.out, "Folder to write").required();
        sub.flag("--force", o.force, kForce);
        std::vector<std::string> names;
        std::vector<int> groups;
        for (const auto* c : quant::codecs()) {
          names.emplace_back(c->name);
          groups.insert(groups.end(), c->groups.begin(), c->groups.end());
        }
        std::ranges::sort(groups);
        groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
        sub.option("--format", o.format, "Format of the quantised weights").one_of(names).shows_default();
        sub.option("--group", o.group, "With int4: weights that share a scale").one_of(groups).shows_default();
        sub.flag("--asymmetric", o.asymmetric, "With int4: also store an offset per group");
        sub.flag("--double", o.nested, "With nf4 and fp4: quantise the scales, too");
        sub.flag("--keep-odd", o.keep_odd,
                 "Leave a matrix as it is if its inputs are no whole groups; without this it is an error");
        sub.flag("--plain", o.plain,
                 "With int4: take scales from the largest weight of a group, without a search for the smallest error");
        sub.option("--calib", o.calibration,
                   "Text files or folders: let weights make up for each other's errors on this text (GPTQ)");
        sub.option("--calib-tokens", o.calibration_tokens, "Most tokens of --calib that are used")
            .range(std::int64_t{1}, std::int64_t{1} << 40)
            .shows_default();
        sub.option("--target-bpw", o.target,
                   "With --calib: so many bits a weight, of matrices in --format, rot3 and int8, by what each costs")
            .range(0.0, 32.0);
        sub.flag("--activation-scales", o.activation_scales,
                 "With --calib: choose scales by the errors of large inputs (int4, nf4, fp4)");
        sub.option("--keep", o.keep, "Leave matrices as they are in whose names this regular expression is found");
        sub.option("--report", o.report,
                   "Write a report as JSON; with --calib or --text, with the divergence that each matrix causes");
        sub.option("--text", o.text, "Also report perplexity on this text, before and after");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      quantize);
}

}  // namespace hpcdl::cli
