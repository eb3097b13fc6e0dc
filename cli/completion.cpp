// hpcdl completion: shell completions and man pages, from the same options as --help. The install step writes them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/verb.h"
#include "cli/wrap.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::cli {

namespace {

struct CompletionOptions {
  std::string kind, verb, out;
};

struct Listed {
  std::string name;    // "--out"
  std::string letter;  // "o", or ""
  std::string help;
  std::vector<std::string> values;  // that it takes, where they are known
  bool flag = false;
};

struct ListedVerb {
  std::string path;  // "bench comm"; "" for the program itself
  const CLI::App* app = nullptr;
  std::vector<Listed> options;
  std::vector<const CLI::App*> verbs;
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool here = text.substr(at).starts_with(from);
    out.append(here ? to : text.substr(at, 1));
    at += here ? from.size() : 1;
  }
  return out;
}

/// "off", "cached" and "full" of "off|cached|full".
std::vector<std::string> values_in(const std::string& kind) {
  std::vector<std::string> list;
  if (kind.find('|') == std::string::npos) return list;
  for (std::size_t at = 0; at < kind.size();) {
    const auto end = std::min(kind.find('|', at), kind.size());
    list.push_back(kind.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

std::vector<Listed> listed(const CLI::App& app) {
  std::vector<Listed> list;
  for (const auto* o : app.get_options()) {
    if (o->get_lnames().empty() || o->get_group().empty()) continue;
    list.push_back({.name = "--" + o->get_lnames().front(),
                    .letter = o->get_snames().empty() ? "" : o->get_snames().front(),
                    .help = replaced(o->get_description(), "\n", " "),
                    .values = values_in(o->get_type_name()),
                    .flag = o->get_items_expected_max() == 0});
  }
  return list;
}

void list_verbs(const CLI::App& app, const std::string& path, std::vector<ListedVerb>& to) {
  ListedVerb verb{path, &app, listed(app), {}};
  for (const auto* sub : app.get_subcommands({})) verb.verbs.push_back(sub);
  to.push_back(verb);
  for (const auto* sub : verb.verbs)
    list_verbs(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), to);
}

std::vector<ListedVerb> all_verbs(const CLI::App& program) {
  std::vector<ListedVerb> list;
  list_verbs(program, "", list);
  return list;
}

struct Key {
  std::string name, help;  // "train.steps"
};

/// The keys of a run, which some verbs take as options.
std::vector<Key> keys_of_run() {
  train::RunConfig config;
  const auto table = train::table_of(config);
  std::vector<Key> keys;
  for (const auto& field : table.fields()) keys.push_back({field.key, field.help});
  return keys;
}

bool takes_keys(const ListedVerb& verb) { return verb.app->get_allow_extras(); }

/// The lines of a case statement by which bash and zsh find the verb that is typed, and the values of its options.
std::string verb_cases(const std::vector<ListedVerb>& verbs) {
  std::string out;
  for (const auto& v : verbs)
    if (!v.path.empty())
      out += fmt::format("      \"{}\") chosen=\"{}\" ;;\n",
                         v.path.find(' ') == std::string::npos ? " " + v.path : v.path, v.path);
  return out;
}

std::string bash(const std::vector<ListedVerb>& verbs) {
  std::string values, words, keys;
  for (const auto& key : keys_of_run()) keys += "--" + key.name + "= ";
  for (const auto& v : verbs) {
    std::string list, names;
    for (const auto* sub : v.verbs) names += sub->get_name() + " ";
    for (const auto& o : v.options) {
      list += o.name + " ";
      if (!o.values.empty())
        values += fmt::format("    \"{} {}\") COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;\n", v.path,
                              o.name, fmt::join(o.values, " "));
    }
    words +=
        fmt::format("    \"{}\") verbs=\"{}\" words=\" {}{}\" ;;\n", v.path, names, list, takes_keys(v) ? keys : "");
  }
  return "# bash completion of hpcdl; made by `hpcdl completion bash`.\n_hpcdl() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" chosen=\"\" verbs=\"\" "
         "words=\"\" word\n"
         "  COMPREPLY=()\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$chosen $word\" in\n" +
         verb_cases(verbs) + "    esac\n  done\n  case \"$chosen $previous\" in\n" + values +
         "  esac\n  case \"$chosen\" in\n" + words +
         "  esac\n"
         "  if [[ $cur == -* ]]; then verbs=$words; fi\n"
         "  COMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\"))\n"
         "  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi\n"
         "}\ncomplete -o default -F _hpcdl hpcdl\n";
}

/// In single quotes of a shell.
std::string in_quotes(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

std::string zsh(const std::vector<ListedVerb>& verbs) {
  std::string values, words, keys;
  const auto entry = [](const std::string& name, const std::string& help) {
    return " " + in_quotes(replaced(name, ":", "\\:") + ":" + help);
  };
  for (const auto& key : keys_of_run()) keys += entry("--" + key.name + "=", key.help);
  for (const auto& v : verbs) {
    std::string list, names;
    for (const auto* sub : v.verbs) names += entry(sub->get_name(), sub->get_description());
    for (const auto& o : v.options) {
      list += entry(o.name, o.help);
      if (!o.values.empty())
        values += fmt::format("    \"{} {}\") compadd -- {}; return ;;\n", v.path, o.name, fmt::join(o.values, " "));
    }
    words += fmt::format("    \"{}\") verbs=({}) options=({}) takes_keys={} ;;\n", v.path, names, list, takes_keys(v));
  }
  return "#compdef hpcdl\n# zsh completion of hpcdl; made by `hpcdl completion zsh`.\n_hpcdl() {\n"
         "  local chosen=\"\" takes_keys=false word\n  local -a verbs options keys\n"
         "  for word in ${words[2,CURRENT-1]}; do\n    case \"$chosen $word\" in\n" +
         verb_cases(verbs) + "    esac\n  done\n  case \"$chosen ${words[CURRENT-1]}\" in\n" + values +
         "  esac\n  case \"$chosen\" in\n" + words +
         "  esac\n"
         "  if [[ $PREFIX != -* ]]; then\n"
         "    if (( $#verbs )); then _describe verb verbs; else _files; fi\n    return\n  fi\n"
         "  _describe option options\n"
         "  if $takes_keys; then\n    keys=(" +
         keys +
         ")\n    _describe 'key of a run' keys -S ''\n  fi\n"
         "}\n_hpcdl \"$@\"\n";
}

std::string fish(const std::vector<ListedVerb>& verbs) {
  std::string out = "# fish completion of hpcdl; made by `hpcdl completion fish`.\n", with_keys;
  for (const auto& v : verbs) {
    std::string when;
    for (const auto& word : {v.path.substr(0, v.path.find(' ')),
                             v.path.find(' ') == std::string::npos ? "" : v.path.substr(v.path.find(' ') + 1)})
      if (!word.empty()) when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    if (when.empty()) when = "__fish_use_subcommand";
    if (takes_keys(v)) with_keys += " " + v.path;
    for (const auto* sub : v.verbs)
      out += fmt::format("complete -c hpcdl -n '{}' -f -a {} -d {}\n", when, sub->get_name(),
                         in_quotes(sub->get_description()));
    for (const auto& o : v.options)
      out += fmt::format("complete -c hpcdl -n '{}' -l {}{}{} -d {}\n", when, o.name.substr(2),
                         o.letter.empty() ? "" : " -s " + o.letter,
                         o.flag             ? ""
                         : o.values.empty() ? " -r"
                                            : fmt::format(" -x -a '{}'", fmt::join(o.values, " ")),
                         in_quotes(o.help));
  }
  for (const auto& key : keys_of_run())
    out += fmt::format("complete -c hpcdl -n '__fish_seen_subcommand_from{}' -l {} -r -d {}\n", with_keys, key.name,
                       in_quotes(key.help));
  return out;
}

/// Escapes text for troff, so that no line of it is a request.
std::string troff(std::string_view text) {
  auto out = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  out = replaced(replaced(out, "\n.", "\n\\&."), "\n'", "\n\\&'");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

constexpr std::size_t kPageColumns = 72;  // width of notes, which man does not fill: 80 minus its indentation

std::string page_name(const std::string& path) { return path.empty() ? "hpcdl" : "hpcdl-" + replaced(path, " ", "-"); }

std::string man_page(const ListedVerb& verb) {
  const CLI::Formatter form;
  const auto name = page_name(verb.path);
  const auto about = verb.app->get_description();
  std::string out = fmt::format(".TH \"{}\" 1 \"\" \"hpcdl {}\" \"HPC-DL\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n", name,
                                HPCDL_VERSION, troff(name), troff(about));
  out += fmt::format(".B {}\n[options]{}", troff(verb.path.empty() ? "hpcdl" : "hpcdl " + verb.path),
                     verb.verbs.empty() ? "" : " [verb]");
  for (const auto* o : verb.app->get_options())
    if (o->get_positional()) out += troff(fmt::format(" [{}]", form.make_option_name(o, true)));
  out += "\n";
  if (!verb.verbs.empty()) out += ".SH VERBS\n";
  for (const auto* sub : verb.verbs)
    out += fmt::format(".TP\n.B {}\n{}\n", troff(sub->get_name()), troff(sub->get_description()));
  out += ".SH OPTIONS\n";
  for (const auto* o : verb.app->get_options()) {
    if (o->get_group().empty()) continue;
    out +=
        fmt::format(".TP\n.B {}\n{}\n", troff(form.make_option_name(o, o->get_positional()) + form.make_option_opts(o)),
                    troff(form.make_option_desc(o)));
  }
  if (const auto last = verb.app->get_footer(); !last.empty())
    out += fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", troff(wrapped(last, kPageColumns)));
  if (!verb.path.empty()) out += ".SH SEE ALSO\n.BR hpcdl (1)\n";
  return out;
}

using File = std::pair<std::string, std::string>;  // name, text

std::vector<File> files_of(const CompletionOptions& o, const std::vector<ListedVerb>& verbs) {
  if (o.kind == "bash") return {{"hpcdl", bash(verbs)}};
  if (o.kind == "zsh") return {{"_hpcdl", zsh(verbs)}};
  if (o.kind == "fish") return {{"hpcdl.fish", fish(verbs)}};
  std::vector<File> pages;
  for (const auto& v : verbs)
    if (!o.out.empty() || v.path == o.verb) pages.emplace_back(page_name(v.path) + ".1", man_page(v));
  if (pages.empty()) fail_usage("completion", "unknown verb \"{}\"; hpcdl --help lists all verbs", o.verb);
  return pages;
}

}  // namespace

void add_completion(const Command& program, Run& run) {
  add_verb<CompletionOptions>(
      program, run, "completion",
      "Prints completions for bash, zsh or fish, or a man page, from the same table as --help",
      [](const Command& sub, CompletionOptions& o) {
        sub.option("kind", o.kind, "What to print").required().one_of({"bash", "zsh", "fish", "man"});
        sub.option("verb", o.verb, "With man: the verb whose page it is; default: hpcdl itself");
        sub.option("--out", o.out,
                   "Write into this folder, with the names that shells and man expect; with man: all pages");
      },
      [](CompletionOptions& o, const Command& sub) {
        if (!o.verb.empty() && o.kind != "man") fail_usage("completion", "a verb can be given only with man");
        const auto files = files_of(o, all_verbs(*sub.program()));
        for (const auto& [name, text] : files)
          if (o.out.empty()) print_text(text);
          else io::make_folder(o.out), io::write_file_atomic(std::filesystem::path(o.out) / name, text);
        return exit_code::kDone;
      });
}

}  // namespace hpcdl::cli
