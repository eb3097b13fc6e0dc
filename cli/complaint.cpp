#include "cli/complaint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "hpcdl/error.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::cli {
namespace {

/// The verb as it was called, "bench comm", and its command. Null: no verb was called.
struct Chosen {
  std::string name;
  const CLI::App* verb = nullptr;

  explicit Chosen(const CLI::App* program) {
    for (auto subs = program->get_subcommands(); !subs.empty(); subs = verb->get_subcommands()) {
      verb = subs[0];
      name += (name.empty() ? "" : " ") + verb->get_name();
    }
  }
};

/// "--modle" of "--modle=x".
std::string name_of(const std::string& word) { return word.substr(0, word.find('=')); }

/// The first option among the words that the verb does not know; "": there is none. Keys of a run contain a dot.
std::string unknown_option(const std::vector<std::string>& words) {
  const auto option = std::find_if(words.begin(), words.end(), [](const auto& w) {
    return w.size() > 1 && w.starts_with('-') && name_of(w).find('.') == std::string::npos;
  });
  return option == words.end() ? "" : name_of(*option);
}

std::string about_option(const Chosen& chosen, const std::string& name) {
  std::vector<std::string> known;
  for (const auto* o : chosen.verb->get_options())
    for (const auto& long_name : o->get_lnames()) known.push_back("--" + long_name);
  return fmt::format("{}: {}{}", chosen.name, chosen.name == "launch" ? "write what each rank runs after --; " : "",
                     unknown_option_text(name, known));
}

/// The option or word that an error of the parser is about: "--tokens: ...", "--model is required" and "Could not
/// convert: --json = x".
std::string subject(const CLI::Error& error) {
  const std::string text = error.what();
  const auto dashes = text.find("--");
  const auto begin = dashes == std::string::npos ? 0 : dashes;
  return text.substr(begin, text.find_first_of(": ", begin) - begin);
}

/// What is wrong with a verb that needs another one after it.
std::string about_next_verb(const Chosen& chosen, const std::vector<std::string>& left) {
  std::vector<std::string> verbs;
  for (const auto* sub : chosen.verb->get_subcommands({})) verbs.push_back(sub->get_name());
  const auto found = left.empty() ? "nothing" : fmt::format("\"{}\"{}", left[0], io::did_you_mean(left[0], verbs));
  return fmt::format("{}: expected {}, found {}", chosen.name, fmt::join(verbs, ", "), found);
}

std::string about(const Chosen& chosen, const CLI::Error& error, const std::vector<std::string>& left) {
  const auto name = subject(error);
  if (dynamic_cast<const CLI::ValidationError*>(&error)) return error.what();  // from the checks in cli/command.cpp
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const auto* option = chosen.verb->get_option_no_throw(name);
    if (option && option->count() > static_cast<std::size_t>(std::max(1, option->get_items_expected_max())))
      return fmt::format("{} is given more than once", name);
    if (option && option->get_items_expected_max() == 0) return fmt::format("{} takes no value", name);
    return fmt::format("expected a value after {}, found none", name);
  }
  // Every option that takes a value checks it first (cli/command.cpp), so this is a flag that was given a value.
  if (dynamic_cast<const CLI::ConversionError*>(&error)) return fmt::format("{} takes no value", name);
  if (chosen.verb->get_require_subcommand_min() > chosen.verb->get_subcommands().size())
    return about_next_verb(chosen, left);
  if (const auto typo = unknown_option(left); !typo.empty()) return about_option(chosen, typo);
  if (dynamic_cast<const CLI::RequiredError*>(&error))
    return name.starts_with('-') ? fmt::format("{} needs {}", chosen.name, name)
                                 : fmt::format("{} needs one more argument, {}", chosen.name, name);
  if (!left.empty()) return fmt::format("{} takes no argument \"{}\" here", chosen.name, left.front());
  return fmt::format("{}: these arguments cannot be combined", chosen.name);
}

}  // namespace

std::string with_help(std::string_view what, std::string_view verb) {
  return fmt::format("{}{} hpcdl {}{}--help", what, what.ends_with('?') ? " See" : "; see", verb,
                     verb.empty() ? "" : " ");
}

std::string unknown_option_text(const std::string& name, const std::vector<std::string>& known) {
  const auto meant = io::nearest(name, known);
  return fmt::format("unknown option {}{}", name, meant ? fmt::format("; did you mean {}?", *meant) : "");
}

std::string complaint(const CLI::App& program, const CLI::Error& error) {
  const Chosen chosen(&program);
  const auto what = chosen.verb ? about(chosen, error, program.remaining(true)) : std::string("expected a verb");
  return fmt::format("hpcdl: [usage] {}\n", with_help(what, chosen.name));
}

}  // namespace hpcdl::cli
