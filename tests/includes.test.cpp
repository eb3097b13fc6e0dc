// Precompiled headers (cmake/HpcdlPrecompiled.cmake) would hide that a file does not include what it uses: it would
// build here, but not without them, from an installed header, or with another compiler. So every file that names
// something of a precompiled header must reach that header through its own includes and those of our headers, not by
// way of another library's header.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Rule {
  std::string header;
  std::regex names;
  std::vector<std::string> as_good;  // headers that guarantee the same names
};

Rule rule(const char* header, const std::string& names, std::vector<std::string> as_good = {}) {
  return {header, std::regex("std::(" + names + ")", std::regex::optimize), std::move(as_good)};
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> r = {
        rule(
            "algorithm",
            "(stable_)?sort\\(|find(_if)?\\(|(any|all|none)_of\\(|min\\(|max\\(|(min|max)_element\\(|clamp\\(|fill(_n)?"
            "\\(|copy(_n)?\\(|transform\\(|(lower|upper)_bound\\(|nth_element\\(|reverse\\(|remove_if\\(|count_if\\("),
        rule("array", "array<"),
        rule("atomic", "atomic\\b"),
        rule("bit", "bit_(cast|ceil|width)\\b|popcount\\b|has_single_bit\\b"),
        rule("chrono", "chrono::"),
        rule("cmath",
             "(sqrt|exp|log|log2|pow|isfinite|isnan|floor|ceil|lround|llround|tanh|erf|fma|ldexp|nextafter)\\(",
             {"math.h"}),
        rule("cstdint", "u?int(8|16|32|64)_t", {"stdint.h"}),
        rule("cstring", "mem(cpy|set|cmp|move)\\(|strerror\\(|strlen\\(|strcmp\\(", {"string.h"}),
        rule("filesystem", "filesystem\\b"),
        rule("fstream", "[io]?fstream\\b"),
        rule("functional", "function\\b|less\\b|greater\\b"),
        rule("map", "(multi)?map<"),
        rule("memory", "(unique|shared|weak)_ptr\\b|make_(unique|shared)\\b"),
        rule("mutex", "(recursive_|timed_)?mutex\\b|(lock_guard|unique_lock|scoped_lock|once_flag)\\b",
             {"condition_variable"}),
        rule("optional", "optional<|nullopt\\b"),
        rule("set", "(multi)?set<"),
        rule("span", "span\\b"),
        rule("sstream", "[io]?stringstream\\b"),
        rule("string", "string\\b|to_string\\("),
        rule("string_view", "string_view\\b", {"string"}),
        rule("thread", "j?thread\\b|this_thread\\b"),
        rule("tuple", "tuple<|tie\\("),
        rule("unordered_map", "unordered_map<"),
        rule("variant", "variant<|get_if\\b|holds_alternative\\b"),
        rule("vector", "vector\\b"),
    };
    r.push_back({"fmt/core.h", std::regex("\\bfmt::"), {"fmt/format.h", "fmt/ranges.h"}});
    r.push_back({"fmt/format.h",
                 std::regex("\\bfmt::(join|memory_buffer|to_string|format_int|formatter)\\b"),
                 {"fmt/ranges.h"}});
    r.push_back({"nlohmann/json.hpp", std::regex("\\b[Jj]son::(parse|array|object)\\(|\\.dump\\("), {}});
    return r;
  }();
  return all;
}

struct File {
  std::string code;                    // without comments and strings
  std::set<std::string> ours, theirs;  // "hpcdl/core/error.h"; "vector"
};

File read(const fs::path& path) {
  static const std::regex include(R"re(^\s*#\s*include\s*(["<])([^">]+))re"), comment("//.*"),
      string(R"re("(\\.|[^"\\])*")re");
  File f;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (std::smatch m; std::regex_search(line, m, include)) {
      (m[1] == "\"" ? f.ours : f.theirs).insert(m[2]);
      continue;
    }
    f.code += std::regex_replace(std::regex_replace(line, string, "\"\""), comment, "") + "\n";
  }
  return f;
}

// By path relative to the repository, which is how sources include headers.
std::map<std::string, File> sources() {
  const fs::path root = HPCDL_SOURCE_DIR;
  std::map<std::string, File> all;
  for (const char* folder : {"hpcdl", "include", "tools", "cli", "examples", "bench", "python/src", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      static const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh"};
      const auto path = fs::relative(entry.path(), root).string();
      if (!entry.is_regular_file() || !kinds.contains(entry.path().extension())) continue;
      all[path.starts_with("include/") ? path.substr(8) : path] = read(entry.path());  // as sources include it
    }
  return all;
}

std::set<std::string> reached(const std::map<std::string, File>& files, const std::string& from) {
  std::set<std::string> seen = {from}, headers;
  std::vector<std::string> open = {from};
  while (!open.empty()) {
    const auto it = files.find(open.back());
    open.pop_back();
    if (it == files.end()) continue;
    headers.insert(it->second.theirs.begin(), it->second.theirs.end());
    for (const auto& next : it->second.ours)
      if (seen.insert(next).second) open.push_back(next);
  }
  return headers;
}

/// The headers that `code` uses and that are not among `headers`.
std::vector<std::string> missing(const std::string& code, const std::set<std::string>& headers) {
  std::vector<std::string> out;
  for (const Rule& r : rules()) {
    const bool there = headers.contains(r.header) || std::any_of(r.as_good.begin(), r.as_good.end(),
                                                                 [&](const auto& h) { return headers.contains(h); });
    if (!there && std::regex_search(code, r.names)) out.push_back(r.header);
  }
  return out;
}

TEST(includes, every_file_reaches_what_it_uses) {
  const auto files = sources();
  ASSERT_GT(files.size(), 300u);
  for (const auto& [path, file] : files)
    for (const auto& header : missing(file.code, reached(files, path)))
      ADD_FAILURE() << path << " uses <" << header << "> and does not include it";
}

TEST(includes, a_missing_one_is_seen) {
  EXPECT_EQ(missing("std::vector<int> v; std::sort(v.begin(), v.end());", {"algorithm"}),
            std::vector<std::string>{"vector"});
  EXPECT_EQ(missing("std::string_view s = fmt::format(x);", {"string"}), std::vector<std::string>{"fmt/core.h"});
  EXPECT_TRUE(missing("int main() {}", {}).empty());
}

// A header that is added to the precompiled ones must be added to the rules above.
TEST(includes, every_precompiled_header_has_a_rule) {
  std::ifstream in(HPCDL_SOURCE_DIR "/cmake/HpcdlPrecompiled.cmake");
  std::stringstream text;
  text << in.rdbuf();
  const std::string list = text.str();
  static const std::regex header("<([a-z_/.]+)>");
  int seen = 0;
  for (std::sregex_iterator it(list.begin(), list.end(), header), end; it != end; ++it, ++seen)
    EXPECT_TRUE((*it)[1] == "immintrin.h" ||
                std::any_of(rules().begin(), rules().end(), [&](const Rule& r) { return r.header == (*it)[1]; }))
        << (*it)[1];
  EXPECT_GT(seen, 20);
}

}  // namespace
