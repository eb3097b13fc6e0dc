// Weights of linear layers that are packed once.

#include "hpcdl/ops/linear/packed.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

PackedWeight pack(nb::handle w, nb::handle dtype) {
  Call call("pack_linear");
  const View v = call.in("w", w, {Type::floating, Layout::matrix});
  require(!v.device().is_cuda(), call.op(),
          "only the CPU's products read packed weights, and w is on {}: pass w to linear()", device_name(v.device()));
  require(v.rank() == 2, call.op(), "w must be (N, K), got {}", to_string(v.spec()));
  const DType x = dtype.is_none() ? v.dtype() : dtype_from(call.op(), dtype);
  require_type(x == DType::f32 || x == DType::bf16, call.op(), "dtype must be float32 or bfloat16 on the CPU, got {}",
               array_name(x));
  PackedWeight r;
  call.run([&](Stream& s) {
    if (v.rows_are_uniform()) r = PackedWeight(s.pool(), v, x);
    else
      r = PackedWeight(s.pool(), View(v.data(), {{v[1], v[0]}, v.dtype()}, Shape{v.strides()[1], 1}, v.device()), x,
                       true);
  });
  return r;
}

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<PackedWeight>(
      m, "PackedWeight",
      R"(A weight (N, K) of linear() in the order in which products on the CPU read it. pack_linear makes it.

It is a copy: the matrix that it was made from may change or be freed.)")
      .def(
          "__init__",
          [](PackedWeight* self, nb::handle w, nb::handle dtype) { new (self) PackedWeight(pack(w, dtype)); },
          anything("w"), nb::kw_only(), anything("dtype") = nb::none(),
          nb::sig("def __init__(self, w: Array, *, dtype: typing.Any | None = None) -> None"),
          "The same as pack_linear().")
      .def_prop_ro(
          "shape", [](const PackedWeight& w) { return std::tuple(w.spec().shape[0], w.spec().shape[1]); },
          nb::sig("def shape(self) -> tuple[int, int]"), "(N, K)")
      .def_prop_ro(
          "dtype", [](const PackedWeight& w) { return std::string(array_name(w.spec().dtype)); },
          nb::sig("def dtype(self) -> str"), "Data type of the x that it is packed for: \"float32\" or \"bfloat16\".")
      .def_prop_ro(
          "nbytes", [](const PackedWeight& w) { return w.bytes(); }, nb::sig("def nbytes(self) -> int"),
          "Bytes that it takes in memory: those of a matrix in `dtype`, with N and K rounded up to whole vectors.");
  m.def("pack_linear", pack, anything("w"), nb::kw_only(), anything("dtype") = nb::none(),
        nb::sig("def pack_linear(w: Array, *, dtype: typing.Any | None = None) -> PackedWeight"),
        R"(The weight w (N, K), float32 or bfloat16, packed for linear(x, packed, ...) on the CPU.

Use it for weights that do not change between calls: linear() packs any other weight in every call. w: rows or
columns dense. dtype: that of x (None: of w); a float32 weight is rounded for products in bfloat16. Results equal
those with w itself, bit for bit if x has at least 7 rows.)");
}

}  // namespace hpcdl::python
