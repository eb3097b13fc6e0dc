#pragma once
// Each verb is a function that adds a sub-command to the parser and sets what to run. `--json`
// prints one object on stdout; everything meant for people goes to stderr.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cli/command.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/progress.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/pool.h"
#include "hpcdl/train/progress.h"

namespace hpcdl::cli {

using Json = nlohmann::ordered_json;

/// Set by the verb that was named; returns the exit code.
using Run = std::function<int()>;

void add_adapter(const Command& program, Run& run);
void add_bench(const Command& program, Run& run);
void add_chat(const Command& program, Run& run);
void add_ckpt(const Command& program, Run& run);
void add_completion(const Command& program, Run& run);
void add_compress(const Command& program, Run& run);
void add_convert(const Command& program, Run& run);
void add_demo(const Command& program, Run& run);
void add_doctor(const Command& program, Run& run);
void add_embed(const Command& program, Run& run);
void add_eval(const Command& program, Run& run);
void add_finetune(const Command& program, Run& run);
void add_generate(const Command& program, Run& run);
void add_inspect(const Command& program, Run& run);
void add_launch(const Command& program, Run& run);
void add_logits(const Command& program, Run& run);
void add_pipe(const Command& program, Run& run);
void add_probe(const Command& program, Run& run);
void add_profile(const Command& program, Run& run);
void add_quantize(const Command& program, Run& run);
void add_roofline(const Command& program, Run& run);
void add_serve(const Command& program, Run& run);
void add_slurm(const Command& program, Run& run);
void add_tokenize(const Command& program, Run& run);
void add_train(const Command& program, Run& run);
void add_tune(const Command& program, Run& run);
void add_verify(const Command& program, Run& run);

/// Creates a sub-command whose options live as long as the parser: `Options` is shared by parser and action.
template <class Options, class Setup, class Action>
void add_verb(const Command& program, Run& run, const std::string& name, const std::string& help, Setup&& setup,
              Action action) {
  auto options = std::make_shared<Options>();
  const Command verb = program.subcommand(name, help);
  setup(verb, *options);
  if constexpr (std::is_invocable_v<Action, Options&, const Command&>)
    verb.when_chosen(
        [options, action, verb, &run] { run = [options, action, verb] { return action(*options, verb); }; });
  else verb.when_chosen([options, action, &run] { run = [options, action] { return action(*options); }; });
}

/// Thrown when standard output is a pipe whose reader has gone, as in `hpcdl bench | head -1`.
struct ReaderGone : Error {
  using Error::Error;
};
/// Ends the process by this signal, like a program that does not handle it; its resources have been released by now.
void end_by(int signal);

/// Throws Error if this file cannot be written: to be called before the work whose result it will hold. Empty: no file.
void check_writable(const std::string& path);

/// One object on stdout, with a newline. Throws Error when stdout is closed or full, ReaderGone if its reader is gone.
/// Bytes that are not UTF-8 are replaced.
void print_json(const Json& object);
/// The same for text that is the result itself.
void print_text(std::string_view text);

/// A line for people, on stderr.
void say_raw(std::string_view line);
template <class... A> void say(fmt::format_string<A...> f, A&&... args) {
  say_raw(fmt::format(f, std::forward<A>(args)...));
}

/// Progress on stderr, with a bar if that is a terminal.
Console console();
/// From now on every line for people starts with the time; HPCDL_TIMESTAMPS has the same effect.
void stamp_lines();
/// For signal handlers: moves the cursor to a new line.
void leave_bar();

/// Prints whole lines; prints nothing for an empty text.
void say_lines(const Console& to, std::string_view text);

/// "--key value" and "--key=value", as they were left over by the parser, for a ConfigTable.
std::vector<std::string> overrides(const std::vector<std::string>& words);
/// Quotes one word for a shell.
std::string quoted(const std::string& word);
/// All of stdin.
std::string read_stdin();
/// "1,2,3"; throws UsageError.
std::vector<std::int32_t> parse_ids(const std::string& text);
/// Token ids of files and folders, with the end-of-text token between documents; the first `limit`, 0: all.
std::vector<std::int32_t> encode_text(const io::Tokenizer& tokenizer, const std::vector<std::string>& paths, Pool& pool,
                                      std::int64_t limit);

/// True when stderr is a terminal and NO_COLOR is unset or empty.
bool colour();
std::string bold(std::string_view text);
std::string dim(std::string_view text);

}  // namespace hpcdl::cli
