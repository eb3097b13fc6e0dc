#include <algorithm>
#include <cstring>
#include <string>

#include "hpcdl/core/describe.h"
#include "python/src/arguments.h"
#include "python/src/array.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

// Known types, with how to read them. Entries hold references to their types, so that an address is never reused.
struct Known {
  PyTypeObject* type = nullptr;
  Framework framework;
  bool is_torch = false, masked = false;
};
constexpr int kKnown = 16;
Known known[kKnown];
int known_next = 0;

bool is_instance_of(nb::handle type, const char* module, const char* name) {
  PyObject* loaded = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  if (!loaded) return false;
  const nb::object base = nb::getattr(nb::handle(loaded), name, nb::none());
  return !base.is_none() && PyType_Check(base.ptr()) &&
         PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), reinterpret_cast<PyTypeObject*>(base.ptr()));
}

const dl::ExchangeApi* exchange_api(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  const auto* api = static_cast<const dl::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!api) PyErr_Clear();
  while (api && api->version.major != dl::kMajor) api = api->previous;
  return api && api->borrow && api->import_managed ? api : nullptr;
}

const Known& look_up(nb::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  for (const Known& k : known)
    if (k.type == type) return k;
  const nb::handle t(reinterpret_cast<PyObject*>(type));
  Known k;
  k.is_torch = is_instance_of(t, "torch", "Tensor");
  if (const auto* api = exchange_api(t)) k.framework = {Framework::Kind::exchange, api, k.is_torch};
  else if (k.is_torch) k.framework = {Framework::Kind::old_torch, nullptr, true};
  else k.framework = {Framework::Kind::numpy, nullptr, false};
  k.masked = is_instance_of(t, "numpy.ma", "MaskedArray");
  Py_INCREF(type);
  k.type = type;
  Known& place = known[known_next++ % kKnown];
  Py_XDECREF(place.type);
  return place = k;
}

/// A direct call of a kernel records nothing for autograd: better an error than silently missing gradients.
void require_no_gradient(std::string_view op, std::string_view name, nb::handle tensor) {
  static PyObject* attribute = PyUnicode_InternFromString("requires_grad");
  const nb::object wanted = nb::steal(PyObject_GetAttr(tensor.ptr(), attribute));
  if (!wanted.is_valid()) nb::raise_python_error();
  if (wanted.ptr() != Py_True) return;
  static const auto* enabled = new nb::object(nb::module_::import_("torch").attr("is_grad_enabled"));
  require((*enabled)().ptr() != Py_True, op,
          "{} requires a gradient, which this call would not record: use hpcdl.torch, torch.no_grad() or {}.detach()",
          name, name);
}

[[noreturn]] void fail_no_array(std::string_view op, std::string_view name, nb::handle object) {
  const bool numbers = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyFloat_Check(object.ptr()) ||
                       PyLong_Check(object.ptr());
  throw TypeError(
      fmt::format("[{}] {} must be a NumPy array, a PyTorch tensor or another array with __dlpack__, got {}{}", op,
                  name, kind_of(object), numbers ? ": pass numpy.array(..., \"float32\")" : ""));
}

/// PyTorch may delay a negation (the imaginary part of a conjugate, torch._neg_view), which DLPack does not report.
void require_no_negation(std::string_view op, std::string_view name, nb::handle tensor) {
  require(!nb::cast<bool>(tensor.attr("is_neg")()), op,
          "{} is a view whose negation is still pending: pass {}.resolve_neg()", name, name);
}

/// Turns the error that a framework has raised for a tensor without plain memory (sparse, meta, ...) into one of ours.
[[noreturn]] void fail_unreadable(std::string_view op, std::string_view name) {
  nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  throw Error(fmt::format("[{}] {} cannot be read: {}", op, name, text.substr(0, text.find('\n'))));
}

DType from_dlpack(dl::DataType t) {
  if (t.lanes != 1) return DType::none;
  const auto sized = [&](DType b1, DType b2, DType b4, DType b8) {
    return t.bits == 8 ? b1 : t.bits == 16 ? b2 : t.bits == 32 ? b4 : t.bits == 64 ? b8 : DType::none;
  };
  switch (t.code) {
    case dl::kInt: return sized(DType::i8, DType::i16, DType::i32, DType::i64);
    case dl::kUInt: return sized(DType::u8, DType::u16, DType::u32, DType::u64);
    case dl::kFloat: return sized(DType::none, DType::f16, DType::f32, DType::f64);
    case dl::kBfloat: return t.bits == 16 ? DType::bf16 : DType::none;
    case dl::kBool: return t.bits == 8 ? DType::boolean : DType::none;
    default: return DType::none;
  }
}

/// The buffer protocol's letters, in native byte order.
DType from_format(const char* format, Py_ssize_t size) {
  if (!format) return size == 1 ? DType::u8 : DType::none;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 0 || format[1] != 0) return DType::none;
  const auto sized = [&](DType b1, DType b2, DType b4, DType b8) {
    return size == 1 ? b1 : size == 2 ? b2 : size == 4 ? b4 : size == 8 ? b8 : DType::none;
  };
  switch (*format) {
    case 'f':
    case 'd':
    case 'e': return sized(DType::none, DType::f16, DType::f32, DType::f64);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q': return sized(DType::i8, DType::i16, DType::i32, DType::i64);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q': return sized(DType::u8, DType::u16, DType::u32, DType::u64);
    case '?': return DType::boolean;
    default: return DType::none;
  }
}

Tensor with_clean_strides(void* data, Spec spec, Shape strides, Device device = {}) {
  const Tensor t(data, spec, strides, device);
  if (t.is_contiguous()) return Tensor(data, spec, device);
  return Tensor(data, spec, clean_strides(spec.shape, strides), device);
}

#if HPCDL_CUDA
constexpr bool kGpuKernels = true;
#else
constexpr bool kGpuKernels = false;
#endif

Device device_from(std::string_view op, std::string_view name, dl::Device d) {
  if (d.type == dl::kCpu || d.type == dl::kCudaHost) return Device::cpu();
  require(d.type == dl::kCuda || d.type == dl::kCudaManaged, op,
          "{} must be in the memory of the CPU or of an NVIDIA GPU, got DLPack device type {}", name, d.type);
  if (!kGpuKernels) [[unlikely]]
    fail(op,
         "{} is on cuda:{}, but this hpcdl was built without CUDA: pass {}.cpu(), or install hpcdl again on a machine "
         "with nvcc (docs/python.md)",
         name, d.index, name);
  return Device::cuda(d.index);
}

bool is_on_gpu(nb::handle object) {
  const nb::object device = nb::getattr(object, "__dlpack_device__", nb::none());
  return !device.is_none() && nb::cast<int>(nb::object(device()[0])) == dl::kCuda;
}

void require_rank(std::string_view op, std::string_view name, int rank) {
  require(rank <= Shape::kMaxRank, op, "{} must have at most {} dimensions, got {}", name, Shape::kMaxRank, rank);
}

void require_aligned(std::string_view op, std::string_view name, const Tensor& t) {
  const auto at = reinterpret_cast<std::uintptr_t>(t.data());
  require(at % static_cast<std::uintptr_t>(std::max(dtype_bytes(t.dtype()), 1)) == 0, op,
          "{} does not start at a multiple of its element size: pass a copy", name);
}

}  // namespace

void Array::Release::operator()(Py_buffer* b) const {
  PyBuffer_Release(b);
  delete b;
}

Array::Array(std::string_view op, std::string_view name, nb::handle object) {
  const Known type = look_up(object);
  framework_ = type.framework;
  if (type.is_torch) require_no_gradient(op, name, object);
  if (framework_.kind == Framework::Kind::exchange) {
    dl::Tensor t;
    if (framework_.api->borrow(object.ptr(), &t)) fail_unreadable(op, name);
    take(op, name, t);
    if (type.is_torch) require_no_negation(op, name, object);
    return;
  }
  require_type(!type.masked, op, "{} is a masked array: pass its .data or .filled()", name);
  if (framework_.kind == Framework::Kind::numpy && PyObject_CheckBuffer(object.ptr())) {
    from_buffer(op, name, object, DType::none);
    return;
  }
  if (!nb::hasattr(object, "__dlpack__")) [[unlikely]]
    fail_no_array(op, name, object);
  if (type.is_torch) require_no_negation(op, name, object);
  from_capsule(op, name, object);
}

void Array::from_buffer(std::string_view op, std::string_view name, nb::handle object, DType forced) {
  auto b = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), b.get(), PyBUF_STRIDES | PyBUF_FORMAT)) {
    PyErr_Clear();
    // bfloat16 of the package ml_dtypes: NumPy has no format letter for it.
    const nb::object dtype = nb::getattr(object, "dtype", nb::none());
    const std::string found = dtype.is_none() ? kind_of(object) : nb::str(dtype).c_str();
    require_type(found == "bfloat16" && forced == DType::none, op,
                 "{} has elements of type {}, which no kernel supports", name, found);
    return from_buffer(op, name, object.attr("view")("uint16"), DType::bf16);
  }
  buffer_.reset(b.release());
  const Py_buffer& v = *buffer_;
  require_rank(op, name, v.ndim);
  const DType dtype = forced != DType::none ? forced : from_format(v.format, v.itemsize);
  require_type(dtype != DType::none, op, "{} has elements of format '{}', which no kernel supports", name,
               v.format ? v.format : "");
  Spec spec{{}, dtype};
  for (int i = 0; i < v.ndim; ++i) spec.shape.push_back(v.shape[i]);
  Shape strides = contiguous_strides(spec.shape);
  for (int i = 0; v.strides && i < v.ndim; ++i) {  // arrays of ctypes have none
    require(v.strides[i] % v.itemsize == 0 || v.shape[i] <= 1, op,
            "{} has a stride of {} bytes, which is not a multiple of its element size: pass a copy", name,
            v.strides[i]);
    strides[i] = v.strides[i] / v.itemsize;
  }
  tensor_ = with_clean_strides(v.buf, spec, strides);
  writable_ = !v.readonly;
  require_aligned(op, name, tensor_);
}

void Array::from_capsule(std::string_view op, std::string_view name, nb::handle object) {
  nb::object source = nb::borrow(object);
  if (framework_.torch) source = source.attr("detach")();
  nb::dict options;
  if (is_on_gpu(source)) {
    require(
        framework_.torch || !kGpuKernels, op,
        "{} is an array of {} on a GPU; expected a PyTorch tensor: pass torch.from_dlpack({}), which copies nothing",
        name, kind_of(object), name);
    options["stream"] = -1;  // calls are queued on the current stream of PyTorch, so there is nothing to wait for
  }
  const auto exported = [&] { return source.attr("__dlpack__")(**options); };
  nb::object capsule;
  try {
    options["max_version"] = nb::make_tuple(dl::kMajor, dl::kMinor);
    capsule = exported();
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) throw;
    nb::del(options["max_version"]);  // a producer from before 1.0
    capsule = exported();
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    versioned_.reset(static_cast<dl::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned")));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    require_type(versioned_->version.major == dl::kMajor, op, "{} uses DLPack {}, expected {}", name,
                 versioned_->version.major, dl::kMajor);
    writable_ = !(versioned_->flags & dl::kReadOnly);
    return take(op, name, versioned_->tensor);
  }
  require_type(PyCapsule_IsValid(capsule.ptr(), "dltensor"), op, "{}: __dlpack__ of {} returned no DLPack capsule",
               name, kind_of(object));
  managed_.reset(static_cast<dl::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")));
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  take(op, name, managed_->tensor);
}

void Array::take(std::string_view op, std::string_view name, const dl::Tensor& t) {
  const Device device = device_from(op, name, t.device);
  require_rank(op, name, t.ndim);
  const DType dtype = from_dlpack(t.dtype);
  require_type(dtype != DType::none, op,
               "{} has elements of DLPack type code {} with {} bits, which no kernel supports", name, int{t.dtype.code},
               int{t.dtype.bits});
  Spec spec{{}, dtype};
  for (int i = 0; i < t.ndim; ++i) spec.shape.push_back(t.shape[i]);
  Shape strides = contiguous_strides(spec.shape);
  if (t.strides)
    for (int i = 0; i < t.ndim; ++i) strides[i] = t.strides[i];
  tensor_ = with_clean_strides(static_cast<std::byte*>(t.data) + t.byte_offset, spec, strides, device);
  require_aligned(op, name, tensor_);
}

std::string device_name(Device device) { return device.is_cuda() ? fmt::format("cuda:{}", device.index) : "cpu"; }

}  // namespace hpcdl::python
