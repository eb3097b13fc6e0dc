#pragma once
// Tensors of a packed matrix, checked and read without alignment.

#include <cstring>
#include <string>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors.h"

namespace hpcdl::io {

/// A tensor whose elements are read one by one.
template <class T> class Elements {
 public:
  explicit Elements(const View& v) : data_(v.ptr<std::byte>()) {}
  T operator[](std::int64_t i) const {
    T v;
    std::memcpy(&v, data_ + i * static_cast<std::int64_t>(sizeof v), sizeof v);
    return v;
  }

 private:
  const std::byte* data_;
};

/// Throws Error unless the tensor is there with this spec.
inline View expect_tensor(const TensorFolder& files, const std::string& name, const Spec& spec) {
  const View v = files.at(name);
  require(v.spec() == spec, "io", "{}: {}: expected {}, found {}", files.path().string(), name, to_string(spec),
          to_string(v.spec()));
  return v;
}

}  // namespace hpcdl::io
