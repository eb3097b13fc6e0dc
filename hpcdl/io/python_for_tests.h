#pragma once
// Finds a Python for tests in which the original libraries read our files; without one, they are skipped.

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {

/// A Python that can import `modules` ("torch, safetensors"): $HPCDL_PYTHON, /usr/bin/python3 or python3.
inline std::optional<std::string> find_python(const std::string& modules) {
  std::vector<std::string> candidates = {"/usr/bin/python3", "python3"};
  if (const char* env = std::getenv("HPCDL_PYTHON")) candidates.insert(candidates.begin(), env);
  for (const auto& python : candidates)
    if (std::system(fmt::format("{} -c 'import {}' >/dev/null 2>&1", python, modules).c_str()) == 0) return python;
  return std::nullopt;
}

/// Runs a script; returns its output (stdout and stderr) and sets `ok`.
inline std::string run_python(const std::string& python, const std::string& script, const std::string& args, bool& ok) {
  const TempFolder tmp;
  write_file_atomic(tmp / "script.py", script);
  const std::string out = (tmp / "out").string();
  ok = std::system(fmt::format("{} {} {} >{} 2>&1", python, (tmp / "script.py").string(), args, out).c_str()) == 0;
  return read_file(out);
}

}  // namespace hpcdl::io
