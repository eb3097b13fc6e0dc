// hpcdl eval: loss and perplexity of a model on text, loss and accuracy on images.

#include <nlohmann/json.hpp>

#include "cli/dtype_option.h"
#include "cli/kv_option.h"
#include "cli/load_option.h"
#include "cli/model_ranks.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/data/tokenize.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/infer/evaluate_images.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/parallel/agree.h"

namespace hpcdl::cli {

namespace {

struct EvalOptions {
  std::string model, images, device = "cpu";
  KvOption kv;
  std::vector<std::string> text;
  std::int64_t limit = 0;
  bool json = false;
  ThreadsOption threads;
  DtypeOption dtype;
  LoadOption load;
};

/// The folder of a run holds its model in model/.
std::filesystem::path model_folder(const std::string& given) {
  const std::filesystem::path path(given);
  return !std::filesystem::exists(path / "config.json") && std::filesystem::exists(path / "model" / "config.json")
             ? path / "model"
             : path;
}

int eval_images(EvalOptions& o) {
  const DType compute = o.dtype.type() == DType::none ? DType::f32 : o.dtype.type();
  if (compute == DType::f16) fail_usage("eval", "--dtype f16 is for language models: expected auto, f32 or bf16");
  Pool pool(o.threads.checked("eval"));
  auto model = models::ImageModel::open(model_folder(o.model));
  {
    const Waiting waiting(console(), "loading the model");
    model.to_device(Stream(device_from_name(o.device), pool));
  }
  const auto set = data::open_images(
      o.images, data::Split::test,
      {.warn = [](const std::string& line) { say("warning: {}", line); }, .classes = model.config().labels});
  Work progress(console());
  const auto start = std::chrono::steady_clock::now();
  const auto result = infer::evaluate_images(model, pool, set, {.compute = compute}, [&](std::int64_t done) {
    progress.show("evaluating", static_cast<double>(done) / static_cast<double>(set->count()));
  });
  progress.end();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.json)
    print_json({{"loss", result.loss},
                {"accuracy", result.accuracy},
                {"samples", result.samples},
                {"samples_per_second", static_cast<double>(result.samples) / seconds}});
  else
    print_text(fmt::format("loss {:.4f}  accuracy {:.2f}%  over {} images of {}\n", result.loss, 100 * result.accuracy,
                           result.samples, set->info().name));
  return exit_code::kDone;
}

/// All ranks that share the model evaluate the same tokens, those of rank 0.
int eval_text(const EvalOptions& o, bool in_pages, const comm::Joined& joined) {
  const int threads = o.threads.checked("eval");
  const auto folder = io::find_model_folder(o.model);
  ModelRanks ranks(joined, "eval", facts_of_model(folder, o.device, o.dtype.word, o.kv.word, {}));
  const Console shown = ranks.leads() ? console() : Console();
  Pool pool(ranks.threads(threads));
  const auto load = o.load.checked("eval");
  const auto device = device_from_name(device_of_rank(o.device, joined.place()));
  auto model = [&] {
    const Waiting waiting(shown, "loading the model");
    auto opened = models::LanguageModel::open(folder, ranks.sharing(), load.on(device), {o.dtype.type(), &pool});
    opened.to_device(Stream(device, pool));
    return opened;
  }();
  if (ranks.leads()) say_converted(model), say_loading(model, load);
  std::vector<std::int32_t> ids;
  if (ranks.leads()) ids = encode_text(io::Tokenizer::load(folder), o.text, pool, o.limit);
  ids = parallel::of_first_rank(ranks.world(), std::move(ids));
  Work progress(shown);
  const auto start = std::chrono::steady_clock::now();
  const auto show = [&](std::int64_t done) {
    progress.show("evaluating", static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(ids.size(), 1)));
  };
  infer::EvalResult result;
  if (in_pages)
    ranks.lead(model, pool, {}, [&] {
      return result = infer::evaluate_in_pages(model, pool, ids, {.kv = o.kv.type(), .ranks = ranks.link()}, show),
             exit_code::kDone;
    });
  else result = infer::evaluate(model, pool, ids, {.compute = infer::type_of_inference(model)}, show);
  progress.end();
  if (!ranks.leads()) return exit_code::kDone;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.json)
    print_json({{"loss", result.loss},
                {"perplexity", result.perplexity},
                {"tokens", result.tokens},
                {"tokens_per_second", static_cast<double>(result.tokens) / seconds}});
  else
    print_text(
        fmt::format("loss {:.4f}  perplexity {:.3f}  over {} tokens\n", result.loss, result.perplexity, result.tokens));
  return exit_code::kDone;
}

int eval(EvalOptions& o, const Command& sub) {
  if (sub.given("--images")) {
    if (!o.text.empty() || o.limit > 0 || sub.given("--kv") || o.load.checked("eval").given())
      fail_usage("eval",
                 "--text, --limit, --kv, --ram and --load are for language models, --images is for image classifiers");
    return eval_images(o);
  }
  if (o.text.empty()) fail_usage("eval", "nothing to evaluate on: give --text or --images");
  auto joined = join_ranks({});
  return on_ranks(joined, [&] { return eval_text(o, sub.given("--kv"), joined); });
}

}  // namespace

void add_eval(const Command& program, Run& run) {
  add_verb<EvalOptions>(
      program, run, "eval",
      "Prints loss and perplexity of a model on text, or loss and accuracy on images; ranks share a model of text",
      [](const Command& sub, EvalOptions& o) {
        sub.option("--model", o.model, "Model folder, GGUF file, or a name in the local Hugging Face cache").required();
        sub.option("--text", o.text, "Files or folders of .txt, .md or .jsonl");
        sub.option("--images", o.images,
                   "The test images of CIFAR as published or of a folder of images; \"\": the procedural set")
            .values(0, 1);
        sub.option("--limit", o.limit, "Only the first N tokens; 0: all").not_negative();
        add_kv_option(sub, o.kv);
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_dtype_option(sub, o.dtype);
        add_load_options(sub, o.load);
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      eval);
}

}  // namespace hpcdl::cli
