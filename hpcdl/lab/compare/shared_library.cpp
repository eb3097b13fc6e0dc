#include "hpcdl/lab/compare/shared_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace hpcdl::lab::compare {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names)
    : names_(fmt::format("{}", fmt::join(names, " or "))) {
  for (const auto& name : names)
    if ((handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))) return;
  error_ = fmt::format("{} cannot be loaded: not installed, or not where the loader looks (LD_LIBRARY_PATH)", names_);
}

void* SharedLibrary::find(const char* name) const { return handle_ ? ::dlsym(handle_, name) : nullptr; }

std::string file_of(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) return "";
  std::error_code ignored;
  const auto path = std::filesystem::weakly_canonical(info.dli_fname, ignored);
  return ignored ? info.dli_fname : path.string();
}

}  // namespace hpcdl::lab::compare
