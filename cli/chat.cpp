// hpcdl chat: a conversation with a model in the terminal.

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/dtype_option.h"
#include "cli/kv_option.h"
#include "cli/load_option.h"
#include "cli/model_ranks.h"
#include "cli/sampling.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/serve/served_model.h"
#include "hpcdl/serve/stop_text.h"

namespace hpcdl::cli {

namespace {

struct ChatOptions {
  std::string model, device = "cpu", system, variables, spec = "none";
  int tokens = 0, context = 0;  // 0: not given
  bool print_config = false;
  SamplingWords sampling;
  KvOption kv;
  infer::KvWindow kv_window;
  ThreadsOption threads;
  DtypeOption dtype;
  TuneOption tune;
  LoadOption load;
};

class Chat {
 public:
  Chat(const ChatOptions& o, serve::ServedModel& model)
      : options_(o), facts_(model.facts()), engine_(model.model(), model.pool(), model.engine_options()) {
    auto tuning = start_tuning(o.tune, model.model().device(), model.pool());
    const bool measures = tuning && o.tune.mode == "full";
    engine_.set_ways(tuned_ways(tuning, o.tune, measures ? engine_.programs(1) : std::vector<const Instance*>()));
    if (!o.system.empty()) add("system", o.system);
    if (!o.variables.empty()) {
      variables_ = io::parse_ordered_json(o.variables, "--variables");
      if (!variables_.is_object()) fail_usage("chat", "--variables: expected a JSON object");
    }
  }

  /// Prints the answer to a message as it comes.
  void answer(const std::string& message) {
    add("user", message);
    const auto prompt = facts_.tokenizer.encode(io::chat_prompt(*facts_.chat, messages_, nullptr, true, variables_));
    const auto room = facts_.longest() - std::ssize(prompt);
    require(room > 0, "chat", "the conversation has {} tokens and does not fit into the context of {}: begin another",
            prompt.size(), facts_.context);
    io::StreamDecoder decoder(facts_.tokenizer);
    serve::StopText stop(options_.sampling.stop);
    std::string text;
    const auto emit = [&](const std::string& part) {
      text += part;
      if (!part.empty()) print_text(part);
    };
    const auto tokens = options_.tokens > 0 ? std::min<std::int64_t>(options_.tokens, room) : room;
    const auto stats =
        engine_.generate(prompt, static_cast<int>(tokens), options_.sampling.options, [&](std::int32_t id) {
          emit(stop.push(decoder.push(id)));
          return !stop.stopped();
        });
    emit(stop.push(decoder.finish())), emit(stop.finish());
    print_text("\n");
    if (isatty(STDERR_FILENO) != 0)
      say("{}", dim(fmt::format("{} tokens, {:.1f} per second, first after {:.1f} ms", stats.new_tokens,
                                stats.tokens_per_second, stats.time_to_first_token_ms)));
    add("assistant", text);
  }

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  const ChatOptions& options_;
  const serve::ModelFacts& facts_;
  infer::Engine engine_;
  Json messages_ = Json::array(), variables_;
};

serve::ServerConfig config_of(const ChatOptions& o) {
  serve::ServerConfig config;
  auto& e = config.engine;
  e.model = o.model, e.device = o.device, e.threads = o.threads.checked("chat");
  e.context = o.context, e.batch = 1;
  e.kv = o.kv.word, e.kv_window = o.kv_window, e.spec = o.spec, e.dtype = o.dtype.choice();
  const auto load = o.load.checked("chat");
  e.load = load.mode, e.ram = load.ram, e.vram = load.vram;
  if (!load.adapter.empty()) e.adapter = {"=" + load.adapter.string()};
  return config;
}

/// Answers the lines of standard input until its end.
int answer_all(const ChatOptions& o, serve::ServedModel& model) {
  require(model.facts().chat.has_value(), "chat", "{}", model.facts().no_chat);
  Chat conversation(o, model);
  const bool asks = isatty(STDIN_FILENO) != 0;
  if (asks) say("{}", dim("one message a line; Ctrl-D ends the conversation"));
  const auto read = [&](std::string& line) {
    if (asks) std::cerr << bold("> ");
    return static_cast<bool>(std::getline(std::cin, line));
  };
  for (std::string line; read(line);)
    if (!line.empty()) conversation.answer(line);
  if (asks) std::cerr << '\n';
  return exit_code::kDone;
}

int chat_on(const ChatOptions& o, serve::ServerConfig config, const comm::Joined& joined) {
  auto& e = config.engine;
  ModelRanks ranks(joined, "chat",
                   facts_of_model(io::find_model_folder(o.model), o.device, o.dtype.word, o.kv.word, o.tune));
  e.threads = ranks.threads(e.threads), e.device = device_of_rank(e.device, joined.place());
  if (!ranks.leads()) return follow(ranks, e, o.tune);
  std::optional<serve::ServedModel> model;
  {
    const Waiting waiting(console(), "loading the model");
    model.emplace(config, ranks.link());
  }
  say_converted(model->model());
  say_loading(model->model(), e.loading());
  return ranks.lead(model->model(), model->pool(), o.tune, [&] { return answer_all(o, *model); });
}

int chat(ChatOptions& o, const Command& verb) {
  o.sampling.checked("chat");
  const auto defaults = infer::read_generation_config(io::find_model_folder(o.model));
  o.sampling.complete(verb, defaults);
  if (o.tokens == 0) o.tokens = defaults.max_tokens.value_or(0);
  const auto config = config_of(o);
  auto joined = join_ranks({});
  if (const auto warning = defaults.warning(); joined.place().rank == 0 && !warning.empty())
    say("warning: {}", warning);
  return on_ranks(joined, [&] {
    if (o.print_config) return print_text(joined.place().rank == 0 ? o.sampling.origins : ""), exit_code::kDone;
    return chat_on(o, config, joined);
  });
}

}  // namespace

void add_chat(const Command& program, Run& run) {
  add_verb<ChatOptions>(
      program, run, "chat", "Talks with a model in the terminal, or answers the lines of standard input",
      [](const Command& sub, ChatOptions& o) {
        o.sampling.options.temperature = 0.7F;
        sub.option("--model", o.model, "Model folder, GGUF file, or a name in the local Hugging Face cache").required();
        sub.option("--system", o.system, "What the model is told before the conversation");
        sub.option("--variables", o.variables, "Further variables of the chat template, as a JSON object").kind("JSON");
        sub.option("--tokens", o.tokens, "Most tokens of an answer; default: as many as fit into the context")
            .positive();
        sub.option("--context", o.context, "Most tokens of the conversation; default: the context of the model")
            .positive();
        add_sampling_options(sub, o.sampling);
        add_kv_option(sub, o.kv);
        add_kv_window_options(sub, o.kv_window);
        add_spec_option(sub, o.spec);
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_dtype_option(sub, o.dtype);
        add_load_options(sub, o.load);
        add_threads_option(sub, o.threads);
        add_tune_option(sub, o.tune);
        add_ways_option(sub, o.tune);
        sub.flag("--print-config", o.print_config, "Print the rules of sampling with the origin of each, and stop");
      },
      chat);
}

}  // namespace hpcdl::cli
