#include "tools/doctor/software.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>

#include "hpcdl/core/error.h"
#include "tools/shared_library.h"
#include "tools/words.h"

namespace hpcdl::lab {

namespace {

namespace fs = std::filesystem;

fs::path under(const Places& places, const std::string& path) { return places.root / fs::path(path).relative_path(); }

bool there(const fs::path& p) {
  std::error_code ignored;
  return fs::exists(p, ignored);
}

std::string env(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<fs::path> cuda_folders(const Places& places) {
  std::vector<fs::path> list;
  if (!places.cuda_home.empty()) list.emplace_back(places.cuda_home);
  list.push_back(under(places, "/usr/local/cuda"));
  return list;
}

bool header(const Places& places, const std::string& name) {
  std::vector<fs::path> folders{under(places, "/usr/include"), under(places, "/usr/include/x86_64-linux-gnu"),
                                under(places, "/usr/local/include")};
  for (const auto& cuda : cuda_folders(places))
    folders.push_back(cuda / "include"), folders.push_back(cuda / "extras/CUPTI/include");
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& f) { return there(f / name); });
}

/// A library with a `version()`, and the name of its header, for programs that are built with it.
template <class F>
Software find_library(const Places& places, const std::vector<std::string>& names, const std::string& header_name,
                      F&& version) {
  Software s;
  if (!places.load_libraries) return s;
  if (const SharedLibrary lib(names); lib) {
    s = {true, version(lib), lib.path(), ""};
    if (!header(places, header_name))
      s.note = fmt::format("{} is missing: programs cannot be built with it", header_name);
  }
  return s;
}

}  // namespace

Places Places::here() {
  return {
      .root = "/", .path = env("PATH"), .cuda_home = env("CUDA_HOME").empty() ? env("CUDA_PATH") : env("CUDA_HOME")};
}

std::string version_in(std::string_view text) {
  const auto digit = [&](std::size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!digit(i)) continue;
    std::size_t end = i, dots = 0;
    while (digit(end) || (end < text.size() && text[end] == '.' && digit(end + 1))) dots += text[end++] == '.';
    if (dots > 0) return std::string(text.substr(i, end - i));
    i = end;
  }
  return "";
}

std::string version_of_code(int code) {
  return code < 10000 ? fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100)
                      : fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

fs::path find_program(const Places& places, const std::string& name) {
  std::istringstream in(places.path);
  for (std::string folder; std::getline(in, folder, ':');) {
    const auto file = fs::path(folder) / name;
    std::error_code ignored;
    if (!folder.empty() && fs::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

Software find_cuda_toolkit(const Places& places) {
  auto nvcc = find_program(places, "nvcc");
  for (const auto& folder : cuda_folders(places))
    if (nvcc.empty() && there(folder / "bin/nvcc")) nvcc = folder / "bin/nvcc";
  if (nvcc.empty()) return {};
  Software s{true, "", nvcc.string(), ""};
  const auto text = ask(nvcc, {"--version"});
  const auto release = text.find("release");
  s.version = version_in(release == std::string::npos ? text : std::string_view(text).substr(release));
  if (s.version.empty()) s.note = "nvcc does not print its version";
  else if (find_program(places, "nvcc").empty())
    s.note = fmt::format("not on PATH: export PATH=$PATH:{}", nvcc.parent_path().string());
  return s;
}

Software find_nccl(const Places& places) {
  const std::string named = env("HPCDL_NCCL_LIBRARY");
  constexpr int kOldest = 21800;
  int code = 0;
  auto s = find_library(places, {named.empty() ? "libnccl.so.2" : named}, "nccl.h", [&](const SharedLibrary& lib) {
    const auto get = lib.function<int(int*)>("ncclGetVersion");
    return get && get(&code) == 0 ? version_of_code(code) : "";
  });
  if (s.found && code < kOldest) s.note = fmt::format("{} or newer is needed", version_of_code(kOldest));
  if (!s.found && !named.empty()) s.note = fmt::format("HPCDL_NCCL_LIBRARY={} cannot be loaded", named);
  return s;
}

Software find_cudnn(const Places& places) {
  return find_library(places, {"libcudnn.so.9", "libcudnn.so.8"}, "cudnn.h", [](const SharedLibrary& lib) {
    const auto get = lib.function<std::size_t()>("cudnnGetVersion");
    return get ? version_of_code(static_cast<int>(get())) : "";
  });
}

Software find_cublaslt(const Places& places) {
  return find_library(places, {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLt.h", [](const SharedLibrary& lib) {
    const auto get = lib.function<std::size_t()>("cublasLtGetVersion");
    return get ? version_of_code(static_cast<int>(get())) : "";
  });
}

Software find_cupti(const Places& places) {
  return find_library(places, {"libcupti.so.13", "libcupti.so.12"}, "cupti.h", [](const SharedLibrary& lib) {
    std::uint32_t code = 0;  // 130000 for CUDA 13.0
    const auto get = lib.function<int(std::uint32_t*)>("cuptiGetVersion");
    return get && get(&code) == 0 && code >= 10000 ? version_of_code(static_cast<int>(code)) : "";
  });
}

namespace {

/// Why mpirun starts nothing on this machine; empty: it does. Not tried within a launch, because some refuse to nest.
std::string mpirun_refuses(const fs::path& mpirun) {
  for (const char* inside : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (!env(inside).empty()) return "";
  constexpr const char* kWord = "started";
  if (ask(mpirun, {"-n", "1", "echo", kWord}, 20).find(kWord) != std::string::npos) return "";
  if (geteuid() == 0 && env("OMPI_ALLOW_RUN_AS_ROOT").empty())
    return "it starts nothing as root without OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
  return "mpirun -n 1 echo does not work here";
}

}  // namespace

Software find_mpi(const Places& places) {
  const auto mpirun = find_program(places, "mpirun");
  if (mpirun.empty()) return {};
  // Its library is not loaded, because some print errors outside of mpirun.
  const auto text = first_line(ask(mpirun, {"--version"}));
  Software s{true, version_in(text), mpirun.string(), ""};
  if (text.find("Open MPI") != std::string::npos) s.version = "Open MPI " + s.version;
  else if (text.find("HYDRA") != std::string::npos) s.version = "MPICH " + version_in(ask(mpirun, {"--version"}));
  else if (text.find("Intel") != std::string::npos) s.version = "Intel MPI " + s.version;
  if (s.version.empty()) s.note = "mpirun does not print its version";
  else if (find_program(places, "mpicc").empty()) s.note = "mpicc is missing: programs cannot be built with it";
  else s.note = mpirun_refuses(mpirun);
  return s;
}

Software find_slurm(const Places& places) {
  const auto srun = find_program(places, "srun"), sinfo = find_program(places, "sinfo");
  const auto any = srun.empty() ? sinfo : srun;
  if (any.empty()) return {};
  Software s{true, version_in(ask(any, {"--version"})), any.string(), ""};
  std::string missing;
  for (const char* name : {"srun", "sbatch", "sinfo"})
    if (find_program(places, name).empty()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  if (!missing.empty()) return s.note = fmt::format("not there: {}", missing), s;
  if (!env("SLURM_JOB_ID").empty()) return s;
  const auto nodes = ask(sinfo, {"--noheader", "--Node", "--format=%N"});
  if (nodes.empty()) return s.note = "sinfo gets no answer from a controller", s;
  std::istringstream in(nodes);
  std::set<std::string> names;  // a node is listed once for each of its partitions
  for (std::string name; in >> name;) names.insert(name);
  s.version += ", " + plural(std::ssize(names), "node");
  return s;
}

Software find_python_module(const Places& places) {
  const auto python = find_program(places, "python3");
  if (python.empty()) return {false, "", "", "no python3 on PATH"};
  // Not from the current folder, where a folder of the same name would be taken for a package.
  const auto text = ask(
      python,
      {"-c",
       "import sys; sys.path = [p for p in sys.path if p]; import hpcdl; print(hpcdl.__file__ + '\\n' + getattr(hpcdl, "
       "'__version__', ''))"},
      10);
  if (text.empty()) return {false, "", python.string(), "this python3 has none"};
  return {true, version_in(text.substr(std::min(text.find('\n'), text.size()))), first_line(text), ""};
}

}  // namespace hpcdl::lab
