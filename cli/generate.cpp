// hpcdl generate: text from a mapped model, token by token.

#include "cli/generate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/train/facts.h"

namespace hpcdl::cli {

void Generating::choose_ways(infer::Engine& engine, std::int64_t prompt) const {
  auto tuning = start_tuning(options.tune, model.device(), pool);
  const bool measures = tuning && options.tune.mode == "full";
  const auto programs = measures ? engine.programs(prompt) : std::vector<const Instance*>();
  engine.set_ways(tuned_ways(tuning, options.tune, programs));
}

std::vector<std::int32_t> encode_prompt(const io::Tokenizer& tokenizer, const std::string& text) {
  auto ids = tokenizer.encode(text, true);
  if (ids.empty()) {
    const auto start = tokenizer.begin_of_text() ? tokenizer.begin_of_text() : tokenizer.end_of_text();
    require(start.has_value(), "generate",
            "the prompt is empty and the tokenizer has no token that begins a text: give --prompt");
    ids.push_back(*start);
  }
  return ids;
}

int new_tokens(int asked, std::int64_t prompt, std::int64_t context) {
  constexpr std::int64_t kSome = 100;
  return asked > 0 ? asked : static_cast<int>(std::clamp<std::int64_t>(context - prompt, 1, kSome));
}

namespace {

std::vector<std::int32_t> prompt_ids(const GenerateOptions& o, const io::Tokenizer* tokenizer) {
  if (!o.ids.empty()) return parse_ids(o.ids);
  return encode_prompt(*tokenizer, o.prompt_file.empty()  ? o.prompt
                                   : o.prompt_file == "-" ? read_stdin()
                                                          : io::read_file(o.prompt_file));
}

/// Options that must be the same on all ranks that share the layers; the prompt is taken from rank 0.
std::vector<parallel::Fact> facts_of(const GenerateOptions& o, const std::filesystem::path& folder) {
  std::string files;
  for (const auto& file : io::list_folder(folder))
    if (file.extension() == ".safetensors" || file.filename() == "config.json")
      files += fmt::format("{} {:08x} ", file.filename().string(), train::file_checksum(file));
  return {{"--model", fmt::format("a folder with {}", files)},
          {"--tokens", std::to_string(o.tokens)},
          {"--prompts", o.prompts.empty() ? "not given" : "given"},
          {"--batch", std::to_string(o.batch)},
          {"--temperature", std::to_string(o.sampling.temperature)},
          {"--top-k", std::to_string(o.sampling.top_k)},
          {"--top-p", std::to_string(o.sampling.top_p)},
          {"--seed", std::to_string(o.sampling.seed)},
          {"--ignore-eos", o.sampling.ignore_eos ? "given" : "not given"},
          {"--invariant", o.invariant ? "given" : "not given"},
          {"the kind of --device", device_from_name(o.device).is_cuda() ? "cuda" : "cpu"},
          {"--tune", o.tune.mode},
          {"--ways", o.tune.ways}};
}

/// One text, shown as it comes.
int generate_one(const Generating& g) {
  const auto& o = g.options;
  const auto* tokenizer = g.tokenizer;
  std::vector<std::int32_t> prompt;
  if (g.speaks()) prompt = prompt_ids(o, tokenizer);
  // mpirun gives standard input to rank 0 only, so all ranks take the prompt of rank 0.
  if (g.shared()) prompt = parallel::of_first_rank(g.ranks.world(), std::move(prompt));
  std::optional<io::StreamDecoder> decoder;
  if (tokenizer) decoder.emplace(*tokenizer);

  std::string text;
  std::vector<std::int32_t> ids;
  const auto emit = [&](const std::string& part) {
    text += part;
    if (g.speaks() && !o.json && !part.empty()) print_text(part);
  };
  const int tokens = new_tokens(o.tokens, std::ssize(prompt), g.model.config().context);
  infer::Engine engine(
      g.model, g.pool,
      {.context = std::ssize(prompt) + tokens, .vocab = g.vocab(), .numerics = {.row_invariant = o.invariant}});
  g.choose_ways(engine, std::ssize(prompt));
  if (g.speaks() && !o.json && o.ids.empty()) print_text(o.prompt_file.empty() ? o.prompt : "");
  const auto stats = engine.generate(prompt, tokens, o.sampling, [&](std::int32_t id) {
    ids.push_back(id);
    emit(decoder ? decoder->push(id) : fmt::format("{}{}", ids.size() > 1 ? "," : "", id));
    return true;
  });
  if (decoder) emit(decoder->finish());
  if (!g.speaks()) return exit_code::kDone;
  if (!o.json) {
    print_text("\n");
    say("{}", dim(fmt::format("{} tokens, {:.1f} per second, first after {:.1f} ms", ids.size(),
                              stats.tokens_per_second, stats.time_to_first_token_ms)));
    return exit_code::kDone;
  }
  print_json({{"text", text},
              {"token_ids", ids},
              {"prompt_ids", prompt},
              {"tokens_per_second", stats.tokens_per_second},
              {"time_to_first_token_ms", stats.time_to_first_token_ms},
              {"peak_rss_bytes", lab::peak_rss_bytes()},
              {"mapped_bytes", g.model.mapped_bytes()}});
  return exit_code::kDone;
}

/// The ranks that a launcher has started share the layers; without a launcher there is one rank. Rank 0 prints.
int generate_on(const GenerateOptions& o, const comm::Joined& ranks) {
  const bool shared = ranks.place().world > 1, speaks = ranks.place().rank == 0;
  const int asked = o.threads.checked("generate");
  Pool pool(shared && asked == 0 ? parallel::threads_per_rank(ranks.world()) : asked);
  const auto folder = io::find_model_folder(o.model);
  if (shared) expect_same_start(ranks, "generate", facts_of(o, folder));
  auto model =
      models::LanguageModel::open(folder, shared ? std::make_shared<parallel::TensorParallel>(ranks.world()) : nullptr);
  model.prefetch();
  {
    const Waiting waiting(speaks ? console() : Console(), "loading the model");
    model.to_device(Stream(device_from_name(device_of_rank(o.device, ranks.place())), pool));
  }
  const bool many = !o.prompts.empty(), needs = o.ids.empty() && !many;
  std::optional<io::Tokenizer> tokenizer;
  if (needs || std::filesystem::exists(folder / "tokenizer.json")) tokenizer = io::Tokenizer::load(folder);
  const Generating g{o, ranks, pool, model, tokenizer ? &*tokenizer : nullptr};
  return many ? generate_many(g) : generate_one(g);
}

int generate(GenerateOptions& o) {
  o.sampling.check();
  if (!o.prompt.empty() + !o.prompt_file.empty() + !o.ids.empty() + !o.prompts.empty() > 1)
    fail_usage("generate", "--prompt, --prompt-file, --prompt-ids and --prompts exclude each other: give one");
  if (o.prompts.empty() && (!o.out.empty() || o.batch > 0))
    fail_usage("generate", "--out and --batch are for many texts: give --prompts, too");
  if (!o.prompts.empty() && o.out.empty() && o.json)
    fail_usage("generate", "with --json the texts need a file of their own: give --out");
  auto ranks = join_ranks({});
  return on_ranks(ranks, [&] { return generate_on(o, ranks); });
}

}  // namespace

void add_generate(const Command& program, Run& run) {
  add_verb<GenerateOptions>(
      program, run, "generate",
      "Continues a text with a memory-mapped model; under mpirun or hpcdl launch, the ranks share its layers",
      [](const Command& sub, GenerateOptions& o) {
        sub.option("--model", o.model, "Model folder, or a name in the local Hugging Face cache").required();
        sub.option("--prompt", o.prompt, "Text to continue");
        sub.option("--prompt-file", o.prompt_file, "File with the text to continue; - reads stdin");
        sub.option("--prompt-ids", o.ids, "Text to continue as token ids: 1,2,3");
        sub.option(
            "--prompts", o.prompts,
            "File with many texts to continue, as JSON lines: {\"prompt\": TEXT} or {\"prompt_ids\": [1, 2]}, and "
            "\"tokens\" if it differs; - reads stdin");
        sub.option("--out", o.out, "With --prompts: the file for the results, as JSON lines; default: stdout");
        sub.option("--batch", o.batch, "With --prompts: texts that are continued at a time; default: 16").range(1, 256);
        sub.option("--tokens", o.tokens, "Tokens to add; default: 100, or as many as fit into the context").positive();
        sub.option("--temperature", o.sampling.temperature, "0: always the most likely token").shows_default();
        sub.option("--top-k", o.sampling.top_k, "Keep the k most likely tokens; 0: all").shows_default();
        sub.option("--top-p", o.sampling.top_p, "Keep the smallest set of tokens with this probability")
            .shows_default();
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_threads_option(sub, o.threads);
        add_tune_option(sub, o.tune);
        add_ways_option(sub, o.tune);
        sub.option("--seed", o.sampling.seed, "Seed of the sampling; the same seed gives the same text")
            .shows_default();
        sub.flag("--ignore-eos", o.sampling.ignore_eos, "Continue after the end-of-text token");
        sub.flag("--invariant", o.invariant,
                 "CPU: logits have the same bits however the tokens before them are cut into programs, but cost more "
                 "time");
        sub.flag("--json", o.json, "One JSON object on stdout at the end");
      },
      generate);
}

}  // namespace hpcdl::cli
