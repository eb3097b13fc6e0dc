// The code that the documents quote is the code that is built: every block under `<!-- quote FILE -->` must stand in FILE.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

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
      EXPECT_NE(read(root / file).find(code), std::string::npos) << entry.path().filename() << " quotes what is not in " << file << ":\n" << code;
      at = begin;
    }
  }
  EXPECT_GT(quotes, 0);
}

// Every file that a document names in backquotes is there.
TEST(docs, name_files_that_exist) {
  const fs::path root = HPCDL_SOURCE_DIR;
  for (const char* document : {"README.md", "CONTRIBUTING.md", "docs/tour.md", "docs/adding_an_op.md", "docs/numerics.md", "docs/lab.md", "docs/distributed.md", "docs/troubleshooting.md"}) {
    const std::string text = read(root / document);
    EXPECT_FALSE(text.empty()) << document << " is missing";
    for (const char* top : {"`hpcdl/", "`docs/", "`tests/", "`scripts/", "`bench/", "`cli/", "`cmake/"})
      for (std::size_t at = 0; (at = text.find(top, at)) != std::string::npos; ++at) {
        const std::string name = text.substr(at + 1, text.find_first_of("`: \n", at + 1) - at - 1);
        if (name.find_first_of("<*{") != std::string::npos) continue;
        EXPECT_TRUE(fs::exists(root / name)) << document << " names " << name;
      }
  }
}

}  // namespace
