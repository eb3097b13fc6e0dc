// hpcdl completion: shells and man pages get the same text as --help.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

using Words = std::vector<std::string>;

std::string printed(const Words& words) {
  const auto r = run(words);
  EXPECT_EQ(r.code, 0) << r.err;
  return r.out;
}

/// First words of lines "  --option ..." or, in the list of verbs, "  verb ...".
Words listed(const Words& words, const std::string& pattern) {
  const std::string text = printed(words);
  std::istringstream help(text);
  const std::regex line_of(pattern);
  Words names;
  std::smatch match;
  for (std::string line; std::getline(help, line) && !line.starts_with("Every key");)  // keys of a run come after it
    if (std::regex_search(line, match, line_of)) names.push_back(match[1]);
  return names;
}

TEST(completion, holds_every_verb_and_option_of_help) {
  const auto bash = printed({"completion", "bash"}), zsh = printed({"completion", "zsh"}),
             fish = printed({"completion", "fish"}), page = printed({"completion", "man"});
  const auto verbs = listed({"--help"}, "^  ([a-z]+)  ");
  ASSERT_GE(verbs.size(), 19u);
  for (const auto& verb : verbs) {
    EXPECT_NE(page.find(".B " + verb + "\n"), std::string::npos) << verb;
    const auto of_verb = printed({"completion", "man", verb});
    const auto options = listed({verb, "--help"}, "^  (?:-[a-z],)?--([a-z0-9-]+)");
    const bool has_verbs_of_its_own = !listed({verb, "--help"}, "^  ([a-z]+)  ").empty();
    EXPECT_GE(options.size(), has_verbs_of_its_own ? 1u : 2u) << verb;
    for (const auto& option : options) {
      EXPECT_NE(bash.find(" --" + option + " "), std::string::npos) << verb << " " << option;
      EXPECT_NE(zsh.find("'--" + option + ":"), std::string::npos) << verb << " " << option;
      EXPECT_NE(fish.find("__fish_seen_subcommand_from " + verb + "' -l " + option), std::string::npos)
          << verb << " " << option;
      EXPECT_NE(of_verb.find(std::regex_replace("--" + option, std::regex("-"), "\\-")), std::string::npos)
          << verb << " " << option;
    }
  }
  EXPECT_NE(bash.find("--train.steps="), std::string::npos) << "the keys of a run";
  EXPECT_NE(zsh.find("'--train.steps=:"), std::string::npos) << "the keys of a run";
  EXPECT_NE(fish.find(" -l train.steps -r -d "), std::string::npos) << "the keys of a run";
  const auto r = run({"completion", "man", "trian"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("unknown verb \"trian\""), std::string::npos) << r.err;
}

TEST(completion, man_pages_name_their_words_and_fit_a_terminal) {
  const auto page = printed({"completion", "man", "launch"});
  EXPECT_NE(page.find("[options] [words"), std::string::npos) << page;
  std::istringstream notes(page.substr(page.find(".SH NOTES")));
  for (std::string line; std::getline(notes, line);) EXPECT_LE(line.size(), 80u) << line;
}

/// The completions that bash offers for the last of these words.
std::string offered(const std::string& script, const Words& words) {
  const io::TempFolder tmp;
  io::write_file_atomic(tmp / "hpcdl.bash", script);
  std::string line = ". '" + (tmp / "hpcdl.bash").string() + "'; COMP_WORDS=(";
  for (const auto& w : words) line += "'" + w + "' ";
  line += "); COMP_CWORD=" + std::to_string(words.size() - 1) + "; _hpcdl 2>&1; echo \"${COMPREPLY[*]}\"";
  io::write_file_atomic(tmp / "run.bash", line);
  EXPECT_EQ(std::system(("bash '" + (tmp / "run.bash").string() + "' >'" + (tmp / "out").string() + "'").c_str()), 0);
  return io::read_file(tmp / "out");
}

TEST(completion, bash_offers_what_fits) {
  if (std::system("bash --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no bash";
  const auto script = printed({"completion", "bash"});
  EXPECT_EQ(offered(script, {"hpcdl", "tra"}), "train\n");
  EXPECT_EQ(offered(script, {"hpcdl", "generate", "--mo"}), "--model\n");
  EXPECT_EQ(offered(script, {"hpcdl", "generate", "--tune", "c"}), "cached\n");
  EXPECT_EQ(offered(script, {"hpcdl", "bench", "comm", "--hel"}), "--help\n");
  EXPECT_EQ(offered(script, {"hpcdl", "bench", "c"}), "comm compose\n");
  EXPECT_EQ(offered(script, {"hpcdl", "train", "--train.nest"}), "--train.nesterov=\n");
  EXPECT_EQ(offered(script, {"hpcdl", "generate", "--prompt", "train"}), "\n") << "files are left to the shell";
}

TEST(completion, is_written_under_the_usual_names) {
  const io::TempFolder tmp;
  for (const char* kind : {"bash", "zsh", "fish", "man"}) printed({"completion", kind, "--out", (tmp / kind).string()});
  for (const char* file : {"bash/hpcdl", "zsh/_hpcdl", "fish/hpcdl.fish", "man/hpcdl.1", "man/hpcdl-bench-comm.1"})
    EXPECT_TRUE(std::filesystem::exists(tmp / file)) << file;
}

}  // namespace
}  // namespace hpcdl::cli_test
