#pragma once
// A library that may or may not be installed, looked for when it is wanted. It stays loaded: libraries with threads of
// their own do not survive being unloaded.

#include <string>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::lab::compare {

class SharedLibrary {
 public:
  /// The first of `names` that can be loaded; none: converts to false.
  explicit SharedLibrary(const std::vector<std::string>& names);

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }
  /// The function of this name; throws Error when the library has none.
  template <class F> F* function(const char* name) const {
    void* address = find(name);
    require(address != nullptr, "compare", "{} has no function {}", names_, name);
    return reinterpret_cast<F*>(address);
  }
  /// Null when the library, or those it depends on, has none.
  void* find(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string names_, error_;
};

/// The file that holds the code at this address, links resolved; empty when unknown.
std::string file_of(const void* address);

}  // namespace hpcdl::lab::compare
