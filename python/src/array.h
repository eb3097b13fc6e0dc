#pragma once
// Arrays of other libraries as views (in) and our memory as their arrays (out), without copies.
//
// In: NumPy through the buffer protocol; PyTorch and everything else that offers it through the function table of
// DLPack 1.3, which runs no Python code; the rest through __dlpack__. Out: an array of the library that the input came
// from; for libraries whose arrays we cannot make, one of NumPy.

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/tensor.h"
#include "python/src/dlpack.h"
#include "python/src/memory.h"

namespace hpcdl::python {

namespace nb = nanobind;

/// The library of an array: one with this function table, an older PyTorch, or NumPy.
struct Framework {
  enum class Kind : std::uint8_t { none, numpy, old_torch, exchange } kind = Kind::none;
  const dl::ExchangeApi* api = nullptr;
  bool torch = false;  // any version of PyTorch
  constexpr explicit operator bool() const { return kind != Kind::none; }
};

/// "cpu", "cuda:0".
std::string device_name(Device device);

/// The memory of an array of another library, on the host or on a GPU, readable as long as this object lives. Needs the
/// GIL in all functions.
class Array {
 public:
  Array() = default;
  /// `what` names the argument in messages: "[softmax] x".
  Array(std::string_view op, std::string_view name, nb::handle object);
  Array(Array&&) noexcept = default;
  Array& operator=(Array&&) noexcept = default;

  const Tensor& tensor() const { return tensor_; }
  bool writable() const { return writable_; }
  Framework framework() const { return framework_; }

 private:
  struct Release {
    void operator()(Py_buffer* b) const;
    void operator()(dl::Managed* m) const {
      if (m->deleter) m->deleter(m);
    }
    void operator()(dl::ManagedVersioned* m) const {
      if (m->deleter) m->deleter(m);
    }
  };
  void from_buffer(std::string_view op, std::string_view name, nb::handle object, DType forced);
  void from_capsule(std::string_view op, std::string_view name, nb::handle object);
  void take(std::string_view op, std::string_view name, const dl::Tensor& t);

  Tensor tensor_;
  bool writable_ = true;
  Framework framework_;
  std::unique_ptr<Py_buffer, Release> buffer_;
  std::unique_ptr<dl::Managed, Release> managed_;
  std::unique_ptr<dl::ManagedVersioned, Release> versioned_;
};

/// The library called `name`: "numpy" or "torch". Imports it.
Framework framework_from_name(std::string_view name);

/// Our memory as an array of `framework`, which then owns the block. `t` lies in it.
nb::object to_array(Framework framework, Block block, const Tensor& t);

/// Memory that `owner` keeps alive as an array of `framework`. A NumPy array is read-only unless `writable`; PyTorch
/// has no read-only tensors.
nb::object view_array(Framework framework, nb::object owner, const Tensor& t, bool writable);

/// The dtype that a user gave: "float32", torch.bfloat16, numpy.float32, ...
DType dtype_from(std::string_view op, nb::handle dtype);

}  // namespace hpcdl::python
