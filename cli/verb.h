#pragma once
// What every verb is made of: a function that adds a sub-command to the parser and leaves behind what to run. `--json`
// prints one object on stdout; everything meant for people goes to stderr.

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/train/progress.h"

namespace hpcdl::cli {

using Json = nlohmann::ordered_json;

/// Set by the verb that was named; returns the exit code.
using Run = std::function<int()>;

void add_bench(CLI::App& app, Run& run);
void add_convert(CLI::App& app, Run& run);
void add_demo(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_launch(CLI::App& app, Run& run);
void add_logits(CLI::App& app, Run& run);
void add_probe(CLI::App& app, Run& run);
void add_profile(CLI::App& app, Run& run);
void add_quantize(CLI::App& app, Run& run);
void add_roofline(CLI::App& app, Run& run);
void add_slurm(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_train(CLI::App& app, Run& run);
void add_tune(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);

/// Creates a sub-command whose options live as long as the parser: `Options` is shared by parser and action.
template <class Options, class Setup, class Action>
void add_verb(CLI::App& app, Run& run, const std::string& name, const std::string& help, Setup&& setup, Action action) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(name, help);
  setup(*sub, *options);
  sub->callback([options, action, sub, &run] {
    run = [options, action, sub] {
      if constexpr (std::is_invocable_v<Action, Options&, CLI::App&>) return action(*options, *sub);
      else return action(*options);
    };
  });
}

/// One object on stdout, with a newline. Throws Error when stdout is closed or full. Bytes that are no UTF-8 are replaced.
void print_json(const Json& object);
/// The same for text that is the result itself.
void print_text(std::string_view text);

/// A line for people, on stderr.
void say_raw(std::string_view line);
template <class... A> void say(fmt::format_string<A...> f, A&&... args) { say_raw(fmt::format(f, std::forward<A>(args)...)); }

/// stderr, with a status line where it is a terminal.
train::Console console();

/// Whole lines behind the status line; nothing for an empty text.
void say_lines(const train::Console& to, std::string_view text);

/// "--key value" and "--key=value", as they were left over by the parser, for a ConfigTable.
std::vector<std::string> overrides(const std::vector<std::string>& words);
/// All of stdin.
std::string read_stdin();
/// "1,2,3"; throws UsageError.
std::vector<std::int32_t> parse_ids(const std::string& text);
/// Token ids of files and folders, documents apart from each other by the end-of-text token; the first `limit`, 0: all.
std::vector<std::int32_t> encode_text(const io::Tokenizer& tokenizer, const std::vector<std::string>& paths, Pool& pool, std::int64_t limit);

/// True when stderr is a terminal and NO_COLOR is unset.
bool colour();
std::string bold(std::string_view text);
std::string dim(std::string_view text);

}  // namespace hpcdl::cli
