// The code that the documents quote is the code that is built: every block after `<!-- quote FILE -->` must occur in
// FILE.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
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
          << entry.path().filename() << " quotes text that is not in " << file << ":\n"
          << code;
      at = begin;
    }
  }
  EXPECT_GT(quotes, 0);
}

/// What a program of C++ consists of besides comments, texts in quotes and includes.
std::string code_of(const fs::path& path) {
  static const std::regex other(R"re(//[^\n]*|"(\\.|[^"\\\n])*"|#include[^\n]*)re");
  return std::regex_replace(read(path), other, "");
}

/// The files below hpcdl/ and include/hpcdl/ whose code has a match, without tests. `part`: a text that every match has.
std::set<std::string> users(const std::string& part, const std::string& pattern) {
  const std::regex expression(pattern);
  std::set<std::string> found;
  for (const char* folder : {"hpcdl", "include/hpcdl"}) {
    const fs::path root = fs::path(HPCDL_SOURCE_DIR) / folder;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string name = entry.path().string();
      const bool is_code = std::regex_search(name, std::regex(R"(\.(h|cpp|cu|cuh)$)"));
      if (!is_code || name.ends_with(".test.cpp") || read(entry.path()).find(part) == std::string::npos) continue;
      if (std::regex_search(code_of(entry.path()), expression)) found.insert(fs::relative(entry.path(), root).string());
    }
  }
  return found;
}

// The pages say how few files an addition needs. Their examples need no more.
TEST(docs, examples_of_additions_have_the_files_that_the_pages_say) {
  using Files = std::set<std::string>;
  const fs::path root = fs::path(HPCDL_SOURCE_DIR) / "hpcdl";
  EXPECT_EQ(users("qwen2", R"(\bqwen2(_row)?\b)"),
            (Files{"io/model_config.h", "models/families/qwen2.cpp", "models/gguf/names.cpp"}));
  EXPECT_EQ(users("star", R"(\bstar(_row)?\b)"), (Files{"comm/algo/star.cpp", "group.h"}));
  EXPECT_EQ(users("f8_e8m0", R"(\bf8_e8m0\b)"), (Files{"dtype.h"}));
  EXPECT_EQ(users("int4", R"(\bint4_codec\b|\bONE\(int4\))"), (Files{"quant/codecs.h", "quant/int4.cpp"}));
  EXPECT_EQ(users("Source", R"(\bTextSource\b)"), (Files{"train/text_source.cpp"}));
  EXPECT_EQ(users("Source", R"(\bImageSource\b)"), (Files{"train/image_source.cpp"}));

  Files of_op;
  for (const auto& entry : fs::directory_iterator(root / "ops/relu")) of_op.insert(entry.path().filename().string());
  EXPECT_EQ(of_op, (Files{"relu.cu", "relu.h", "relu.simd.cpp", "relu.spec.h", "relu.test.cpp"}));
  for (const auto& entry : fs::directory_iterator(root / "models/families")) {
    const std::string text = read(entry.path());
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 120) << entry.path();
  }
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
    for (const char* top : {"`hpcdl/", "`include/", "`tools/", "`docs/", "`tests/", "`scripts/", "`bench/", "`cli/",
                            "`cmake/", "`examples/", "`python/"})
      for (std::size_t at = 0; (at = text.find(top, at)) != std::string::npos; ++at) {
        const std::string name = text.substr(at + 1, text.find_first_of("`: \n", at + 1) - at - 1);
        if (name.find_first_of("<*{") != std::string::npos) continue;
        EXPECT_TRUE(fs::exists(root / name)) << page.filename() << " names " << name;
      }
  }
}

// Every link and picture of a page has a valid target.
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

// Pictures have a dark face, and colours that viewers other than browsers know: those draw CSS variables black.
TEST(docs, show_pictures_that_every_viewer_draws) {
  int pictures = 0;
  for (const char* folder : {"docs", "bench/results"})
    for (const auto& file : fs::recursive_directory_iterator(fs::path(HPCDL_SOURCE_DIR) / folder)) {
      if (file.path().extension() != ".svg") continue;
      const std::string picture = read(file.path());
      EXPECT_NE(picture.find("prefers-color-scheme"), std::string::npos) << file.path();
      EXPECT_EQ(picture.find("var(--"), std::string::npos) << file.path();
      ++pictures;
    }
  EXPECT_GT(pictures, 3);
}

}  // namespace
