// The house rules that a program can check: which folder may include which, the length of files, the contents of an
// op's folder, and that no file mentions the machine on which it was written.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A folder may include itself and what stands to its left. `tools` stands next to hpcdl/, and is not in the library.
const std::vector<std::string> kOrder = {"core",  "simd",   "cuda",     "program", "ops",   "graph", "comm",
                                         "nn",    "io",     "machine",  "tune",    "state", "optim", "quant",
                                         "data",  "models", "parallel", "offload", "pipe",  "train", "infer",
                                         "serve", "api",    "tools",    "testing"};
// The public headers, and the folder whose place in the order they have.
const std::map<std::string, std::string> kFace = {
    {"error", "core"},  {"box", "core"},       {"shape", "core"},      {"dtype", "core"},      {"device", "core"},
    {"tensor", "core"}, {"buffer", "core"},    {"pool", "core"},       {"rng", "core"},        {"ticket", "core"},
    {"stream", "core"}, {"op", "program"},     {"op_info", "program"}, {"program", "program"}, {"autocast", "graph"},
    {"graph", "graph"}, {"instance", "graph"}, {"group", "comm"},      {"kernel_abi", "ops"},  {"comm", "api"},
    {"ops", "api"},     {"model", "api"},      {"train", "api"},       {"generate", "api"},    {"data", "api"}};
constexpr int kHardCap = 700;
constexpr int kMedianCap = 150;

struct File {
  std::string path;  // relative to the repository
  std::vector<std::string> lines;
};

bool is_source(const std::string& path) {
  return std::regex_search(path,
                           std::regex(R"(\.(h|cpp|cu|cuh|py|sh|cmake|toml)$|CMakeLists\.txt$|Makefile$|^\.ci/run$)"));
}

std::vector<File> tree() {
  const fs::path root = HPCDL_SOURCE_DIR;
  std::vector<File> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    const bool hidden = name.starts_with('.') && name != ".ci";
    if (it->is_directory() && (hidden || name == "build" || name == "__pycache__" || name == "venv"))
      it.disable_recursion_pending();
    const std::string path = fs::relative(it->path(), root).string();
    if (!it->is_regular_file() || !(is_source(path) || path.ends_with(".md"))) continue;
    File f{path, {}};
    std::ifstream in(it->path());
    for (std::string line; std::getline(in, line);) f.lines.push_back(line);
    files.push_back(std::move(f));
  }
  return files;
}

const std::vector<File>& files() {
  static const auto all = tree();
  return all;
}

int place(const std::string& folder) {
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), folder) - kOrder.begin());
}

std::string folder_of(const std::string& path) {
  static const std::regex folder("^(?:hpcdl/([a-z_0-9]+)|(tools))/"), face("^(?:include/)?hpcdl/([a-z_0-9]+)\\.h$");
  std::smatch m;
  if (std::regex_search(path, m, folder)) return m[1].matched ? m[1].str() : m[2].str();
  if (!std::regex_search(path, m, face)) return "";
  const auto it = kFace.find(m[1]);
  return it == kFace.end() ? "" : it->second;
}

TEST(layering, folders_include_only_what_stands_before_them) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"]+)")re");
  int seen = 0;
  for (const File& f : files()) {
    const std::string from = folder_of(f.path);
    if (from.empty()) continue;
    ASSERT_LT(place(from), static_cast<int>(kOrder.size())) << f.path << ": the folder is not in the order";
    if (f.path.ends_with(".test.cpp") || f.path.ends_with(".fuzz.cpp")) continue;  // tests may use everything
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      std::smatch m;
      if (!std::regex_search(f.lines[i], m, include)) continue;
      ++seen;
      const std::string target = m[1], to = folder_of(target);
      EXPECT_FALSE(to.empty()) << f.path << ":" << i + 1 << ": include from the repository root, found \"" << target
                               << '"';
      EXPECT_LE(place(to), place(from)) << f.path << ":" << i + 1 << ": " << from << "/ may not include " << to << '/';
    }
  }
  EXPECT_GT(seen, 10);
}

/// Users see only include/hpcdl: it has to be small, and to stand alone.
TEST(layering, the_public_face_is_small_and_stands_alone) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re"), ours("^hpcdl/[a-z_0-9]+\\.h$");
  std::vector<std::string> headers;
  for (const File& f : files()) {
    if (!f.path.starts_with("include/")) continue;
    headers.push_back(f.path);
    EXPECT_FALSE(folder_of(f.path).empty()) << f.path << " has no place in kFace";
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      std::smatch m;
      if (!std::regex_search(f.lines[i], m, include)) continue;
      const std::string what = m[1];
      const bool standard = what.find('/') == std::string::npos;
      EXPECT_TRUE(standard ||
                  (std::regex_match(what, ours) && fs::exists(fs::path(HPCDL_SOURCE_DIR) / "include" / what)))
          << f.path << ":" << i + 1 << ": " << what << " is not installed";
    }
  }
  EXPECT_EQ(headers.size(), kFace.size());
  EXPECT_LE(headers.size(), 25u);
}

/// Only nvcc compiles device code: headers of it end in .cuh, and only .cu files include them.
TEST(layering, device_code_is_in_cuh) {
  static const std::regex device(R"(__global__|__shared__|blockIdx|threadIdx)"),
      include(R"re(^\s*#\s*include\s*"([^"]+\.cuh)")re");
  int seen = 0;
  for (const File& f : files()) {
    const bool cuda = f.path.ends_with(".cu") || f.path.ends_with(".cuh");
    const bool code = f.path.ends_with(".h") || f.path.ends_with(".cpp");
    if (cuda || !code || f.path.starts_with("tests/")) {
      seen += f.path.ends_with(".cuh");
      continue;
    }
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(f.lines[i], include)) << f.path << ":" << i + 1 << ": only .cu files include .cuh";
      if (f.lines[i].find("//") != std::string::npos) continue;
      EXPECT_FALSE(std::regex_search(f.lines[i], device)) << f.path << ":" << i + 1 << ": device code goes to a .cuh";
    }
  }
  EXPECT_GT(seen, 20);
}

/// Stages of shared memory are handed on by channels (hpcdl/cuda/tile/), whose protocol is tried in all orders.
TEST(layering, kernels_use_no_barriers_by_hand) {
  static const std::regex by_hand(R"((^|[^.a-z_])barrier_(init|arrive|arrive_at|expect|wait|try_wait)\(|mbarrier\.)");
  int seen = 0;
  for (const File& f : files()) {
    if (!f.path.ends_with(".cu") && !f.path.ends_with(".cuh")) continue;
    const bool own = f.path.starts_with("hpcdl/cuda/");
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      const bool found = std::regex_search(f.lines[i], by_hand);
      seen += own && found;
      EXPECT_FALSE(!own && found) << f.path << ":" << i + 1 << ": use a Channel of hpcdl/cuda/tile/channel.cuh";
    }
  }
  EXPECT_GT(seen, 5);
}

/// Parallelism is declared by models and recorded as ops on named axes: only the code that binds these axes uses
/// groups.
TEST(layering, models_know_no_groups_of_ranks) {
  int seen = 0;
  for (const File& f : files()) {
    if (const auto folder = folder_of(f.path); (folder != "nn" && folder != "models") || f.path.ends_with(".test.cpp"))
      continue;
    ++seen;
    for (std::size_t i = 0; i < f.lines.size(); ++i)
      for (const char* what : {"#include \"hpcdl/comm/", "#include \"hpcdl/parallel/", "comm::", "parallel::"})
        EXPECT_EQ(f.lines[i].find(what), std::string::npos) << f.path << ":" << i + 1 << ": " << f.lines[i];
  }
  EXPECT_GT(seen, 20);
}

/// What a format of weights is called stands in its own files, and once in the list of all. Messages between ranks have
/// forms of the same names.
TEST(layering, only_its_own_files_know_a_codec) {
  static const std::regex folders("^hpcdl/(graph|nn|io|state|optim|quant|data|models|parallel|train|infer)/"),
      own("^hpcdl/quant/int4|test\\.cpp$"), messages("Wire|travel");
  int seen = 0;
  for (const File& f : files()) {
    if (!std::regex_search(f.path, folders) || std::regex_search(f.path, own)) continue;
    ++seen;
    for (std::size_t i = 0; i < f.lines.size(); ++i)
      for (const char* name : {"int4", "Int4", "INT4"})
        if (f.lines[i].find("HPCDL_CODECS(ONE)") == std::string::npos && !f.lines[i].starts_with("//") &&
            !std::regex_search(f.lines[i], messages)) {
          EXPECT_EQ(f.lines[i].find(name), std::string::npos) << f.path << ":" << i + 1 << ": " << f.lines[i];
        }
  }
  EXPECT_GT(seen, 50);
}

TEST(layering, libraries_and_programs_know_their_place) {
  for (const File& f : files()) {
    if (folder_of(f.path).empty() || f.path.ends_with(".test.cpp") || f.path.ends_with(".fuzz.cpp")) continue;
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      EXPECT_FALSE(
          std::regex_search(f.lines[i], std::regex(R"re((^|[^a-z_:.>])(std::)?(exit|abort|quick_exit|_exit)\()re")))
          << f.path << ":" << i + 1 << ": a library never exits the process";
      EXPECT_EQ(f.lines[i].find("#include \"cli/"), std::string::npos) << f.path << ":" << i + 1;
    }
  }
}

TEST(layering, files_stay_short) {
  std::vector<int> lengths;
  for (const File& f : files()) {
    if (!is_source(f.path)) continue;
    const int n = static_cast<int>(f.lines.size());
    EXPECT_LE(n, kHardCap) << f.path;
    if (f.path.ends_with(".cpp") || f.path.ends_with(".h") || f.path.ends_with(".cu") || f.path.ends_with(".cuh"))
      lengths.push_back(n);
  }
  ASSERT_FALSE(lengths.empty());
  std::nth_element(lengths.begin(), lengths.begin() + lengths.size() / 2, lengths.end());
  EXPECT_LE(lengths[lengths.size() / 2], kMedianCap) << "the median file";
}

// ops/NAME/NAME.h declares an op, NAME.simd.cpp holds its kernels (an op of other ops' kernels, or of a few numbers,
// has NAME.cpp instead), NAME.test.cpp its spec. A folder without NAME.h holds kernels or functors that ops share; they
// are tested there or by those ops. Ops do not depend on the recorder: `record<Op>(args, vars)` in their headers is
// found by argument-dependent lookup, so the order above needs no exception.
TEST(layering, an_op_is_one_folder_of_one_form) {
  const fs::path ops = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/ops";
  for (const auto& entry : fs::directory_iterator(ops)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / (name + ".h"))) continue;
    const auto has = [&](const char* ending) { return fs::exists(entry.path() / (name + ending)); };
    EXPECT_TRUE(has(".simd.cpp") || has(".cpp")) << "ops/" << name << '/' << name << ".simd.cpp is missing";
    EXPECT_TRUE(has(".test.cpp")) << "ops/" << name << '/' << name << ".test.cpp is missing";
  }
}

TEST(layering, nothing_names_a_machine) {
  static const std::regex personal(R"((^|[\s"'`=(:,])/(home|Users|root|work|workspace|scratch|mnt)/[A-Za-z0-9_.-])");
  for (const File& f : files())
    for (std::size_t i = 0; i < f.lines.size(); ++i)
      EXPECT_FALSE(std::regex_search(f.lines[i], personal)) << f.path << ":" << i + 1 << ": " << f.lines[i];
}

TEST(layering, no_promises_instead_of_code) {
  static const std::regex marker(std::string(R"(\b(TO)") + R"(DO|FIX)" + R"(ME|XX)" + R"(X)\b)");
  for (const File& f : files())
    for (std::size_t i = 0; i < f.lines.size(); ++i)
      EXPECT_FALSE(std::regex_search(f.lines[i], marker)) << f.path << ":" << i + 1 << ": " << f.lines[i];
}

}  // namespace
