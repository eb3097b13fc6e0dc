#pragma once
// Calls on a GPU: the current stream of the arrays' library, and memory from its allocator. Nothing here waits,
// so calls may be captured into the library's graphs.

#include <memory>

#include "hpcdl/core/ways.h"
#include "hpcdl/stream.h"
#include "python/src/array.h"

namespace hpcdl::python {

/// The ways that calls on a GPU prefer wherever they are possible; null: none. With the GIL held.
std::shared_ptr<const Ways>& preferred_ways();

#if HPCDL_CUDA
/// The current stream of `framework`; makes its device the current one for its lifetime. Made and destroyed
/// with the GIL held. `mirror`: step parameters on that device, for ops that read them.
class GpuTurn {
 public:
  GpuTurn(const Framework& framework, Device device, StepParams* mirror = nullptr);
  ~GpuTurn();
  GpuTurn(const GpuTurn&) = delete;
  GpuTurn& operator=(const GpuTurn&) = delete;
  Stream& stream() { return stream_; }

 private:
  int before_ = -1;  // -1: nothing to restore
  Stream stream_;
};
#endif

/// A new array of `framework` on a GPU, not zeroed, and its address.
nb::object gpu_array(std::string_view op, const Framework& framework, Device device, const Spec& spec,
                     const Shape& strides, Tensor& place);

}  // namespace hpcdl::python
