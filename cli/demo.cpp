// hpcdl demo: text of this machine -> tokenizer -> training -> checkpoint -> INT4 -> generation from the mapped model,
// and a report.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/demo_report.h"
#include "cli/demo_text.h"
#include "cli/demos.h"
#include "cli/self.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/text_source.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/trainer.h"
#include "tools/measure_roofs.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct DemoOptions {
  int number = 0;  // 0: text; 1 to 4: see cli/demos.h
  std::string text, out, data, device = "cpu";
  std::int64_t steps = 0, epochs = 0;
  double minutes = 1.75;
  bool json = false, quick = false;
  ThreadsOption threads;
};

constexpr std::int64_t kTextBytes = 6'000'000, kLeastText = 20'000, kLeastGiven = 2048, kEvalTokens = 16'384;

class Demo {
 public:
  explicit Demo(const DemoOptions& o)
      : options_(o), out_(o.out.empty() ? "hpcdl-demo" : o.out), run_(out_ / "run"), int4_(out_ / "model-int4") {}
  int go();

 private:
  template <class F> void stage(const std::string& name, F&& work);
  void collect_text();
  void configure();
  std::int64_t steps_in(double seconds);
  bool train();
  void quantize();
  void evaluate();
  void generate();
  ModelFacts facts_of(const fs::path& folder) const;
  void finish();

  const DemoOptions& options_;
  fs::path out_, run_, int4_;
  Pool pool_{options_.threads.checked("demo")};
  lab::Roofs roofs_ = lab::roofs(pool_);
  std::string held_out_;
  train::RunConfig config_;
  train::RunSummary summary_;
  DemoReport report_;
  int stage_ = 0;
};

template <class F> void Demo::stage(const std::string& name, F&& work) {
  say("{}", bold(fmt::format("[{}/6] {}", ++stage_, name)));
  const auto start = std::chrono::steady_clock::now();
  work();
  report_.stages.push_back(
      {name, format_duration(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count())});
}

FoundText read_given(const std::string& path) {
  const std::vector<fs::path> paths{path};
  const auto files = data::resolve_text_files(paths);
  data::TextReader reader(files);
  std::string text;
  for (auto parts = reader.read(); !parts.empty() && text.size() < (std::size_t{64} << 20); parts = reader.read())
    for (auto& p : parts) text += p.text + "\n\n";
  require(std::ssize(text) >= kLeastGiven, "demo", "{}: {} of text is too little to learn from: give at least {}", path,
          format_bytes(static_cast<double>(text.size())), format_bytes(kLeastGiven));
  return {text, std::ssize(files), {path}};
}

void Demo::collect_text() {
  FoundText found;
  if (options_.text.empty()) {
    found = find_text(kTextBytes);
    require(std::ssize(found.text) >= kLeastText, "demo",
            "this machine has only {} of English text, which is too little: give --text FILE",
            format_bytes(static_cast<double>(found.text.size())));
  } else {
    found = read_given(options_.text);
  }
  const auto size = found.text.size();
  const auto cut = begin_of_part(found.text, size - size / 20, size - size / 40);
  held_out_ = found.text.substr(cut);
  io::make_folder(out_ / "text");
  io::write_file_atomic(out_ / "text" / "train.txt", found.text.substr(0, cut));
  io::write_file_atomic(out_ / "text" / "held_out.txt", held_out_);
  std::string places;
  for (const auto& p : found.places) places += (places.empty() ? "" : ", ") + p;
  report_.text = {{"from", places},
                  {"files", fmt::format("{}", found.files)},
                  {"for training", format_bytes(static_cast<double>(cut))},
                  {"held out", format_bytes(static_cast<double>(held_out_.size()))}};
  for (const auto& f : report_.text) say("      {:<18} {}", f.name, f.value);
}

void Demo::configure() {
  const auto machine = lab::this_machine();
  auto& m = config_.model;
  m.family = io::Family::llama;
  m.layers = 4, m.heads = 3, m.width = 192, m.context = 128;
  config_.data.text = {(out_ / "text" / "train.txt").string()};
  config_.data.cache = out_ / "cache";
  config_.data.vocab_size = 2048;
  config_.data.val_fraction = 0.02;
  auto& t = config_.train;
  t.threads = options_.threads.count;
  t.batch = 16, t.lr = 4e-3, t.min_lr = 4e-4, t.eval_batches = 8;
  t.dtype = roofs_.bf16 > roofs_.f32 ? Compute::bf16 : Compute::f32;
  config_.output = run_;
  t.steps = options_.steps > 0 ? options_.steps : steps_in(60 * options_.minutes);
  t.warmup = std::max<std::int64_t>(1, t.steps / 20);
  t.eval_every = std::max<std::int64_t>(1, t.steps / 12);
  config_.checkpoint.every = std::max<std::int64_t>(1, t.steps / 2);
  config_.checkpoint.resume = "none";
  report_.machine = {{"cpu", machine.cpu},
                     {"threads", fmt::format("{}", pool_.threads())},
                     {"instruction set", machine.isa},
                     {"peak f32", fmt::format("{:.0f} GFLOP/s", roofs_.f32 / 1e9)},
                     {"peak bf16", fmt::format("{:.0f} GFLOP/s", roofs_.bf16 / 1e9)},
                     {"memory bandwidth", fmt::format("{:.0f} GB/s", roofs_.memory() / 1e9)}};
}

/// Number of steps that this machine can do in the time, estimated from a few trial steps on random tokens.
std::int64_t Demo::steps_in(double seconds) {
  auto c = config_.model;
  c.vocab = config_.data.vocab_size;
  auto model = models::LanguageModel::create(c, 1, true);
  train::TrainStep step(model, pool_, train::step_options(config_));
  const auto size = static_cast<std::size_t>(config_.train.batch * c.context);
  std::vector<std::int32_t> tokens(size);
  const Rng rng{1, 1};
  for (std::size_t i = 0; i < size; ++i)
    tokens[i] = static_cast<std::int32_t>(rng.below(i, static_cast<std::uint64_t>(c.vocab)));
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step.accumulate(tokens, tokens, i, 0);
    step.update(1e-4, std::ssize(tokens));
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return static_cast<std::int64_t>(std::clamp(seconds / times[times.size() / 2], 48.0, 20'000.0)) / 12 * 12;
}

bool Demo::train() {
  train::forget_run(run_);
  summary_ = train::run(config_, {.console = console(),
                                  .speed_of_light = [this](const Program& p) { return lab::light(p, roofs_).seconds; },
                                  .after_step = {}});
  const auto& m = config_.model;
  report_.model = {{"family", std::string(io::enum_name(m.family))},
                   {"layers, heads, width", fmt::format("{}, {}, {}", m.layers, m.heads, m.width)},
                   {"context", fmt::format("{} tokens", m.context)},
                   {"vocabulary", fmt::format("{}", m.vocab)},
                   {"parameters", format_count(static_cast<double>(summary_.parameters))}};
  report_.training = {
      {"steps", fmt::format("{}", summary_.step)},
      {"tokens seen", format_count(static_cast<double>(config_.train.steps * config_.train.batch * m.context))},
      {"time", format_duration(summary_.seconds)},
      {"tokens per second", format_count(summary_.tokens_per_second)},
      {"of the speed of light", fmt::format("{:.0f} %", summary_.sol_percent)},
      {"activations in", std::string(io::enum_name(config_.train.dtype))},
      {"planned activation memory", format_bytes(static_cast<double>(summary_.arena_bytes))},
      {"peak memory", format_bytes(static_cast<double>(lab::peak_rss_bytes()))}};
  std::string text = io::read_file(run_ / "metrics.jsonl");
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = io::parse_json(text.substr(at, end - at), "metrics.jsonl");
    const double step = line.at("step");
    if (line.contains("loss")) report_.curve.push_back({step, line["loss"]});
    else report_.evaluation.push_back({step, line["eval_loss"]});
    at = end + 1;
  }
  return !summary_.stopped;
}

void Demo::quantize() {
  const auto report = models::quantize_folder(pool_, summary_.model, int4_, {.options = {.group = 64}});
  report_.after.bits_per_weight = report.bits_per_weight();
  say("      {} weights in {:.2f} bits each", format_count(static_cast<double>(report.weights())),
      report.bits_per_weight());
}

void Demo::evaluate() {
  const auto tokenizer = io::Tokenizer::load(summary_.model);
  auto ids = tokenizer.encode(held_out_);
  if (std::ssize(ids) > kEvalTokens) ids.resize(kEvalTokens);
  for (auto [folder, facts] : {std::pair(summary_.model, &report_.before), std::pair(int4_, &report_.after)}) {
    const auto result = infer::evaluate(models::LanguageModel::open(folder), pool_, ids);
    facts->loss = result.loss;
    facts->perplexity = result.perplexity;
    facts->file_bytes = static_cast<std::int64_t>(fs::file_size(folder / "model.safetensors"));
  }
  report_.validation_perplexity = std::exp(summary_.eval_loss);
  report_.held_out_tokens = std::ssize(ids) - 1;
  say("      perplexity {:.2f} as trained, {:.2f} in INT4, over {} held-out tokens", report_.before.perplexity,
      report_.after.perplexity, report_.held_out_tokens);
  say("      ({:.2f} at the end of training was measured on other text, the validation part)",
      report_.validation_perplexity);
}

/// The first words of parts that the model has not seen, short enough to leave room in its context for what it
/// generates.
std::vector<std::string> prompts(const std::string& text) {
  constexpr std::size_t kLongest = 64;
  std::vector<std::string> list;
  for (const double place : {0.25, 0.6}) {
    const auto from = static_cast<std::size_t>(place * static_cast<double>(text.size()));
    const auto at = begin_of_part(text, from, text.size() - text.size() / 10);
    list.push_back(text.substr(at, first_words(std::string_view(text).substr(at), 4, kLongest)));
  }
  return list;
}

/// Removes the runs of empty lines that a small model often writes.
std::string tidy(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto n = out.size();
    if (c == '\n' && n >= 2 && out[n - 1] == '\n' && out[n - 2] == '\n') continue;
    if (c == ' ' && n >= 1 && out[n - 1] == '\n') continue;
    out += c;
  }
  return out;
}

void Demo::generate() {
  for (const auto& prompt : prompts(held_out_)) {
    Sample sample{prompt, "", ""};
    for (auto [folder, facts, text] : {std::tuple(summary_.model, &report_.before, &sample.before),
                                       std::tuple(int4_, &report_.after, &sample.after)}) {
      const auto json =
          io::parse_json(run_self({"generate", "--model", folder.string(), "--prompt", prompt, "--temperature", "0.7",
                                   "--top-k", "40", "--seed", "7", "--ignore-eos", "--json"}),
                         "hpcdl generate");
      *text = whole_words(tidy(json.at("text").get<std::string>()));
      facts->tokens_per_second = std::max(facts->tokens_per_second, json.at("tokens_per_second").get<double>());
      facts->first_token_ms = json.at("time_to_first_token_ms");
      facts->peak_rss_bytes = std::max(facts->peak_rss_bytes, json.at("peak_rss_bytes").get<std::int64_t>());
      facts->mapped_bytes = json.at("mapped_bytes");
    }
    report_.samples.push_back(std::move(sample));
  }
}

void Demo::finish() {
  report_.title = "hpcdl demo";
  const std::time_t now = std::time(nullptr);
  char date[64];
  std::strftime(date, sizeof date, "%e %B %Y, %H:%M", std::localtime(&now));
  report_.date =
      fmt::format("A language model of {} parameters, trained on this machine in {}; {}", report_.model.back().value,
                  format_duration(summary_.seconds), date[0] == ' ' ? date + 1 : date);
  const auto page = demo_page(report_);
  io::write_file_atomic(out_ / "report.html", page_html(page));
  if (options_.json) {
    const auto side = [](const ModelFacts& f) {
      return Json{{"file_bytes", f.file_bytes},
                  {"bits_per_weight", f.bits_per_weight},
                  {"loss", f.loss},
                  {"perplexity", f.perplexity},
                  {"tokens_per_second", f.tokens_per_second},
                  {"time_to_first_token_ms", f.first_token_ms},
                  {"peak_rss_bytes", f.peak_rss_bytes},
                  {"mapped_bytes", f.mapped_bytes}};
    };
    print_json({{"report", (out_ / "report.html").string()},
                {"model", summary_.model.string()},
                {"int4", int4_.string()},
                {"steps", summary_.step},
                {"first_loss", report_.curve.front().second},
                {"loss", summary_.loss},
                {"validation_perplexity", report_.validation_perplexity},
                {"seconds", summary_.seconds},
                {"tokens_per_second", summary_.tokens_per_second},
                {"sol_percent", summary_.sol_percent},
                {"before", side(report_.before)},
                {"after", side(report_.after)}});
  } else {
    print_text(page_text(page));
  }
  say("\n{}", bold(fmt::format("report: {}", fs::absolute(out_ / "report.html").string())));
  say("try:    hpcdl generate --model {} --prompt \"...\" --tokens 100 --temperature 0.7", int4_.string());
}

int Demo::go() {
  // A demo starts from the beginning. It may replace the results of an earlier demo, but not those of any other run.
  const bool mine = fs::exists(out_ / "text" / "held_out.txt");
  for (const auto& file : {run_ / "config.toml", int4_ / "config.json"})
    if (!mine && fs::exists(file))
      fail_usage("demo", "{} exists and was not made by a demo: choose another folder with --out", file.string());
  io::make_folder(out_);
  bool done = false;
  stage("finding text", [&] { collect_text(); });
  stage("planning the run", [&] {
    configure();
    say("      {} steps of {} tokens", config_.train.steps, config_.train.batch * config_.model.context);
  });
  stage("training, with evaluations", [&] { done = train(); });
  if (!done) return exit_code::kRequeue;
  stage("quantising to INT4", [&] { quantize(); });
  stage("measuring perplexity", [&] { evaluate(); });
  stage("generating from the mapped files", [&] { generate(); });
  finish();
  return exit_code::kDone;
}

}  // namespace

namespace {

void setup(const Command& sub, DemoOptions& o) {
  sub.option("number", o.number,
             "Without a number: a language model, as above. 1: images on one device; 2: data parallel; 3: mixed "
             "precision; 4: "
             "where time and memory go")
      .range(1, 4)
      .described_as("1|2|3|4");
  sub.option("--out", o.out, "Folder for all results; default: hpcdl-demo, or hpcdl-demo-N");
  sub.flag("--json", o.json, "One JSON object on stdout at the end");
  constexpr const char* kText = "Language model";
  sub.option("--text", o.text, "Text to learn from; default: prose found in the documentation of this machine")
      .group(kText);
  sub.option("--steps", o.steps, "Training steps; default: as many as fit --minutes").positive().group(kText);
  sub.option("--minutes", o.minutes, "Time to train for").positive().shows_default().group(kText);
  add_threads_option(sub, o.threads);
  constexpr const char* kImages = "Demos 1 to 4";
  sub.option(
         "--data", o.data,
         "CIFAR-10 or CIFAR-100 as published, or a folder with a sub-folder for each class; default: a procedural set")
      .group(kImages);
  sub.option("--device", o.device, "cpu or cuda").shows_default().group(kImages);
  sub.option("--epochs", o.epochs, "Passes over the data, for demos 1 and 3; default: chosen by the demo")
      .positive()
      .group(kImages);
  sub.flag("--quick", o.quick, "A tiny model and few images: everything runs, but the figures mean little")
      .group(kImages);
}

int demo_verb(DemoOptions& o, const Command& sub) {
  const std::vector<std::string> of_text{"--text", "--steps", "--minutes", "--threads"},
      of_images{"--data", "--device", "--epochs", "--quick"};
  for (const auto& name : o.number ? of_text : of_images)
    if (sub.given(name))
      fail_usage("demo", "{} belongs to {}, not to {}", name,
                 o.number ? "`hpcdl demo` without a number" : "`hpcdl demo 1` to `hpcdl demo 4`",
                 o.number ? fmt::format("`hpcdl demo {}`", o.number) : "`hpcdl demo`");
  if (o.number == 0) return Demo(o).go();
  if (sub.given("--epochs") && o.number % 2 == 0)
    say("demo {} measures the speed of steps: --epochs changes nothing there", o.number);
  return run_demo({.number = o.number,
                   .data = o.data,
                   .device = o.device,
                   .out = o.out,
                   .epochs = o.epochs,
                   .json = o.json,
                   .quick = o.quick});
}

}  // namespace

void add_demo(const Command& program, Run& run) {
  add_verb<DemoOptions>(
      program, run, "demo",
      "Trains, compresses and runs a small language model on text of this machine, in about two minutes; "
      "with a number: one of four demos on images",
      setup, demo_verb);
}

}  // namespace hpcdl::cli
