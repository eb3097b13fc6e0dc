// Variables HPCDL_... that no code reads, from a user's point of view.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "cli/own_variables.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

struct Set {
  Set(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  ~Set() { ::unsetenv(name_); }
  const char* name_;
};

TEST(environment, a_mistyped_key_is_reported) {
  const Set wrong("HPCDL_TRIAN_STEPS", "7"), right("HPCDL_TRAIN_BATCH", "5");
  const auto r = run({"train", "--print-config"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("warning: HPCDL_TRIAN_STEPS is set, but no such key exists; did you mean HPCDL_TRAIN_STEPS?"),
            std::string::npos)
      << r.err;
  EXPECT_EQ(r.err.find("HPCDL_TRAIN_BATCH"), std::string::npos) << r.err;
  EXPECT_NE(r.out.find("# HPCDL_TRAIN_BATCH"), std::string::npos) << r.out;
}

TEST(environment, rank_0_alone_tells_it) {
  const Set wrong("HPCDL_TRIAN_STEPS", "7");
  const auto r = run({"launch", "-n", "2", "--", "train", "--print-config"});
  EXPECT_NE(r.err.find("[rank 0] warning: HPCDL_TRIAN_STEPS"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("[rank 1] warning"), std::string::npos) << r.err;
}

/// Every variable that sources read is in the list, and every variable in the list is read.
TEST(environment, our_own_are_no_mistakes) {
  const std::set<std::string> listed(std::begin(cli::kOwnVariables), std::end(cli::kOwnVariables));
  const std::regex read(R"re((?:getenv\("|environ(?:\.get)?[(\[]["']|\$\{?)(HPCDL_[A-Z0-9_]+))re");
  std::set<std::string> found;
  for (const char* folder : {"cli", "hpcdl", "python", "scripts", "tests", "bench"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(HPCDL_SOURCE_DIR) / folder)) {
      const auto kind = entry.path().extension().string();
      if (!std::set<std::string>{".cpp", ".h", ".cu", ".py", ".sh"}.contains(kind)) continue;
      const auto text = io::read_file(entry.path());
      for (std::sregex_iterator it(text.begin(), text.end(), read), end; it != end; ++it) found.insert((*it)[1]);
    }
  EXPECT_EQ(found, listed);
  std::vector<std::unique_ptr<Set>> all;
  for (const auto& name : listed)
    if (!std::getenv(name.c_str())) all.push_back(std::make_unique<Set>(name.c_str(), "1"));
  const auto r = run({"train", "--print-config"});
  EXPECT_EQ(r.err.find("nothing reads it"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace hpcdl::cli_test
