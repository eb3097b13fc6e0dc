// hpcdl generate: text from a mapped model, token by token.

#include "cli/generate.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/generated_text.h"
#include "cli/verb.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/serve/draft.h"
#include "hpcdl/serve/served_model.h"

namespace hpcdl::cli {

void Generating::choose_ways(infer::Engine& engine, std::int64_t prompt) const {
  auto tuning = start_tuning(options.tune, model.device(), pool);
  const bool measures = tuning && options.tune.mode == "full";
  const auto programs = measures ? engine.programs(prompt) : std::vector<const Instance*>();
  engine.set_ways(tuned_ways(tuning, options.tune, programs));
}

std::vector<std::int32_t> Generating::encode(const std::string& prompt) const {
  if (!chat) return serve::encode_prompt(*tokenizer, prompt);
  const Json message{{"role", "user"}, {"content", prompt}};
  return tokenizer->encode(io::chat_prompt(*chat, Json::array({message}), nullptr, true, nullptr));
}

std::shared_ptr<infer::TokenConstraint> Generating::constraint() const {
  return form ? constraints->constrain(form) : nullptr;
}

int new_tokens(int asked, int otherwise, std::int64_t prompt, std::int64_t context) {
  return asked > 0 ? asked : static_cast<int>(std::clamp<std::int64_t>(context - prompt, 1, otherwise));
}

namespace {

std::vector<std::int32_t> prompt_ids(const Generating& g) {
  const auto& o = g.options;
  if (!o.ids.empty()) return parse_ids(o.ids);
  return g.encode(o.prompt_file.empty()  ? o.prompt
                  : o.prompt_file == "-" ? read_stdin()
                                         : io::read_file(o.prompt_file));
}

std::shared_ptr<const infer::Grammar> form_of(const GenerateOptions& o, serve::Constraints& constraints) {
  if (!o.schema.empty()) return constraints.grammar(serve::Form::json_schema, io::read_file(o.schema));
  if (!o.grammar.empty()) return constraints.grammar(serve::Form::gbnf, io::read_file(o.grammar));
  return constraints.grammar(serve::Form::regex, o.regex);
}

/// The texts of one prompt; a single one is shown as it comes.
int generate_of_one(const Generating& g) {
  const auto& o = g.options;
  const auto prompt = prompt_ids(g);
  const bool shows = !o.json && o.n == 1;
  const int tokens = new_tokens(o.tokens, o.unsaid_tokens, std::ssize(prompt), g.model.config().context);
  infer::Engine engine(g.model, g.pool,
                       {.context = o.kv_window.any() ? 0 : std::ssize(prompt) + tokens,
                        .sequences = o.n,
                        .vocab = g.vocab(),
                        .kv = o.kv.type(),
                        .kv_window = o.kv_window,
                        .speculation = g.speculation,
                        .numerics = {.row_invariant = o.invariant},
                        .ranks = g.ranks});
  g.choose_ways(engine, std::ssize(prompt));
  if (shows && !o.chat && o.ids.empty()) print_text(o.prompt_file.empty() ? o.prompt : "");
  std::deque<GeneratedText> texts;
  for (int i = 0; i < o.n; ++i) {
    auto& text = texts.emplace_back(g.tokenizer, o.sampling.stop);
    auto request = request_of(g, prompt, tokens, static_cast<std::size_t>(i));
    request.on_token = [&text, shows](const infer::Token& t) {
      const auto part = text.add(t);
      if (shows && !part.empty()) print_text(part);
      return !text.stopped();
    };
    request.on_end = [&text, shows](const infer::End& end) {
      const auto part = text.finish(end);
      if (shows && !part.empty()) print_text(part);
    };
    engine.submit(std::move(request));
  }
  engine.run();
  const auto& first = texts.front();
  const auto& stats = first.end()->stats;
  if (!o.json) {
    if (shows) print_text("\n");
    else
      for (std::size_t i = 0; i < texts.size(); ++i) print_text(fmt::format("[{}] {}\n", i, texts[i].text()));
    say("{}", dim(fmt::format("{} tokens, {:.1f} per second, first after {:.1f} ms", first.ids().size(),
                              stats.tokens_per_second, stats.time_to_first_token_ms)));
    return exit_code::kDone;
  }
  Json result{{"text", first.text()},
              {"token_ids", first.ids()},
              {"prompt_ids", prompt},
              {"tokens_per_second", stats.tokens_per_second},
              {"time_to_first_token_ms", stats.time_to_first_token_ms},
              {"proposed_tokens", stats.proposed_tokens},
              {"accepted_tokens", stats.accepted_tokens},
              {"peak_rss_bytes", lab::peak_rss_bytes()},
              {"mapped_bytes", g.model.mapped_bytes()}};
  first.add_logprobs(o, result);
  for (const auto& t : texts) {
    if (o.n == 1) break;
    Json one{{"text", t.text()}, {"token_ids", t.ids()}, {"end", t.reason()}};
    t.add_logprobs(o, one);
    one.erase("prompt_logprobs");  // that of the first is beside them
    result["texts"].push_back(std::move(one));
  }
  print_json(result);
  return exit_code::kDone;
}

/// What the verb does on rank 0.
int continue_texts(const GenerateOptions& o, const std::filesystem::path& folder, const models::LanguageModel& model,
                   infer::RankLink* ranks, Pool& pool) {
  const bool many = !o.prompts.empty(), needs = o.ids.empty() && !many;
  std::optional<io::Tokenizer> tokenizer;
  if (needs || io::has_tokenizer(folder)) tokenizer = io::Tokenizer::load(folder);
  if (!o.sampling.stop.empty())
    require(tokenizer.has_value(), "generate", "--stop needs a tokenizer, and the model has none");
  std::optional<io::ChatTemplate> chat;
  if (o.chat) {
    chat = io::load_chat_template(folder);
    require(chat.has_value(), "generate", "--chat: {} has no chat template", folder.string());
  }
  const serve::Draft draft(o.spec, model, tokenizer ? &*tokenizer : nullptr, pool);
  std::optional<serve::Constraints> constraints;
  std::shared_ptr<const infer::Grammar> form;
  if (o.has_form()) {
    require(tokenizer.has_value(), "generate", "the form of a text needs a tokenizer, and the model has none");
    constraints.emplace(*tokenizer, serve::end_ids(model, *tokenizer));
    form = form_of(o, *constraints);
  }
  const Generating g{.options = o,
                     .ranks = ranks,
                     .pool = pool,
                     .model = model,
                     .tokenizer = tokenizer ? &*tokenizer : nullptr,
                     .chat = chat ? &*chat : nullptr,
                     .constraints = constraints ? &*constraints : nullptr,
                     .form = form,
                     .speculation = draft.options()};
  return many ? generate_many(g) : generate_of_one(g);
}

int generate_on(GenerateOptions& o, const Command& verb, const comm::Joined& joined) {
  const bool speaks = joined.place().rank == 0;
  const int threads = o.threads.checked("generate");
  const auto folder = io::find_model_folder(o.model);
  const auto defaults = infer::read_generation_config(folder);
  o.sampling.complete(verb, defaults);
  o.unsaid_tokens = defaults.max_tokens.value_or(o.unsaid_tokens);
  if (const auto warning = defaults.warning(); speaks && !warning.empty()) say("warning: {}", warning);
  if (o.print_config) return print_text(speaks ? o.sampling.origins : ""), exit_code::kDone;
  ModelRanks ranks(joined, "generate", facts_of_model(folder, o.device, o.dtype.word, o.kv.word, o.tune));
  Pool pool(ranks.threads(threads));
  const auto load = o.prompts.empty() ? o.load.checked("generate") : o.load.checked_for_many("generate");
  const auto device = device_from_name(device_of_rank(o.device, joined.place()));
  auto model = [&] {
    const Waiting waiting(speaks ? console() : Console(), "loading the model");
    auto opened = models::LanguageModel::open(folder, ranks.sharing(), load.on(device), {o.dtype.type(), &pool});
    opened.prefetch();
    opened.to_device(Stream(device, pool));
    return opened;
  }();
  if (speaks) say_converted(model), say_loading(model, load);
  return ranks.lead(model, pool, o.tune, [&] { return continue_texts(o, folder, model, ranks.link(), pool); });
}

int generate(GenerateOptions& o, const Command& verb) {
  o.sampling.checked("generate");
  if (!o.schema.empty() + !o.regex.empty() + !o.grammar.empty() > 1)
    fail_usage("generate", "--schema, --regex and --grammar exclude each other: give one");
  if (o.has_form() && o.sampling.options.ignore_eos)
    fail_usage("generate", "--ignore-eos: a text that must have a form ends where the form does");
  if (o.chat && !o.ids.empty()) fail_usage("generate", "--chat is for prompts that are texts: leave --prompt-ids out");
  if (!o.prompt.empty() + !o.prompt_file.empty() + !o.ids.empty() + !o.prompts.empty() > 1)
    fail_usage("generate", "--prompt, --prompt-file, --prompt-ids and --prompts exclude each other: give one");
  if (o.prompts.empty() && (!o.out.empty() || o.batch > 0))
    fail_usage("generate", "--out and --batch are for many texts: give --prompts, too");
  if (!o.prompts.empty() && o.out.empty() && o.json)
    fail_usage("generate", "with --json the texts need a file of their own: give --out");
  auto joined = join_ranks({});
  return on_ranks(joined, [&] { return generate_on(o, verb, joined); });
}

}  // namespace

void add_generate(const Command& program, Run& run) {
  add_verb<GenerateOptions>(
      program, run, "generate",
      "Continues a text with a memory-mapped model; under mpirun or hpcdl launch, the ranks share its layers",
      [](const Command& sub, GenerateOptions& o) {
        sub.option("--model", o.model, "Model folder, GGUF file, or a name in the local Hugging Face cache").required();
        sub.option("--prompt", o.prompt, "Text to continue");
        sub.option("--prompt-file", o.prompt_file, "File with the text to continue; - reads stdin");
        sub.option("--prompt-ids", o.ids, "Text to continue as token ids: 1,2,3");
        sub.option(
            "--prompts", o.prompts,
            "File with many texts to continue, as JSON lines: {\"prompt\": TEXT} or {\"prompt_ids\": [1, 2]}, and "
            "\"tokens\" if it differs, \"adapter\": NAME, and \"priority\": larger ones begin earlier; - reads stdin");
        sub.option("--out", o.out, "With --prompts: the file for the results, as JSON lines; default: stdout");
        sub.option("--batch", o.batch, "With --prompts: texts that are continued at a time; default: 16").range(1, 256);
        sub.option("--tokens", o.tokens,
                   "Tokens to add; default: those of the model's generation_config.json, or 100, as far as they fit "
                   "into the context")
            .positive();
        sub.flag("--chat", o.chat,
                 "The prompt is a message: the chat template of the model makes the text to continue");
        sub.option("--schema", o.schema, "File with a JSON schema that the text must satisfy; docs/grammars.md")
            .kind("FILE");
        sub.option("--regex", o.regex, "Regular expression that the whole text must match").kind("PATTERN");
        sub.option("--grammar", o.grammar, "File with a grammar in GBNF that the text must follow").kind("FILE");
        add_sampling_options(sub, o.sampling);
        sub.option("--n", o.n, "Texts of each prompt, whose seeds follow --seed").range(1, 256).shows_default();
        sub.option("--logprobs", o.sampling.options.logprobs,
                   "With --json or --out: log-probabilities of new tokens, and of the N most likely ones; 0: of the "
                   "token alone")
            .range(0, 1000)
            .kind("N");
        sub.option("--prompt-logprobs", o.prompt_logprobs, "The same for the tokens of the prompt but the first")
            .range(0, 1000)
            .kind("N");
        add_spec_option(sub, o.spec);
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_dtype_option(sub, o.dtype);
        add_load_options(sub, o.load);
        add_threads_option(sub, o.threads);
        add_tune_option(sub, o.tune);
        add_ways_option(sub, o.tune);
        add_kv_option(sub, o.kv);
        add_kv_window_options(sub, o.kv_window);
        sub.flag("--invariant", o.invariant,
                 "Logits have the same bits however the tokens before them are cut into programs, but cost more time");
        sub.flag("--json", o.json, "One JSON object on stdout at the end");
        sub.flag("--print-config", o.print_config, "Print the rules of sampling with the origin of each, and stop");
      },
      generate);
}

}  // namespace hpcdl::cli
