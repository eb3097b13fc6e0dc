// hpcdl serve: answers HTTP requests with one model.

#include <csignal>
#include <deque>
#include <nlohmann/json.hpp>

#include "cli/dtype_option.h"
#include "cli/load_option.h"
#include "cli/model_ranks.h"
#include "cli/run_config.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/infer/generation_config.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/serve/server.h"

namespace hpcdl::cli {

namespace {

/// The keys of the config are options, too: "--port" is serve.port.
struct Keys {
  std::deque<std::pair<std::string, std::string>> texts;               // key, value; "": not given
  std::deque<std::pair<std::string, std::vector<std::string>>> lists;  // one value each time that the option is given
  std::deque<std::pair<std::string, bool>> flags;
};

struct ServeOptions {
  std::vector<std::string> configs;
  Keys keys;
  bool print_config = false;
  TuneOption tune;
};

void add_keys(const Command& sub, Keys& keys) {
  serve::ServerConfig defaults;
  const io::ConfigTable table(defaults);
  for (const auto& field : table.fields()) {
    auto name = "--" + field.key.substr(field.key.find('.') + 1);
    std::replace(name.begin(), name.end(), '_', '-');
    const bool shown = !field.default_toml.empty() && field.default_toml != "\"\"";
    if (field.accepts.kind == io::ConfigType::Kind::boolean) {
      sub.flag(name, keys.flags.emplace_back(field.key, false).second, field.help);
    } else if (field.accepts.kind == io::ConfigType::Kind::texts) {
      sub.option(name, keys.lists.emplace_back(field.key, std::vector<std::string>()).second, field.help)
          .one_each()
          .kind("[NAME=]DIR");
    } else {
      auto kind = field.default_toml;
      std::erase(kind, '"');
      sub.option(name, keys.texts.emplace_back(field.key, "").second, field.help)
          .kind(shown ? fmt::format("({})", kind) : "TEXT");
    }
  }
}

/// Rules of sampling that are not set are those of the model's folder.
void take_defaults_of_model(io::ConfigTable& table, const std::string& model) {
  const auto defaults = infer::read_generation_config(io::find_model_folder(model));
  const auto take = [&](std::string_view key, const auto& value) {
    const auto* const field = table.find(fmt::format("sampling.{}", key));
    if (value && field->origin == "default")
      table.set(field->key, io::ConfigText{fmt::format("{}", *value)}, defaults.file);
  };
  infer::each_rule(take, defaults);
  take("max_tokens", defaults.max_tokens);
  if (const auto warning = defaults.warning(); !warning.empty()) say("warning: {}", warning);
}

/// On rank 0, until the server ends.
int answer_requests(const ServeOptions& o, const serve::ServerConfig& config, infer::RankLink* ranks) {
  serve::Server server(
      config, {.prepare =
                   [&](infer::Engine& engine, serve::ServedModel& model) {
                     say_converted(model.model());
                     say_loading(model.model(), config.engine.loading());
                     auto tuning = start_tuning(o.tune, model.model().device(), model.pool());
                     const bool measures = tuning && o.tune.mode == "full";
                     engine.set_ways(
                         tuned_ways(tuning, o.tune, measures ? engine.programs(1) : std::vector<const Instance*>()));
                   },
               .ready =
                   [](const serve::Server& s) {
                     const Json line{{"listening", s.address()},
                                     {"model", s.facts().name},
                                     {"context", s.facts().context},
                                     {"pages", s.pages()}};
                     print_text(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
                     std::fflush(stdout);
                   },
               .ranks = ranks});
  server.drain_on_signals();
  say("{}", dim(fmt::format("loading {}; http://{} answers 503 until then", config.engine.model, server.address())));
  server.run();
  if (ranks) ranks->end();
  return exit_code::kDone;
}

int serve_on(const ServeOptions& o, serve::ServerConfig config, const comm::Joined& joined) {
  auto& e = config.engine;
  ModelRanks ranks(
      joined, "serve",
      facts_of_model(io::find_model_folder(e.model), e.device, std::string(io::enum_name(e.dtype)), e.kv, o.tune));
  e.threads = ranks.threads(e.threads), e.device = device_of_rank(e.device, joined.place());
  return ranks.leads() ? answer_requests(o, config, ranks.link()) : follow(ranks, e, o.tune);
}

/// Rank 0 drains when it is asked to stop, and tells the others when they end.
void leave_signals_to_rank_0() {
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_IGN);
}

int serve_verb(ServeOptions& o, const Command& sub) {
  serve::ServerConfig config;
  io::ConfigTable table(config);
  auto words = overrides(sub.rest());
  for (const auto& [key, value] : o.keys.texts)
    if (!value.empty()) words.push_back(fmt::format("--{}={}", key, value));
  for (const auto& [key, values] : o.keys.lists)
    if (!values.empty()) words.push_back(fmt::format("--{}={}", key, Json(values).dump()));
  for (const auto& [key, given] : o.keys.flags)
    if (given) words.push_back("--" + key);
  load(table, {o.configs.begin(), o.configs.end()}, words, sub);
  if (!config.engine.model.empty()) take_defaults_of_model(table, config.engine.model);
  if (o.print_config) return print_text(table.print_origins()), exit_code::kDone;
  if (config.engine.model.empty()) fail_usage("serve", "no model is given: add --model FOLDER");
  ThreadsOption{config.engine.threads}.checked("serve");
  auto joined = join_ranks({});
  if (joined.place().rank > 0) leave_signals_to_rank_0();
  return on_ranks(joined, [&] { return serve_on(o, config, joined); });
}

}  // namespace

void add_serve(const Command& program, Run& run) {
  add_verb<ServeOptions>(
      program, run, "serve", "Answers OpenAI-style HTTP requests with a model, many at a time",
      [](const Command& sub, ServeOptions& o) {
        sub.option("-c,--config", o.configs,
                   "TOML file with the sections [serve], [engine] and [sampling]; later files win")
            .one_each();
        add_keys(sub, o.keys);
        add_tune_option(sub, o.tune);
        add_ways_option(sub, o.tune);
        sub.flag("--print-config", o.print_config, "Print every key with its value and its origin, and stop");
        sub.footer(
            "Every option is a key of the TOML file, too (--port is serve.port, --batch engine.batch, --top-k "
            "sampling.top_k), and a variable: HPCDL_SERVE_PORT, HPCDL_ENGINE_BATCH. Rules of sampling that "
            "are not given come from the model's generation_config.json. The first line on stdout is a JSON "
            "object with the address, when the model is loaded. SIGTERM and Ctrl-C let running requests end. Under "
            "hpcdl launch, mpirun or srun the ranks share the model, and rank 0 answers.");
        sub.takes_rest();
      },
      serve_verb);
}

}  // namespace hpcdl::cli
