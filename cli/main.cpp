#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cli/complaint.h"
#include "cli/self.h"
#include "cli/verb.h"
#include "cli/version.h"
#include "cli/wrap.h"
#include "hpcdl/comm/bootstrap/place.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/simd/wanted_isa.h"
#include "hpcdl/train/stop.h"

namespace {

using namespace hpcdl;

/// Errors are one line of the form "[area] message"; an error without an area is given one.
int report(std::string_view what, int code) {
  std::string line(what);
  for (char& c : line)
    if (c == '\n') c = ' ';
  cli::say("hpcdl: {}{}", line.starts_with('[') ? "" : "[internal] ", line);
  return code;
}

/// A file that is opened while descriptor 0, 1 or 2 is closed would take its number, and messages would go into a
/// checkpoint. Here reading and writing fail as before.
void fill_closed_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int the_same = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// In reverse order, as the parser expects them. The parser takes the word after "--out=" as its value.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  bool ours = true;
  for (std::string word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    ours = ours && word != "--";
    const bool empty = ours && word.starts_with("--") && word.find('=') == word.size() - 1;
    if (empty) word.pop_back();
    words.push_back(std::move(word));
    if (empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

int run_guarded(const cli::Run& run) try { return run(); } catch (const UsageError& e) {
  return report(e.what(), exit_code::kUsage);
} catch (const cli::ReaderGone&) {
  cli::end_by(SIGPIPE);
  return exit_code::kInternal;
} catch (const comm::PeerLost& e) {
  return report(e.what(), exit_code::kPeerLost);
} catch (const comm::Stopped& e) {
  return report(e.what(), exit_code::kRequeue);
} catch (const Error& e) {
  return report(e.what(), exit_code::kInternal);
} catch (const std::filesystem::filesystem_error& e) {
  return report(fmt::format("[io] {}: {}", e.path1().string(), e.code().message()), exit_code::kInternal);
} catch (const std::bad_alloc&) {
  return report("[memory] out of memory: use a smaller model, batch or context", exit_code::kInternal);
} catch (const std::exception& e) {
  return report(e.what(), exit_code::kInternal);
}

/// What is wrong with the first word, which must be a verb or ask for help; empty: nothing. To the parser an option
/// that it does not know is a missing verb.
std::string wrong_start(const std::vector<std::string>& verbs, const std::string& word) {
  constexpr std::array kOptions{"-h", "--help", "-v", "--version"};
  if (word.starts_with('-'))
    return std::find(kOptions.begin(), kOptions.end(), word) != kOptions.end()
               ? ""
               : fmt::format("expected a verb, found the option \"{}\"", word);
  if (std::find(verbs.begin(), verbs.end(), word) != verbs.end()) return "";
  return fmt::format("unknown verb \"{}\"{}", word, io::did_you_mean(word, verbs));
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write
  std::signal(SIGXFSZ, SIG_IGN);  // and so does a file at the limit of ulimit -f
  fill_closed_descriptors();
  cli::end_cleanly_on_signals();
  if (const auto wrong = simd::use_wanted_isa(std::getenv("HPCDL_ISA")); !wrong.empty()) cli::say("{}", wrong);
  CLI::App app("Trains, compresses and runs deep networks at the limit of the hardware.", "hpcdl");
  app.set_version_flag("-v,--version", cli::version());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* a, const CLI::Error& e) { return cli::complaint(*a, e); });
  cli::Run run;
  for (const auto add :
       {cli::add_demo,    cli::add_train,   cli::add_finetune,  cli::add_adapter,  cli::add_eval,     cli::add_generate,
        cli::add_chat,    cli::add_serve,   cli::add_embed,     cli::add_tokenize, cli::add_quantize, cli::add_compress,
        cli::add_inspect, cli::add_convert, cli::add_ckpt,      cli::add_logits,   cli::add_doctor,   cli::add_probe,
        cli::add_bench,   cli::add_profile, cli::add_verify,    cli::add_roofline, cli::add_tune,     cli::add_pipe,
        cli::add_launch,  cli::add_slurm,   cli::add_completion})
    add(cli::Command(&app), run);
  app.footer(
      "hpcdl VERB --help shows the options of a verb. Exit codes: 0 success; 1 hpcdl verify found a faulty kernel, "
      "hpcdl ckpt a flaw or a difference, hpcdl pipe a deadlock; 2 "
      "wrong arguments or config; 70 an error while running; 71 a rank was lost; 75 the run was saved and is to be "
      "started again; 130 Ctrl-C (hpcdl train saves first). A file for results replaces an existing file; a folder "
      "that holds a model is replaced only with --force.");
  std::vector<std::string> verbs;
  for (const auto* sub : app.get_subcommands({})) verbs.push_back(sub->get_name());
  auto words = words_of(argc, argv);
  if (!words.empty() && words.back() == "help") {  // hpcdl help VERB is hpcdl VERB --help
    words.pop_back();
    words.insert(words.begin(), "--help");
  }
  const auto wrong = words.empty() ? "expected a verb" : wrong_start(verbs, words.back());
  if (!wrong.empty()) return report("[usage] " + cli::with_help(wrong, ""), exit_code::kUsage);
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    std::ostringstream out;
    if (app.exit(e, out, std::cerr) != 0) return exit_code::kUsage;
    run = [text = cli::wrapped(out.str(), cli::columns_of(STDOUT_FILENO, 80))] {
      return cli::print_text(text), exit_code::kDone;  // help and version are not errors
    };
  }
  const int code = run_guarded(run);
  // Ends by SIGINT, like a program that does not handle Ctrl-C, so that a script around it stops. Launchers would
  // report a crash.
  if (code == exit_code::kInterrupted && comm::find_place(comm::process_environment()).world == 1) cli::end_by(SIGINT);
  return code;
}
