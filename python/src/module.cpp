// The extension behind the package `hpcdl`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/typing.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/simd/wanted_isa.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/gpu.h"
#include "python/src/memory.h"
#include "python/src/runtime.h"
#include "python/src/type_error.h"

namespace hpcdl::python {

namespace nb = nanobind;

void bind_runtime(nb::module_& m) {
  m.def(
      "get_threads",
      [] {
        const nb::gil_scoped_release released;
        return threads();
      },
      nb::sig("def get_threads() -> int"), "Number of threads that calls compute with.");
  m.def(
      "set_threads",
      [](nb::handle given) {
        const auto n = integer("set_threads", "n", given);
        require(n >= 0 && n <= 1024, "set_threads",
                "expected 1 .. 1024 threads, or 0 for all that this process may use, got {}", n);
        const nb::gil_scoped_release released;
        set_threads(static_cast<int>(n));
      },
      anything("n"), nb::sig("def set_threads(n: int) -> None"),
      R"(Makes later calls compute with n threads.

0: as many as the process may use: affinity, cgroup quota, OMP_NUM_THREADS and HPCDL_THREADS, whichever allows least
(the initial state). Results do not depend on the number.)");
  m.def(
      "instruction_set", [] { return simd::isa_name(simd::active_isa()); }, nb::sig("def instruction_set() -> str"),
      "The instruction set of the kernels that run on this CPU: \"scalar\", \"avx2\", \"avx512\" or \"amx\" (the "
      "environment variable HPCDL_ISA lowers it when the module is imported).");
  m.def(
      "set_ways",
      [](nb::handle given) {
        std::string_view text;
        require_type(nb::try_cast(given, text), "set_ways", "ways must be a string such as \"attention=cudnn\", got {}",
                     kind_of(given));
        auto preferred = parse_preferred_ways(text, "set_ways");
        check_preferred_ways(preferred, "set_ways");
        preferred_ways() = preferred.empty()
                               ? nullptr
                               : std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = std::move(preferred)});
      },
      anything("ways"), nb::sig("def set_ways(ways: str) -> None"),
      R"(Makes later calls on a GPU compute in these ways wherever they are possible.

Such as "attention=cudnn conv2d=own"; "": in the fastest known ones (the initial state). Ways give results within the
same bounds, with different bits.)");
  m.def("cuda_devices", cuda_devices, nb::sig("def cuda_devices() -> int"),
        "Number of GPUs that this module can compute on; 0 if it was built without CUDA, or if there is no driver or "
        "no GPU.");
  m.def("cached_bytes", cached_bytes, nb::sig("def cached_bytes() -> int"),
        "Bytes of freed results that are kept for later ones.");
  m.def(
      "set_cache_limit",
      [](nb::handle given) {
        const auto bytes = integer("set_cache_limit", "bytes", given);
        require(bytes >= 0, "set_cache_limit", "expected a number of bytes, got {}", bytes);
        set_cache_limit(bytes);
      },
      anything("bytes"), nb::sig("def set_cache_limit(bytes: int) -> None"),
      "Keeps at most this many bytes of freed results and frees the rest. Initially: an eighth of the machine's "
      "memory.");
}

namespace {

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const TypeError& e) {
      PyErr_SetString(PyExc_TypeError, e.what());
    } catch (const Error& e) {
      const bool of_device =
          std::string_view(e.what()).starts_with("[cuda]");  // errors of the driver do not concern an argument
      PyErr_SetString(of_device ? PyExc_RuntimeError : PyExc_ValueError, e.what());
    }
  });
}

/// Adds an attribute to a type of nanobind. Its types do not accept attributes from Python, so it is written to
/// the type's dictionary.
void set_signature(nb::handle type, nb::handle property) {
  auto* python_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (!PyType_Check(type.ptr())) throw nb::type_error("expected a type");
  if (PyDict_SetItemString(python_type->tp_dict, "__signature__", property.ptr()) != 0) throw nb::python_error();
  PyType_Modified(python_type);
}

}  // namespace

}  // namespace hpcdl::python

NB_MODULE(_hpcdl, m) {
  using namespace hpcdl::python;
  nb::set_leak_warnings(
      false);  // objects that a thread or a traceback holds at the end of a program are not leaks of this module
  translate_errors();
  if (const auto wrong = hpcdl::simd::use_wanted_isa(std::getenv("HPCDL_ISA")); !wrong.empty())
    std::fprintf(stderr, "%s\n", wrong.c_str());
  m.attr("__version__") = HPCDL_VERSION;
  m.attr("Array") = nb::type_var("Array");
  bind_array(m);
  bind_runtime(m);
  bind_rows(m);
  bind_norm(m);
  bind_loss(m);
  bind_packed(m);
  bind_linear(m);
  bind_matmul(m);
  bind_attention(m);
  bind_int4(m);
  bind_adamw(m);
  bind_embedder(m);
  bind_engine(m);
  bind_files(m);
  bind_compare(m);
  m.def("_set_signature", set_signature, "The text that inspect.signature() reads for functions of this type.");
}
