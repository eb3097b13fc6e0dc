#pragma once
// cuDNN's backend calls, found at run time (libcudnn.so.9, or the file that HPCDL_CUDNN_LIBRARY names), and owners of
// its descriptors. Only with HPCDL_CUDNN.

#include <cudnn_graph.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::cuda::cudnn {

struct Library {
  decltype(&::cudnnGetVersion) version = nullptr;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnGetErrorString) error_string = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
  bool whole = false;

  /// Incomplete if the library is missing.
  static const Library& get();
};

inline void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
    fail("cudnn", "{} failed: {}", call, Library::get().error_string(status));
}

/// Owner of a backend descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(Library::get().create_descriptor(type, &d_), "cudnnBackendCreateDescriptor");
  }
  Descriptor(Descriptor&& o) noexcept : d_(std::exchange(o.d_, nullptr)) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    std::swap(d_, o.d_);
    return *this;
  }
  ~Descriptor() {
    if (d_) Library::get().destroy_descriptor(d_);
  }
  cudnnBackendDescriptor_t raw() const { return d_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
    check(Library::get().set_attribute(d_, name, type, count, values), "cudnnBackendSetAttribute");
  }
  template <class T> void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.d_);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void finalize() { check(Library::get().finalize(d_), "cudnnBackendFinalize"); }
  bool try_finalize() { return Library::get().finalize(d_) == CUDNN_STATUS_SUCCESS; }
  /// The values of an attribute, at most `most`.
  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t most) const {
    std::vector<T> values(static_cast<std::size_t>(most));
    std::int64_t count = 0;
    check(Library::get().get_attribute(d_, name, type, most, &count, values.data()), "cudnnBackendGetAttribute");
    values.resize(static_cast<std::size_t>(std::min(count, most)));
    return values;
  }

 private:
  cudnnBackendDescriptor_t d_ = nullptr;
};

}  // namespace hpcdl::cuda::cudnn
