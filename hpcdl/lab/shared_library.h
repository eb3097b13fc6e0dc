#pragma once

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::lab {

/// A library that is loaded if it is there: the first of its names that can be. It stays loaded, since those of CUDA and
/// those with threads of their own do not survive being closed.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::vector<std::string>& names) : names_(fmt::format("{}", fmt::join(names, " or "))) {
    for (const auto& name : names)
      if ((handle_ = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE))) return;
  }
  explicit operator bool() const { return handle_ != nullptr; }
  /// Why there is none, in words.
  std::string error() const {
    return fmt::format("{} cannot be loaded: not installed, or not where the loader looks (LD_LIBRARY_PATH)", names_);
  }
  /// Null when it, and those it depends on, have none of this name.
  template <class F> F* function(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(::dlsym(handle_, name)) : nullptr;
  }
  /// Throws Error where function() is null.
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
