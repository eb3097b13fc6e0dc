// The kernels are compiled three times with rising instruction sets into one program. If two of those objects define
// the same (weak) symbol, the linker keeps one of them, and a CPU without AVX-512 may then run AVX-512 code, far from
// any kernel. So every function that such an object offers to the linker must carry its instruction set in its name.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> lines;
  std::array<char, 65536> buffer;
  while (pipe && std::fgets(buffer.data(), buffer.size(), pipe.get())) lines.emplace_back(buffer.data());
  return lines;
}

// Symbols that the compiler itself adds to every object; they contain no code of ours.
bool is_compiler_made(const std::string& symbol) {
  return symbol.find("__gxx_personality_v0") != std::string::npos ||
         symbol.find("__clang_call_terminate") != std::string::npos;
}

class Symbols : public testing::TestWithParam<std::array<const char*, 2>> {};

TEST_P(Symbols, carry_the_instruction_set) {
  if (!HPCDL_CHECK_SYMBOLS) GTEST_SKIP() << "only an optimised build inlines like the released program";
  const auto [isa, tag] = GetParam();
  const fs::path dir = fs::path(HPCDL_BINARY_DIR) / "CMakeFiles" / (std::string("hpcdl_simd_") + isa + ".dir");
  ASSERT_TRUE(fs::exists(dir) || fs::exists(HPCDL_BINARY_DIR "/hpcdl")) << dir;
  int objects = 0, functions = 0;
  for (const auto& entry : fs::recursive_directory_iterator(HPCDL_BINARY_DIR)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".simd.cpp.o") || path.find(std::string("_simd_") + isa + ".dir") == std::string::npos)
      continue;
    ++objects;
    for (const std::string& line : lines_of("nm -C --defined-only '" + path + "'")) {
      if (line.size() < 20 || std::string("TWVuiDBRGS").find(line[17]) == std::string::npos) continue;
      const std::string symbol = line.substr(19);
      ++functions;
      EXPECT_TRUE(symbol.find(tag) != std::string::npos || is_compiler_made(symbol))
          << entry.path().filename().string() << " defines, without its instruction set: " << symbol
          << "(tag the template with Isa, move it into an anonymous namespace, or out of the .simd.cpp)";
    }
  }
  EXPECT_GT(objects, 0);
  EXPECT_GT(functions, 0) << "nm found nothing: is binutils installed?";
}

using Case = std::array<const char*, 2>;
INSTANTIATE_TEST_SUITE_P(isa, Symbols, testing::Values(Case{"avx2", "Avx2"}, Case{"avx512", "Avx512"}),
                         [](const auto& c) { return std::string(c.param[0]); });

}  // namespace
