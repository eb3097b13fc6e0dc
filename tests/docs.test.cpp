// The code that the documents quote is the code that is built: every block under `<!-- quote FILE -->` must stand in
// FILE.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(docs, quote_code_that_exists) {
  const fs::path root = HPCDL_SOURCE_DIR;
  int quotes = 0;
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    const std::string text = read(entry.path()), mark = "<!-- quote ";
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; ++quotes) {
      const std::size_t end = text.find(" -->", at), fence = text.find("```", end), begin = text.find('\n', fence) + 1;
      ASSERT_NE(end, std::string::npos);
      const std::string file = text.substr(at + mark.size(), end - at - mark.size());
      const std::string code = text.substr(begin, text.find("```", begin) - begin);
      EXPECT_NE(read(root / file).find(code), std::string::npos)
          << entry.path().filename() << " quotes what is not in " << file << ":\n"
          << code;
      at = begin;
    }
  }
  EXPECT_GT(quotes, 0);
}

std::vector<fs::path> pages() {
  const fs::path root = HPCDL_SOURCE_DIR;
  std::vector<fs::path> found = {root / "README.md", root / "CONTRIBUTING.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

// Every file that a page names in backquotes exists.
TEST(docs, name_files_that_exist) {
  const fs::path root = HPCDL_SOURCE_DIR;
  for (const auto& page : pages()) {
    const std::string text = read(page);
    EXPECT_FALSE(text.empty()) << page << " is missing";
    for (const char* top : {"`hpcdl/", "`include/", "`docs/", "`tests/", "`scripts/", "`bench/", "`cli/", "`cmake/",
                            "`examples/", "`python/"})
      for (std::size_t at = 0; (at = text.find(top, at)) != std::string::npos; ++at) {
        const std::string name = text.substr(at + 1, text.find_first_of("`: \n", at + 1) - at - 1);
        if (name.find_first_of("<*{") != std::string::npos) continue;
        EXPECT_TRUE(fs::exists(root / name)) << page.filename() << " names " << name;
      }
  }
}

// Every link and picture of a page leads somewhere.
TEST(docs, link_to_files_that_exist) {
  int links = 0;
  for (const auto& page : pages()) {
    const std::string text = read(page);
    for (std::size_t at = 0; (at = text.find("](", at)) != std::string::npos; ++at) {
      const std::string target = text.substr(at + 2, text.find_first_of(")#\n ", at + 2) - at - 2);
      if (target.empty() || target.find(':') != std::string::npos || text[at + 2 + target.size()] != ')') continue;
      EXPECT_TRUE(fs::exists(page.parent_path() / target)) << page.filename() << " links to " << target;
      ++links;
    }
  }
  EXPECT_GT(links, 10);
}

}  // namespace
