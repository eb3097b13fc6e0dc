#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/io/nearest.h"

namespace {

using namespace hpcdl;

/// Errors say "[area] message" in one line; where they do not, they get an area.
int report(std::string_view what, int code) {
  std::string line(what);
  for (char& c : line)
    if (c == '\n') c = ' ';
  cli::say("hpcdl: {}{}", line.starts_with('[') ? "" : "[internal] ", line);
  return code;
}

/// Last word first, as the parser takes them. To it, "--out=" means that the next word is the value.
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
} catch (const comm::PeerLost& e) {
  return report(e.what(), exit_code::kPeerLost);
} catch (const Error& e) {
  return report(e.what(), exit_code::kInternal);
} catch (const std::bad_alloc&) {
  return report("[memory] out of memory: use a smaller model, batch or context", exit_code::kInternal);
} catch (const std::exception& e) {
  return report(e.what(), exit_code::kInternal);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is met as a failed write
  CLI::App app("Trains, compresses and runs deep networks at the limit of the hardware.", "hpcdl");
  app.set_version_flag("--version", "hpcdl " HPCDL_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    return fmt::format("hpcdl: [usage] {}; see hpcdl {}--help\n", e.what(),
                       a->get_subcommands().empty() ? "" : a->get_subcommands()[0]->get_name() + " ");
  });
  cli::Run run;
  for (const auto add :
       {cli::add_demo, cli::add_train, cli::add_eval, cli::add_generate, cli::add_tokenize, cli::add_quantize,
        cli::add_inspect, cli::add_convert, cli::add_logits, cli::add_doctor, cli::add_probe, cli::add_bench,
        cli::add_profile, cli::add_verify, cli::add_roofline, cli::add_tune, cli::add_launch, cli::add_slurm})
    add(cli::Command(&app), run);
  std::vector<std::string> verbs;
  for (const auto* sub : app.get_subcommands({})) verbs.push_back(sub->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end())
    return report(fmt::format("[usage] no verb \"{}\"{}; see hpcdl --help", argv[1], io::did_you_mean(argv[1], verbs)),
                  exit_code::kUsage);
  try {
    app.parse(words_of(argc, argv));
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e, std::cout, std::cerr);  // help and version are no errors
    return code == 0 ? exit_code::kDone : exit_code::kUsage;
  }
  return run_guarded(run);
}
