// Tensors of safetensors files as arrays that lie in the mapped file.

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors.h"
#include "python/src/array.h"
#include "python/src/bind.h"
#include "python/src/words.h"

namespace hpcdl::python {
namespace {

struct Files {
  Files(io::TensorFolder opened, Framework f) : folder(std::move(opened)), framework(f) {}
  Files(Files&&) = default;  // a vector of files claims to be copyable, but is not
  io::TensorFolder folder;
  Framework framework;
};

void open(Files* self, const io::fs::path& path, nb::handle framework) {
  constexpr std::string_view kNames[] = {"numpy", "torch"};
  const Framework f =
      framework_from_name(kNames[choose("open_safetensors", "framework", framework, {kNames[0], kNames[1]})]);
  auto folder = [&] {
    const nb::gil_scoped_release released;
    return io::TensorFolder::open(path);
  }();
  // PyTorch has no read-only tensors. The mapping is private: if it is writable, a write changes a copy of the page and
  // neither faults nor changes the file.
  if (f.kind != Framework::Kind::numpy)
    for (const auto& shard : folder.shards())
      if (shard.file().size() > 0)
        require(mprotect(const_cast<std::byte*>(shard.file().data()), static_cast<std::size_t>(shard.file().size()),
                         PROT_READ | PROT_WRITE) == 0,
                "open_safetensors", "mprotect failed on {}", shard.file().path().string());
  new (self) Files(std::move(folder), f);
}

nb::object get(nb::handle self, const std::string& name) {
  const auto& files = *nb::inst_ptr<Files>(self);
  const auto v = files.folder.find(name);
  if (!v) return nb::none();
  return view_array(files.framework, nb::borrow(self), Tensor(const_cast<void*>(v->data()), v->spec()), false);
}

nb::list names(const Files& f) {
  nb::list list;
  for (const auto& t : f.folder.tensors()) list.append(nb::str(t.name.c_str(), t.name.size()));
  return list;
}

nb::dict metadata(const Files& f) {
  nb::dict all;
  for (const auto& shard : f.folder.shards())
    for (const auto& [key, value] : shard.metadata())
      all[nb::str(key.c_str(), key.size())] = nb::str(value.c_str(), value.size());
  return all;
}

/// Throws the Error that names the closest tensor.
std::string missing(const Files& f, const std::string& name) {
  try {
    f.folder.at(name);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace

void bind_files(nb::module_& m) {
  nb::class_<Files>(m, "_Files")
      .def("__init__", open, nb::arg("path"), anything("framework"),
           nb::sig("def __init__(self, path: typing.Any, framework: str) -> None"))
      .def("get", get, nb::arg("name"), nb::sig("def get(self, name: str) -> typing.Any"))
      .def("names", names, nb::sig("def names(self) -> list[str]"))
      .def("metadata", metadata, nb::sig("def metadata(self) -> dict[str, str]"))
      .def("missing", missing, nb::arg("name"), nb::sig("def missing(self, name: str) -> str"))
      .def(
          "mapped_bytes", [](const Files& f) { return f.folder.mapped_bytes(); },
          nb::sig("def mapped_bytes(self) -> int"))
      .def(
          "resident_bytes", [](const Files& f) { return f.folder.resident_bytes(); },
          nb::sig("def resident_bytes(self) -> int"));
}

}  // namespace hpcdl::python
