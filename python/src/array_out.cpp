#include <nanobind/stl/string.h>

#include <new>
#include <string>
#include <vector>

#include "python/src/array.h"
#include "python/src/bind.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

/// The Python object that owns memory: exports it as a buffer of bytes.
struct Memory {
  Block block;
  nb::object owner;  // instead of block
  std::byte* data = nullptr;
  Py_ssize_t bytes = 0;
  bool writable = true;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* m = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, m->data, m->bytes, m->writable ? 0 : 1, flags);
}
PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

dl::DataType to_dlpack(DType d) {
  const auto bits = static_cast<std::uint8_t>(8 * dtype_bytes(d));
  switch (d) {
    case DType::f32:
    case DType::f64:
    case DType::f16: return {dl::kFloat, bits, 1};
    case DType::bf16: return {dl::kBfloat, bits, 1};
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64: return {dl::kInt, bits, 1};
    case DType::boolean: return {dl::kBool, bits, 1};
    default: return {dl::kUInt, bits, 1};
  }
}

struct Exported {
  dl::ManagedVersioned managed;
  Block block;
  PyObject* owner = nullptr;
  std::int64_t shape[Shape::kMaxRank], strides[Shape::kMaxRank];
};

void release_exported(dl::ManagedVersioned* m) {
  auto* e = static_cast<Exported*>(m->context);
  if (e->owner && Py_IsInitialized()) {
    const nb::gil_scoped_acquire gil;
    Py_DECREF(e->owner);
  }
  delete e;
}

nb::object exchange_array(const dl::ExchangeApi& api, Block block, nb::object owner, const Tensor& t) {
  auto* e = new Exported{{}, std::move(block), owner.release().ptr(), {}, {}};
  for (int i = 0; i < t.rank(); ++i) e->shape[i] = t[i], e->strides[i] = t.strides()[i];
  const dl::Device device{t.device().is_cuda() ? dl::kCuda : dl::kCpu, t.device().index};
  e->managed = {{dl::kMajor, dl::kMinor},
                e,
                release_exported,
                0,
                {t.data(), device, t.rank(), to_dlpack(t.dtype()), e->shape, e->strides, 0}};
  void* object = nullptr;
  if (api.import_managed(&e->managed, &object)) {
    release_exported(&e->managed);
    nb::raise_python_error();
  }
  return nb::steal(static_cast<PyObject*>(object));
}

nb::object memory_object(Block block, nb::object owner, const Tensor& t, bool writable) {
  std::int64_t extent = t.size() > 0 ? 1 : 0;
  for (int i = 0; i < t.rank() && extent > 0; ++i) extent += (t[i] - 1) * t.strides()[i];
  return nb::cast(Memory{std::move(block), std::move(owner), static_cast<std::byte*>(t.data()),
                         extent * dtype_bytes(t.dtype()), writable});
}

nb::object tuple_of(const Shape& s, std::int64_t factor = 1) {
  nb::object tuple = nb::steal(PyTuple_New(s.rank()));
  for (int i = 0; i < s.rank(); ++i) PyTuple_SET_ITEM(tuple.ptr(), i, PyLong_FromLongLong(s[i] * factor));
  return tuple;
}

/// NumPy objects that make results, looked up once.
struct Numpy {
  nb::object ndarray, dtypes[kDTypeCount];
};

nb::object numpy_dtype(DType d) {
  static auto* numpy = new Numpy{nb::module_::import_("numpy").attr("ndarray"), {}};
  nb::object& cached = numpy->dtypes[static_cast<int>(d)];
  if (cached.is_valid()) return cached;
  const std::string name = array_name(d);
  if (d != DType::bf16 && !name.starts_with("float8"))
    return cached = nb::module_::import_("numpy").attr("dtype")(name);
  try {
    return cached = nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr(name.c_str()));
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_ImportError)) throw;
    throw TypeError(fmt::format("[numpy] NumPy has no {}: install ml_dtypes, or use PyTorch tensors", name));
  }
}

nb::object numpy_array(Block block, nb::object owner, const Tensor& t, bool writable) {
  static auto* ndarray = new nb::object(nb::module_::import_("numpy").attr("ndarray"));
  const nb::object dtype = numpy_dtype(t.dtype());
  const nb::object memory = memory_object(std::move(block), std::move(owner), t, writable);
  if (t.is_contiguous()) return (*ndarray)(tuple_of(t.shape()), dtype, memory);
  return (*ndarray)(tuple_of(t.shape()), dtype, memory, 0, tuple_of(t.strides(), dtype_bytes(t.dtype())));
}

nb::object old_torch_tensor(Block block, nb::object owner, const Tensor& t) {
  const nb::object torch = nb::module_::import_("torch");
  const nb::object dtype = torch.attr(array_name(t.dtype()));
  if (t.size() == 0) return torch.attr("empty")(tuple_of(t.shape()), nb::arg("dtype") = dtype);
  const nb::object flat =
      torch.attr("frombuffer")(memory_object(std::move(block), std::move(owner), t, true), nb::arg("dtype") = dtype);
  return flat.attr("as_strided")(tuple_of(t.shape()), tuple_of(t.strides()));
}

nb::object make(Framework f, Block block, nb::object owner, const Tensor& t, bool writable) {
  if (f.kind == Framework::Kind::exchange && !std::string_view(array_name(t.dtype())).starts_with("float8"))
    return exchange_array(*f.api, std::move(block), std::move(owner), t);
  require(!t.device().is_cuda(), "hpcdl", "memory of {} as an array needs PyTorch 2.10 or later",
          device_name(t.device()));
  if (f.kind == Framework::Kind::numpy) return numpy_array(std::move(block), std::move(owner), t, writable);
  return old_torch_tensor(std::move(block), std::move(owner), t);
}

}  // namespace

Framework framework_from_name(std::string_view name) {
  if (name == "numpy") return {Framework::Kind::numpy, nullptr};
  require(name == "torch", "hpcdl", "framework must be \"numpy\" or \"torch\", got \"{}\"", name);
  const nb::object empty = nb::module_::import_("torch").attr("empty")(0);
  return Array("hpcdl", "torch.empty(0)", empty).framework();
}

nb::object to_array(Framework framework, Block block, const Tensor& t) {
  return make(framework, std::move(block), {}, t, true);
}

nb::object view_array(Framework framework, nb::object owner, const Tensor& t, bool writable) {
  return make(framework, {}, std::move(owner), t, writable);
}

DType dtype_from(std::string_view op, nb::handle dtype) {
  std::string name = nb::isinstance<nb::str>(dtype) ? nb::cast<std::string>(dtype)
                     : PyType_Check(dtype.ptr())    ? nb::cast<std::string>(dtype.attr("__name__"))
                                                    : std::string(nb::str(dtype).c_str());
  if (const auto dot = name.rfind('.'); dot != std::string::npos) name.erase(0, dot + 1);
  for (const DType d : {DType::f32, DType::bf16, DType::f16})
    if (name == array_name(d)) return d;
  throw TypeError(fmt::format("[{}] dtype must be float32, bfloat16 or float16, got {}", op, name));
}

void bind_array(nb::module_& m) {
  nb::class_<Memory>(m, "_Memory", nb::type_slots(memory_slots), "Memory of a result, as a buffer of bytes.");
}

}  // namespace hpcdl::python
