#include "python/src/gpu.h"

#include <array>
#include <memory>

#include "python/src/type_error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::python {
namespace {

#if HPCDL_CUDA
void* current_queue(const Framework& f, Device device) {
  if (f.kind == Framework::Kind::exchange && f.api->current_stream) {
    void* queue = nullptr;
    if (f.api->current_stream(dl::kCuda, device.index, &queue)) nb::raise_python_error();
    return queue;
  }
  static const auto* current = new nb::object(nb::module_::import_("torch").attr("cuda").attr("current_stream"));
  return reinterpret_cast<void*>(
      nb::cast<std::uintptr_t>((*current)(static_cast<int>(device.index)).attr("cuda_stream")));
}

/// GPU calls start no threads: their host work is done by the caller.
Pool& callers_pool() {
  static Pool* pool = new Pool(1);
  return *pool;
}
#endif

/// PyTorch objects that make results, looked up once.
struct Torch {
  nb::object empty_strided, device_class, dtypes[kDTypeCount];
  std::array<nb::object, 16> devices;
  nb::object dtype_name = nb::steal(PyUnicode_InternFromString("dtype")),
             device_name = nb::steal(PyUnicode_InternFromString("device"));
  nb::object names = nb::make_tuple(dtype_name, device_name);

  Torch() {
    const nb::object torch = nb::module_::import_("torch");
    empty_strided = torch.attr("empty_strided"), device_class = torch.attr("device");
  }
  const nb::object& dtype(DType d) {
    nb::object& cached = dtypes[static_cast<int>(d)];
    if (!cached.is_valid()) cached = nb::module_::import_("torch").attr(array_name(d));
    return cached;
  }
  nb::object device(int index) {
    if (index >= static_cast<int>(devices.size())) return device_class("cuda", index);
    nb::object& cached = devices[static_cast<std::size_t>(index)];
    if (!cached.is_valid()) cached = device_class("cuda", index);
    return cached;
  }
};

nb::object tuple_of(const Shape& s) {
  nb::object tuple = nb::steal(PyTuple_New(s.rank()));
  for (int i = 0; i < s.rank(); ++i) PyTuple_SET_ITEM(tuple.ptr(), i, PyLong_FromLongLong(s[i]));
  return tuple;
}

}  // namespace

std::shared_ptr<const Ways>& preferred_ways() {
  static std::shared_ptr<const Ways> ways;
  return ways;
}

#if HPCDL_CUDA

GpuTurn::GpuTurn(const Framework& framework, Device device, StepParams* mirror)
    : stream_(Stream::borrowed(device, current_queue(framework, device), callers_pool(), mirror)) {
  stream_.set_ways(preferred_ways());
  int now = 0;
  cuda::check(cudaGetDevice(&now), "cudaGetDevice");
  if (now == device.index) return;
  cuda::check(cudaSetDevice(device.index), "cudaSetDevice");
  before_ = now;
}

GpuTurn::~GpuTurn() {
  if (before_ >= 0) cudaSetDevice(before_);
}

#endif

nb::object gpu_array(std::string_view op, const Framework& framework, Device device, const Spec& spec,
                     const Shape& strides, Tensor& place) {
  require(framework.torch, op, "results on a GPU are PyTorch tensors: pass PyTorch tensors, or out=");
  static auto* torch = new Torch;
  const nb::object shape = tuple_of(spec.shape), steps = tuple_of(strides), gpu = torch->device(device.index);
  PyObject* arguments[] = {nullptr, shape.ptr(), steps.ptr(), torch->dtype(spec.dtype).ptr(), gpu.ptr()};
  nb::object made = nb::steal(PyObject_Vectorcall(torch->empty_strided.ptr(), arguments + 1,
                                                  2 | PY_VECTORCALL_ARGUMENTS_OFFSET, torch->names.ptr()));
  if (!made.is_valid()) nb::raise_python_error();
  place = Array(op, "result", made).tensor();
  return made;
}

}  // namespace hpcdl::python
