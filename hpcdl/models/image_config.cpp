#include "hpcdl/models/image_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::models {
namespace {

template <class E> E enum_in(const io::JsonObject& o, const char* key, const std::string& name) {
  if (const auto value = io::enum_of<E>(name)) return *value;
  fail("model", "{}: {}: expected one of {}, found {}", o.where(), key, fmt::join(io::enum_words<E>(), ", "),
       io::shown(name));
}

}  // namespace

void ImageConfig::resolve() {
  if (size == 0) size = family == ImageFamily::resnet18 && stem == Stem::imagenet ? 224 : 32;
  if (classes < 2 || classes > 1'000'000) fail_usage("model", "classes must lie in 2 .. 1000000, got {}", classes);
  if (width < 1 || width > 4096) fail_usage("model", "width must lie in 1 .. 4096, got {}", width);
  if (size < 1 || size > 4096) fail_usage("model", "images must have 1 .. 4096 rows, got {}", size);
  if (family == ImageFamily::simple_cnn && size % 8 != 0)
    fail_usage("model", "simple_cnn halves its images three times: their size must be divisible by 8, got {}", size);
}

namespace {

/// {"0": "cat", "1": "dog"}, as in transformers.
std::vector<std::string> read_labels(const io::Json& config, const std::string& where, std::int64_t classes) {
  std::vector<std::string> labels;
  const auto all = config.find("id2label");
  if (all == config.end() || all->is_null()) return labels;
  const io::JsonObject names(*all, where + ": id2label");
  require(static_cast<std::int64_t>(all->size()) <= classes, "model", "{}: id2label has {} names for {} classes", where,
          all->size(), classes);
  for (std::size_t i = 0; i < all->size(); ++i) labels.push_back(names.need<std::string>(std::to_string(i).c_str()));
  return labels;
}

/// Three numbers, or none if the key is absent. Standard deviations are used as divisors.
std::vector<float> read_channels(const io::Json& json, const char* key, const std::string& where) {
  const auto list = json.find(key);
  if (list == json.end()) return {};
  std::vector<float> out;
  for (const auto& x : *list) out.push_back(x.is_number() ? x.get<float>() : NAN);
  const bool deviation = std::string_view(key) == "image_std";
  const bool fine = out.size() == 3 && std::all_of(out.begin(), out.end(),
                                                   [&](float x) { return std::isfinite(x) && (!deviation || x > 0); });
  require(list->is_array() && fine, "model", "{}: {}: expected 3 numbers{}, found {}", where, key,
          deviation ? " above 0" : "", list->dump());
  return out;
}

}  // namespace

bool is_image_config(const io::Json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() && io::enum_of<ImageFamily>(type->get<std::string>());
}

ImageConfig read_image_config(const std::filesystem::path& folder) {
  const auto path = io::config_of_model(folder);
  const auto json = io::read_json(path, 16 << 20);
  const io::JsonObject o(json, path.string());
  ImageConfig c;
  c.family = enum_in<ImageFamily>(o, "model_type", o.need<std::string>("model_type"));
  c.stem = enum_in<Stem>(o, "stem", o.get_or<std::string>("stem", "cifar"));
  c.classes = o.need<std::int64_t>("classes");
  c.size = o.need<std::int64_t>("image_size");
  c.width = o.get_or<std::int64_t>("width", c.width);
  c.normalise = o.get_or("normalise", c.normalise);
  c.mean = read_channels(json, "image_mean", path.string());
  c.std = read_channels(json, "image_std", path.string());
  require(c.mean.size() == c.std.size(), "model", "{}: expected both of image_mean and image_std, or none",
          path.string());
  try {
    c.resolve();
  } catch (const UsageError& e) {
    fail("model", "{}: {}", path.string(), e.what());
  }
  c.labels = read_labels(json, path.string(), c.classes);
  return c;
}

io::Json make_image_config(const ImageConfig& c) {
  io::Json json = {{"model_type", io::enum_name(c.family)},
                   {"stem", io::enum_name(c.stem)},
                   {"classes", c.classes},
                   {"image_size", c.size},
                   {"width", c.width},
                   {"normalise", c.normalise}};
  if (!c.mean.empty()) json["image_mean"] = c.mean, json["image_std"] = c.std;
  for (std::size_t i = 0; i < c.labels.size(); ++i) json["id2label"][std::to_string(i)] = c.labels[i];
  return json;
}

void write_image_config(const std::filesystem::path& folder, const ImageConfig& config) {
  io::write_file_atomic(folder / "config.json", make_image_config(config).dump(2) + "\n");
}

}  // namespace hpcdl::models
