// 4-bit weights: quantising, packing, and the product with them.

#include "hpcdl/quant/int4.h"

#include <nanobind/stl/tuple.h>

#include <array>
#include <cmath>

#include "hpcdl/core/convert.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/int4_device.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/words.h"

namespace hpcdl::python {
namespace {

constexpr Form kScales{Type::floating, Layout::contiguous};

/// A quantised matrix: made here, or the caller's arrays, which it keeps alive.
struct Int4Weight {
  quant::Int4Matrix own;
  std::array<nb::object, 3> given;
  std::array<OwnedTensor, 2> copies;  // scale and offset, if they were given as float32 or row by row
  int4::Weight w;
  Framework framework;
  nn::RoundingError error;
  nb::object errors;  // on a GPU: squared error and squared weights of every group, (N, K/G, 2)
  bool measured = false;
  bool frozen = false;

  double relative_error() const {
    if (!errors.is_valid()) return error.relative_rms();
    const nb::object sums = errors.attr("double")().attr("sum")(nb::make_tuple(0, 1)).attr("tolist")();
    const double squared = nb::cast<double>(nb::object(sums[0])), origin = nb::cast<double>(nb::object(sums[1]));
    return origin > 0 ? std::sqrt(squared / origin) : origin;
  }
};

Int4Weight weight_of(nb::handle packed, nb::handle scale, nb::handle offset, bool tiled = true);

#if HPCDL_CUDA
/// On the GPU of w. The errors stay there, too, until they are read.
Int4Weight quantize_there(Call& call, const View& w, const nn::CodecOptions& o) {
  const auto n = w[0], k = w[1];
  Result packed = call.out("packed", nb::none(), int4::packed_spec(n, k)),
         scale = call.out("scale", nb::none(), int4::scale_spec(n, k, o.group)),
         offset = call.out_if(!o.symmetric, "offset", nb::none(), int4::scale_spec(n, k, o.group)),
         errors = call.out("errors", nb::none(), {{n, k / o.group, 2}, DType::f32});
  call.run([&](Stream& s) { cuda::quantize_int4(s, {packed, scale, offset}, errors, w, o.search); });
  Int4Weight r = weight_of(call.give(packed), call.give(scale), call.give(offset));
  r.measured = true, r.errors = call.give(errors);
  return r;
}
#endif

Int4Weight quantize(nb::handle w, nb::handle group, nb::handle symmetric, nb::handle search) {
  Call call("int4_quantize");
  const View v = call.in("w", w);
  require(v.rank() == 2, call.op(), "w must be (N, K), got {}", to_string(v.spec()));
  const nn::CodecOptions o{.group = integer(call.op(), "group", group),
                           .symmetric = flag(call.op(), "symmetric", symmetric),
                           .search = flag(call.op(), "search", search)};
  quant::require_fit(quant::int4_codec, call.op(), v[1], o);
#if HPCDL_CUDA
  if (v.device().is_cuda()) return quantize_there(call, v, o);
#endif
  Int4Weight r;
  r.framework = call.framework(), r.measured = true;
  call.run([&](Stream& s) { r.own = quant::quantize_int4(s.pool(), v, o, false, &r.error, "w"); });
  r.w = r.own.weight();
  return r;
}

/// Brings scales from rows to the order of the kernels (int4_layout.h), by PyTorch on their device.
nb::object tiled_there(nb::handle scale) {
  const auto n = nb::cast<std::int64_t>(scale.attr("shape")[0]), whole = n / int4::kTileRows * int4::kTileRows;
  const nb::object tiles = scale.attr("narrow")(0, 0, whole)
                               .attr("reshape")(-1, int4::kTileRows, scale.attr("shape")[1])
                               .attr("transpose")(1, 2)
                               .attr("reshape")(-1),
                   rest = scale.attr("narrow")(0, whole, n - whole).attr("t")().attr("reshape")(-1);
  return nb::module_::import_("torch").attr("cat")(nb::make_tuple(tiles, rest)).attr("reshape")(scale.attr("shape"));
}

/// The same on the CPU, rounded to bfloat16 if they are float32.
void tile_scales(const Tensor& to, const View& from) {
  const std::int64_t n = from[0], groups = from[1];
  bf16* out = to.ptr<bf16>();
  for (std::int64_t first = 0; first < n; first += int4::kTileRows)
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t r = first; r < first + int4::tile_rows(first, n); ++r) {
        const std::int64_t at = r * groups + g;
        *out++ = from.dtype() == DType::bf16 ? from.ptr<bf16>()[at] : bf16(from.ptr<float>()[at]);
      }
}

/// Scales in the form that kernels read. In tiles: bfloat16 in place, float32 (NumPy has no bfloat16) rounded to it.
View scales(Call& call, const char* name, nb::handle object, bool tiled, nb::object& keep, OwnedTensor& copy) {
  View v = call.in(name, object, kScales);
  require(v.rank() == 2, call.op(), "{} must be (N, K/G), got {}", name, to_string(v.spec()));
  keep = nb::borrow(object);
  if (v.dtype() == DType::bf16 && tiled) return v;
  if (v.device().is_cuda()) {
    require_type(v.dtype() == DType::bf16, call.op(), "{} must be bfloat16 on a GPU: pass {}.bfloat16()", name, name);
    keep = tiled_there(object);
    return call.in(name, keep, kScales);
  }
  copy = OwnedTensor(Spec{v.shape(), DType::bf16});
  if (!tiled) tile_scales(copy.tensor, v);
  else
    for (std::int64_t i = 0; i < v.size(); ++i) copy.tensor.ptr<bf16>()[i] = bf16(v.ptr<float>()[i]);
  return copy.tensor;
}

Int4Weight weight_of(nb::handle packed, nb::handle scale, nb::handle offset, bool tiled) {
  Call call("Int4Weight");
  Int4Weight r;
  r.w.packed = call.in("packed", packed, kBytes);
  r.given[0] = nb::borrow(packed);
  r.w.scale = scales(call, "scale", scale, tiled, r.given[1], r.copies[0]);
  if (!offset.is_none()) r.w.offset = scales(call, "offset", offset, tiled, r.given[2], r.copies[1]);
  int4::require_weight(call.op(), r.w.packed.spec(), r.w.scale.spec(), r.w.offset ? r.w.offset.spec() : Spec());
  r.framework = call.framework();
  return r;
}

void make_weight(Int4Weight* self, nb::handle packed, nb::handle scale, nb::handle offset, nb::handle tiled) {
  new (self) Int4Weight(weight_of(packed, scale, offset, flag("Int4Weight", "tiled", tiled)));
}

/// A copy on another PyTorch device.
Int4Weight moved(const Int4Weight& w, nb::handle device) {
  require_type(w.framework.torch, "Int4Weight", "to() is for weights made of PyTorch tensors");
  const auto part = [&](const View& v) {  // w outlives the copy
    if (!v) return nb::object(nb::none());
    const nb::object view =
        view_array(w.framework, nb::none(), Tensor(const_cast<void*>(v.data()), v.spec(), v.device()), false);
    return nb::object(view.attr("to")(device, anything("copy") = true));
  };
  Int4Weight r = weight_of(part(w.w.packed), part(w.w.scale), part(w.w.offset));
  r.error = w.error, r.errors = w.errors, r.measured = w.measured;
  return r;
}

/// Waits for queued work, so that the parts are complete.
nb::object freeze(nb::handle self) {
  auto& w = *nb::inst_ptr<Int4Weight>(self);
#if HPCDL_CUDA
  if (w.w.packed.device().is_cuda()) {
    Call call("Int4Weight.freeze");
    call.in("packed", w.given[0], kBytes);
    call.run([](Stream& s) { s.synchronize(); });
  }
#endif
  w.frozen = true;
  return nb::borrow(self);
}

nb::object part(nb::handle self, const View& v, bool scale) {
  const auto& w = *nb::inst_ptr<Int4Weight>(self);
  if (!v) return nb::none();
  if (scale && w.framework.kind == Framework::Kind::numpy) {  // NumPy has no bfloat16: exact in float32
    Block wide(4 * v.size());
    const Tensor t(wide.data(), {v.shape(), DType::f32});
    for (std::int64_t i = 0; i < v.size(); ++i) t.ptr<float>()[i] = v.ptr<bf16>()[i];
    return to_array(w.framework, std::move(wide), t);
  }
  return view_array(w.framework, nb::borrow(self), Tensor(const_cast<void*>(v.data()), v.spec(), v.device()), false);
}

void require_together(std::string_view op, Device x, const Int4Weight& w) {
  if (x != w.w.packed.device()) [[unlikely]]
    fail(op, "x is on {} and the weight on {}: pass weight.to(x.device)", device_name(x),
         device_name(w.w.packed.device()));
}

/// Runs host code on the pool, or GPU code on its stream.
template <class Cpu, class Gpu> void run_either(Call& call, Cpu&& cpu, [[maybe_unused]] Gpu&& gpu) {
  call.run([&](Stream& s) {
#if HPCDL_CUDA
    if (s.device().is_cuda()) return gpu(s);
#endif
    cpu(s.pool());
  });
}

const Int4Weight& weight_in(const Call& call, nb::handle given) {
  if (!nb::isinstance<Int4Weight>(given)) [[unlikely]]
    require_type(false, call.op(), "weight must be an Int4Weight, got {}: make one with int4_quantize", kind_of(given));
  return *nb::inst_ptr<Int4Weight>(given);
}

nb::object dequantize(nb::handle weight, nb::handle dtype, nb::handle out) {
  Call call("int4_dequantize");
  const Int4Weight& w = weight_in(call, weight);
  call.set_framework(w.framework);
  call.set_device(w.w.packed.device());
  Result r = call.out("out", out, {{w.w.n(), w.w.k()}, dtype_from(call.op(), dtype)});
  require_together(call.op(), call.device(), w);
  run_either(
      call, [&](Pool& p) { quant::dequantize_int4(p, r, w.w); }, [&](auto& s) { cuda::dequantize_int4(s, r, w.w); });
  return call.give(r);
}

nb::object matmul(nb::handle x, nb::handle weight, nb::handle bias, nb::handle residual, nb::handle activation,
                  nb::handle exact, nb::handle out) {
  Call call("int4_matmul");
  const Int4Weight& w = weight_in(call, weight);
  constexpr Int4Activation all[] = {Int4Activation::none, Int4Activation::relu, Int4Activation::gelu,
                                    Int4Activation::silu};
  const Int4Linear::Args a{
      .exact = flag(call.op(), "exact", exact),
      .activation = all[choose(call.op(), "activation", activation, {"none", "relu", "gelu_tanh", "silu"})],
      .constant_weights = w.frozen};
  const View v = call.in("x", x), b = call.in_or_absent("bias", bias, kContiguous),
             r = call.in_or_absent("residual", residual);
  require_together(call.op(), call.device(), w);
  const Spec packed = w.w.packed.spec(), scale = w.w.scale.spec(), offset = w.w.offset ? w.w.offset.spec() : Spec();
  Result y = call.out("out", out, Int4Linear::infer(v.spec(), packed, scale, offset, b.spec(), r.spec(), a), r);
  std::array<Tensor, 3> scratch;
  for (std::size_t i = 0; const Spec& s : Int4Linear::scratch(v.spec(), packed, scale, offset, b.spec(), r.spec(), a))
    scratch[i++] = call.scratch(s);
  if (y.tensor.size() > 0)
    call.run([&](Stream& s) {
      Int4Linear::forward(s, y, v, w.w.packed, w.w.scale, w.w.offset, b, r, scratch[0], scratch[1], scratch[2], a);
    });
  return call.give(y);
}

nb::object pack(nb::handle q, nb::handle out) {
  Call call("int4_pack");
  const View v = call.in("q", q, kBytes);
  require(v.rank() == 2 && v[1] % 8 == 0, call.op(), "q must be (N, K) with K a multiple of 8, got {}",
          to_string(v.spec()));
  std::uint8_t all = 0;
  if (!v.device().is_cuda())
    for (std::int64_t i = 0; i < v.size(); ++i) all |= v.ptr<std::uint8_t>()[i];
  require(all < 16, call.op(), "q must hold values 0 .. 15");
  Result r = call.out("out", out, int4::packed_spec(v[0], v[1]), {}, {}, Layout::contiguous);
  run_either(call, [&](Pool& p) { quant::pack_int4(p, r, v); }, [&](auto& s) { cuda::pack_int4(s, r, v); });
  return call.give(r);
}

nb::object unpack(nb::handle packed, nb::handle out) {
  Call call("int4_unpack");
  const View v = call.in("packed", packed, kBytes);
  require(v.rank() == 2 && v[1] % 4 == 0, call.op(), "packed must be (N, K/2) with K a multiple of 8, got {}",
          to_string(v.spec()));
  Result r = call.out("out", out, {{v[0], 2 * v[1]}, DType::u8}, {}, {}, Layout::contiguous);
  run_either(call, [&](Pool& p) { quant::unpack_int4(p, r, v); }, [&](auto& s) { cuda::unpack_int4(s, r, v); });
  return call.give(r);
}

void bind_weight(nb::module_& m) {
  nb::class_<Int4Weight>(
      m, "Int4Weight",
      R"(A matrix (N, K) of 4-bit weights: w = scale * (q - 8) + offset, with a scale and an offset for each row and group of
G inputs.

int4_quantize makes it, or this constructor from arrays. packed: uint8 (N, K/2), as int4_pack returns it; it is used in
place. scale and offset: (N, K/G), row by row, bfloat16, or float32 that is rounded to bfloat16; they are copied into the
order of the kernels, tiles of 16 rows. tiled=True: scale and offset are already in that order, as in the safetensors
files that `hpcdl quantize` writes and as the properties scale and offset return them; bfloat16 is then used in place.)")
      .def("__init__", make_weight, anything("packed"), anything("scale"), anything("offset") = nb::none(),
           nb::kw_only(), anything("tiled") = false,
           nb::sig("def __init__(self, packed: typing.Any, scale: typing.Any, offset: typing.Any | None = None, *, "
                   "tiled: bool = False) -> None"))
      .def("to", moved, anything("device"), nb::sig("def to(self, device: typing.Any) -> Int4Weight"),
           "A copy on another PyTorch device, such as \"cuda\".")
      .def("freeze", freeze, nb::sig("def freeze(self) -> Int4Weight"),
           "Promises that the parts do not change any more, waits for the work that is queued on the current stream, "
           "and\nreturns the weight. Products on a GPU may then read it before the previous kernel has ended, which "
           "makes\nsingle rows faster. Not while a CUDA graph is captured.")
      .def_prop_ro(
          "shape", [](const Int4Weight& w) { return std::tuple(w.w.n(), w.w.k()); },
          nb::sig("def shape(self) -> tuple[int, int]"), "(N, K)")
      .def_prop_ro(
          "group", [](const Int4Weight& w) { return w.w.group(); }, nb::sig("def group(self) -> int"),
          "Inputs that share a scale: 32, 64 or 128.")
      .def_prop_ro(
          "symmetric", [](const Int4Weight& w) { return !w.w.offset; }, nb::sig("def symmetric(self) -> bool"),
          "True without offsets.")
      .def_prop_ro(
          "nbytes", [](const Int4Weight& w) { return w.w.packed.bytes() + w.w.scale.bytes() + w.w.offset.bytes(); },
          nb::sig("def nbytes(self) -> int"), "Bytes of all parts.")
      .def_prop_ro(
          "relative_error",
          [](const Int4Weight& w) { return w.measured ? nb::object(nb::float_(w.relative_error())) : nb::none(); },
          nb::sig("def relative_error(self) -> float | None"),
          "sqrt(sum (w - w')^2 / sum w^2) as int4_quantize measured it; otherwise None.")
      .def_prop_ro(
          "packed", [](nb::handle self) { return part(self, nb::inst_ptr<Int4Weight>(self)->w.packed, false); },
          nb::sig("def packed(self) -> typing.Any"), "uint8 (N, K/2), a view.")
      .def_prop_ro(
          "scale", [](nb::handle self) { return part(self, nb::inst_ptr<Int4Weight>(self)->w.scale, true); },
          nb::sig("def scale(self) -> typing.Any"), "bfloat16 (N, K/G) in tiles, a view; for NumPy a float32 copy.")
      .def_prop_ro(
          "offset", [](nb::handle self) { return part(self, nb::inst_ptr<Int4Weight>(self)->w.offset, true); },
          nb::sig("def offset(self) -> typing.Any | None"), "Like scale; None if symmetric.");
}

}  // namespace

void bind_int4(nb::module_& m) {
  bind_weight(m);
  m.def(
      "int4_quantize", quantize, anything("w"), nb::kw_only(), anything("group") = 64, anything("symmetric") = true,
      anything("search") = true,
      nb::sig(
          "def int4_quantize(w: Array, *, group: int = 64, symmetric: bool = True, search: bool = True) -> Int4Weight"),
      R"(The matrix w (N, K), float32 or bfloat16, in 4 bits.

group: 32, 64 or 128, dividing K: inputs that share a scale. search: choose scales by their mean squared
error. ValueError if a weight is NaN or infinite; on a GPU its group becomes NaN.)");
  m.def("int4_dequantize", dequantize, anything("weight"), nb::kw_only(), anything("dtype") = "float32",
        anything("out") = nb::none(),
        nb::sig("def int4_dequantize(weight: Int4Weight, *, dtype: typing.Any = 'float32', out: typing.Any | None = "
                "None) -> typing.Any"),
        "The matrix (N, K) that the 4-bit weights represent. dtype: float32 or bfloat16.");
  m.def("int4_matmul", matmul, anything("x"), anything("weight"), anything("bias") = nb::none(), nb::kw_only(),
        anything("residual") = nb::none(), anything("activation") = "none", anything("exact") = false,
        anything("out") = nb::none(),
        nb::sig("def int4_matmul(x: Array, weight: Int4Weight, bias: Array | None = None, *, residual: Array | None = "
                "None, activation: str = "
                "'none', exact: bool = False, out: Array | None = None) -> Array"),
        R"(activation(x @ weight.T + bias) + residual with 4-bit weights (N, K).

x: (..., K), float32 or bfloat16; rows dense. bias: (N). residual: like the result. activation: "none",
"relu", "gelu_tanh", "silu". x is rounded to 8 bits for each row and group, so that products are integer; with
exact it is not rounded, which takes 1.6 to 3 times as long. On Hopper, hundreds of rows of bfloat16 are not
rounded; the weights are rounded to bfloat16 instead.)");
  m.def("int4_pack", pack, anything("q"), nb::kw_only(), anything("out") = nb::none(),
        nb::sig("def int4_pack(q: Array, *, out: Array | None = None) -> Array"),
        "Values 0 .. 15, uint8 (N, K) with K a multiple of 8, in the order of the kernels: uint8 (N, K/2). ValueError "
        "for larger values; on a GPU their low four bits are taken.");
  m.def("int4_unpack", unpack, anything("packed"), nb::kw_only(), anything("out") = nb::none(),
        nb::sig("def int4_unpack(packed: Array, *, out: Array | None = None) -> Array"),
        "The inverse of int4_pack: uint8 (N, K).");
}

}  // namespace hpcdl::python
