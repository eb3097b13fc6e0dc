// hpcdl eval: loss and perplexity of a model on text.

#include "cli/verb.h"
#include "hpcdl/data/tokenize.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/hf_config.h"

namespace hpcdl::cli {

namespace {

struct Options {
  std::string model, dtype = "f32", device = "cpu";
  std::vector<std::string> text;
  std::int64_t limit = 0;
  bool json = false;
};

int eval(Options& o) {
  Pool pool;
  const auto folder = io::find_model_folder(o.model);
  auto model = models::LanguageModel::open(folder);
  model.to_device(Stream(device_from_name(o.device), pool));
  const auto ids = encode_text(io::Tokenizer::load(folder), o.text, pool, o.limit);
  const auto show = console();
  const auto start = std::chrono::steady_clock::now();
  const auto result = infer::evaluate(model, pool, ids, {.compute = o.dtype == "bf16" ? DType::bf16 : DType::f32}, [&](std::int64_t done) {
    if (show.status) show.status(fmt::format("evaluating {}%", 100 * done / std::max<std::int64_t>(std::ssize(ids), 1)));
  });
  if (show.status) show.status("");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.json)
    print_json({{"loss", result.loss}, {"perplexity", result.perplexity}, {"tokens", result.tokens}, {"tokens_per_second", static_cast<double>(result.tokens) / seconds}});
  else
    print_text(fmt::format("loss {:.4f}  perplexity {:.3f}  over {} tokens\n", result.loss, result.perplexity, result.tokens));
  return exit_code::kDone;
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  add_verb<Options>(app, run, "eval", "Loss and perplexity of a model on text",
                    [](CLI::App& sub, Options& o) {
                      sub.add_option("--model", o.model, "Model folder, or a name in the local Hugging Face cache")->required();
                      sub.add_option("--text", o.text, "Files or folders of .txt or .jsonl")->required();
                      sub.add_option("--limit", o.limit, "Only the first N tokens; 0: all")->check(CLI::NonNegativeNumber);
                      sub.add_option("--dtype", o.dtype, "Type of activations")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
                      sub.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
                      sub.add_flag("--json", o.json, "One JSON object on stdout");
                    }, eval);
}

}  // namespace hpcdl::cli
