#pragma once

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::lab {

/// A library that is loaded if it exists: the first of its names that can be loaded. It stays loaded, because those of
/// CUDA and those with threads cannot be closed safely.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::vector<std::string>& names) : names_(fmt::format("{}", fmt::join(names, " or "))) {
    for (const auto& name : names)
      if ((handle_ = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE))) return;
  }
  explicit operator bool() const { return handle_ != nullptr; }
  /// Why it could not be loaded, in words.
  std::string error() const {
    return fmt::format("{} cannot be loaded: not installed, or its folder is not in LD_LIBRARY_PATH", names_);
  }
  /// Null if neither it nor its dependencies have a function of this name.
  template <class F> F* function(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(::dlsym(handle_, name)) : nullptr;
  }
  /// Throws Error if function() is null.
  template <class F> F* needed(const char* name) const {
    F* const f = function<F>(name);
    require(f != nullptr, "library", "{} has no function {}", names_, name);
    return f;
  }
  /// The file; empty when unknown.
  std::string path() const {
    link_map* map = nullptr;
    return handle_ && ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "";
  }

 private:
  void* handle_ = nullptr;
  std::string names_;
};

}  // namespace hpcdl::lab
