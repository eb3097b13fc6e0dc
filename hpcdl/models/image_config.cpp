#include "hpcdl/models/image_config.h"

#include <nlohmann/json.hpp>
#include <string>

#include "hpcdl/io/atomic_file.h"

namespace hpcdl::models {
namespace {

template <class E> E enum_in(const io::JsonObject& o, const char* key, const std::string& name) {
  std::string known;
  for (const auto& [value, text] : io::EnumNames<E>::values) {
    if (text == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  fail("model", "{}: {}: expected one of {}, found {}", o.where(), key, known, io::shown(name));
}

}  // namespace

void ImageConfig::resolve() {
  if (size == 0) size = family == ImageFamily::resnet18 && stem == Stem::imagenet ? 224 : 32;
  if (classes < 2 || classes > 1'000'000) fail_usage("model", "classes must lie in 2 .. 1000000, got {}", classes);
  if (width < 1 || width > 4096) fail_usage("model", "width must lie in 1 .. 4096, got {}", width);
  if (size < 1 || size > 4096) fail_usage("model", "images must have 1 .. 4096 rows, got {}", size);
  if (family == ImageFamily::simple_cnn && size % 8 != 0)
    fail_usage("model", "simple_cnn halves its images three times: their size must divide by 8, got {}", size);
}

bool is_image_config(const io::Json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return false;
  for (const auto& [value, text] : io::EnumNames<ImageFamily>::values)
    if (type->get<std::string>() == text) return true;
  return false;
}

ImageConfig read_image_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  const auto json = io::read_json(path, 16 << 20);
  const io::JsonObject o(json, path.string());
  ImageConfig c;
  c.family = enum_in<ImageFamily>(o, "model_type", o.need<std::string>("model_type"));
  c.stem = enum_in<Stem>(o, "stem", o.get_or<std::string>("stem", "cifar"));
  c.classes = o.need<std::int64_t>("classes");
  c.size = o.need<std::int64_t>("image_size");
  c.width = o.get_or<std::int64_t>("width", c.width);
  try {
    c.resolve();
  } catch (const UsageError& e) {
    fail("model", "{}: {}", path.string(), e.what());
  }
  return c;
}

io::Json make_image_config(const ImageConfig& c) {
  return {{"model_type", io::enum_name(c.family)},
          {"stem", io::enum_name(c.stem)},
          {"classes", c.classes},
          {"image_size", c.size},
          {"width", c.width}};
}

void write_image_config(const std::filesystem::path& folder, const ImageConfig& config) {
  io::write_file_atomic(folder / "config.json", make_image_config(config).dump(2) + "\n");
}

}  // namespace hpcdl::models
