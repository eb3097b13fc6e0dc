// Vectors of texts.

#include <fmt/ranges.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>

#include "hpcdl/models/compute_type.h"
#include "hpcdl/serve/loaded_encoder.h"
#include "python/src/bind.h"

namespace hpcdl::python {
namespace {

namespace nb = nanobind;

/// Python threads take turns.
struct SharedEncoder {
  explicit SharedEncoder(const serve::EncoderOptions& o) : encoder(o) {}
  std::mutex turn;
  serve::LoadedEncoder encoder;
};

std::shared_ptr<SharedEncoder> load(const std::string& model, const std::string& device, std::int64_t threads,
                                    const std::string& dtype) {
  require(threads >= 0 && threads <= 1024, "Embedder", "threads = {}: expected 1 to 1024, or 0 for all", threads);
  const auto choice = io::enum_of<models::ComputeChoice>(dtype);
  require(choice.has_value(), "Embedder", "dtype = \"{}\": expected {}", dtype,
          fmt::join(io::enum_words<models::ComputeChoice>(), ", "));
  return std::make_shared<SharedEncoder>(serve::EncoderOptions{
      .model = model, .device = device, .dtype = models::dtype_of(*choice), .threads = static_cast<int>(threads)});
}

/// The vectors one after the other, f32.
nb::bytes embed(SharedEncoder& e, const std::vector<std::string>& texts, bool truncate) {
  std::vector<std::vector<float>> vectors;
  {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(e.turn);
    std::vector<std::vector<std::int32_t>> ids;
    for (const auto& text : texts) ids.push_back(e.encoder.ids(text, truncate));
    vectors = e.encoder.embed(ids);
  }
  std::string all;
  for (const auto& v : vectors) all.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
  return nb::bytes(all.data(), all.size());
}

}  // namespace

void bind_embedder(nb::module_& m) {
  nb::class_<SharedEncoder>(m, "_Encoder")
      .def_static("load", load, nb::call_guard<nb::gil_scoped_release>(), nb::arg("model"), nb::arg("device"),
                  nb::arg("threads"), nb::arg("dtype"))
      .def("embed", embed, nb::arg("texts"), nb::arg("truncate"))
      .def_prop_ro("dimensions", [](const SharedEncoder& e) { return e.encoder.model().config().width; })
      .def_prop_ro("longest", [](const SharedEncoder& e) { return e.encoder.model().embedding().longest; });
}

}  // namespace hpcdl::python
