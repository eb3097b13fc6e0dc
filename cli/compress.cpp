// hpcdl compress: writes a model folder whose linear layers are products of smaller matrices.

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/out_folder.h"
#include "cli/rewritten_model.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/data/tokenize.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/compress.h"

namespace hpcdl::cli {

namespace {

struct CompressOptions {
  std::string model, out, method = "monarch", keep, report;
  std::vector<std::string> text, calibration;
  double ratio = 0;
  std::int64_t blocks = 0, calibration_tokens = 32'768;
  bool force = false, json = false;
  ThreadsOption threads;
};

nn::Method method_of(const std::string& word) {
  for (const auto& [method, name] : nn::kMethodNames)
    if (word == name) return method;
  fail_usage("compress", "--method: expected svd, monarch or blast, found \"{}\"", word);
}

int compress(CompressOptions& o) {
  const auto method = method_of(o.method);
  if (!(o.ratio > 0 && o.ratio < 1))
    fail_usage("compress", "--ratio: expected a part of the size between 0 and 1, such as 0.5, found {}", o.ratio);
  if (o.blocks > 0 && method == nn::Method::svd)
    fail_usage("compress", "--blocks is for --method monarch and blast: svd has one block");
  if (!o.calibration.empty() && method != nn::Method::svd)
    fail_usage("compress", "--calib weighs the errors of --method svd only: leave it out, or choose svd");
  Pool pool(o.threads.checked("compress"));
  const auto from = io::find_model_folder(o.model);
  check_out_folder("compress", from, o.out, o.force);
  Work progress(console());
  quant::CompressModelOptions options{.method = method, .ratio = o.ratio, .keep = kept_by(o.keep, "compress")};
  if (o.blocks > 0) options.blocks = o.blocks;
  std::optional<WatchedInputs> watched;
  if (!o.calibration.empty()) {
    const auto tokens = encode_text(io::Tokenizer::load(from), o.calibration, pool, o.calibration_tokens);
    options.calibration = &watched.emplace(from, pool, tokens).calibration;
  }
  options.progress = [&](const std::string& name, std::int64_t done, std::int64_t total) {
    if (total > 0) progress.show("compressing", static_cast<double>(done) / static_cast<double>(total), {{name}});
  };
  const auto report = models::compress_folder(pool, from, o.out, options);
  watched.reset();
  progress.end();
  Json comparison;
  if (!o.text.empty()) {
    const auto [before, after] = evaluate_both(from, o.out, o.text, pool);
    comparison = {{"loss_before", before.loss}, {"loss_after", after.loss}, {"tokens", before.tokens}};
  }
  if (!o.report.empty()) io::write_file_atomic(o.report, quant::to_json(report).dump(2) + "\n");
  if (o.json) {
    print_report(Json::parse(quant::to_json(report).dump()), o.out, comparison);
    return exit_code::kDone;
  }
  print_text(quant::to_text(report));
  if (!comparison.is_null())
    print_text(
        fmt::format("loss {:.4f} before, {:.4f} after, over {} tokens: train the result further with [model] init\n",
                    comparison["loss_before"].get<double>(), comparison["loss_after"].get<double>(),
                    comparison["tokens"].get<std::int64_t>()));
  return exit_code::kDone;
}

}  // namespace

void add_compress(const Command& program, Run& run) {
  add_verb<CompressOptions>(
      program, run, "compress", "Writes the linear layers of a model as products of smaller matrices",
      [](const Command& sub, CompressOptions& o) {
        sub.option("--model", o.model, "Model folder, or a name in the local Hugging Face cache").required();
        sub.option("--out", o.out, "Folder to write").required();
        sub.flag("--force", o.force, kForce);
        sub.option("--method", o.method,
                   "svd: two thin matrices; monarch: two block-diagonal ones; blast: blocks that share bases")
            .one_of({"svd", "monarch", "blast"})
            .shows_default();
        sub.option("--ratio", o.ratio, "Size of the compressed layers, as a part of what it was").required();
        sub.option("--blocks", o.blocks,
                   "With monarch and blast: blocks along each side of a matrix; by default 4 where they divide it")
            .range(std::int64_t{2}, std::int64_t{1} << 16);
        sub.option("--keep", o.keep, "Leave matrices as they are in whose names this regular expression is found");
        sub.option("--calib", o.calibration,
                   "With svd, text files or folders: errors count by the inputs that layers have on this text");
        sub.option("--calib-tokens", o.calibration_tokens, "Most tokens of --calib that are used")
            .range(std::int64_t{1}, std::int64_t{1} << 40)
            .shows_default();
        sub.option("--report", o.report, "Write size and error of each layer as JSON");
        sub.option("--text", o.text, "Also report the loss on this text, before and after");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      compress);
}

}  // namespace hpcdl::cli
