#pragma once

#include <dlfcn.h>
#include <link.h>

#include <string>

namespace hpcdl::lab {

/// A library that is loaded if it is there. It stays loaded: those of CUDA do not survive being closed.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name)
      : handle_(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE)) {}
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  ~SharedLibrary() {
    if (handle_) dlclose(handle_);
  }
  explicit operator bool() const { return handle_ != nullptr; }
  /// Null when it has none of this name.
  template <class F> F* function(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(dlsym(handle_, name)) : nullptr;
  }
  std::string path() const {
    link_map* map = nullptr;
    return handle_ && dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "";
  }

 private:
  void* handle_;
};

}  // namespace hpcdl::lab
