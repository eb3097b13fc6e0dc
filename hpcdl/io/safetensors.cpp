#include "hpcdl/io/safetensors.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::io {
namespace {

[[noreturn]] void no_such_tensor(const fs::path& path, const std::string& name,
                                 const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> names;
  if (tensors.size() < 20'000)
    for (const auto& t : tensors) names.push_back(t.name);
  fail("io", "{}: expected a tensor {}, found none among {}{}", path.string(), shown(name), tensors.size(),
       did_you_mean(name, names));
}

}  // namespace

SafeTensors SafeTensors::open(const fs::path& path) {
  SafeTensors out;
  out.file_ = MappedFile(path);
  out.header_ = parse_safetensors_header(out.file_.bytes(), path.string());
  for (std::size_t i = 0; i < out.header_.tensors.size(); ++i) out.index_.emplace(out.header_.tensors[i].name, i);
  return out;
}

std::optional<View> SafeTensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? std::nullopt : std::optional(view(tensors()[it->second]));
}

View SafeTensors::at(const std::string& name) const {
  if (const auto v = find(name)) return *v;
  no_such_tensor(file_.path(), name, tensors());
}

TensorFolder TensorFolder::open(const fs::path& path) {
  TensorFolder out;
  out.path_ = path;
  std::error_code ignored;
  const fs::path single = fs::is_directory(path, ignored) ? path / "model.safetensors" : path;
  const fs::path index = path / "model.safetensors.index.json";
  if (fs::exists(single, ignored)) {
    out.shards_.push_back(SafeTensors::open(single));
    out.add_all(0);
  } else if (fs::exists(index, ignored)) {
    out.open_shards(index);
  } else {
    fail("io", "{}: expected model.safetensors or model.safetensors.index.json, found neither", path.string());
  }
  return out;
}

void TensorFolder::add_all(std::size_t shard) {
  for (const auto& t : shards_[shard].tensors()) {
    index_.emplace(t.name, tensors_.size());
    tensors_.push_back(t);
    home_.push_back(shard);
  }
}

void TensorFolder::open_shards(const fs::path& index) {
  const Json json = read_json(index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  require(map != json.end() && map->is_object(), "io", "{}: expected an object \"weight_map\", found none",
          index.string());
  std::unordered_map<std::string, std::size_t> opened;
  for (const auto& [name, file] : map->items()) {
    require(file.is_string(), "io", "{}: tensor {}: expected a file name, found {}", index.string(), shown(name),
            json_kind(file));
    const auto text = file.get<std::string>();
    // Only plain names, so that an index cannot refer to files in other folders.
    require(
        !text.empty() && text.find('/') == std::string::npos && text.find('\0') == std::string::npos && text != "..",
        "io", "{}: tensor {}: expected the name of a file in the folder of the index, found {}", index.string(),
        shown(name), shown(text));
    const auto [it, fresh] = opened.emplace(text, shards_.size());
    if (fresh) shards_.push_back(SafeTensors::open(path_ / text));
    const SafeTensors& shard = shards_[it->second];
    const auto view = shard.find(name);
    require(view.has_value(), "io", "{}: the index promises tensor {} in {}, which has no such tensor", index.string(),
            shown(name), shown(text));
    index_.emplace(name, tensors_.size());
    tensors_.push_back({name, view->spec(), static_cast<const std::byte*>(view->data()) - shard.file().data()});
    home_.push_back(it->second);
  }
}

std::optional<View> TensorFolder::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? std::nullopt : std::optional(shards_[home_[it->second]].view(tensors_[it->second]));
}

View TensorFolder::at(const std::string& name) const {
  if (const auto v = find(name)) return *v;
  no_such_tensor(path_, name, tensors_);
}

std::int64_t TensorFolder::mapped_bytes() const {
  std::int64_t n = 0;
  for (const auto& s : shards_) n += s.file().size();
  return n;
}

std::int64_t TensorFolder::resident_bytes() const {
  std::int64_t n = 0;
  for (const auto& s : shards_) n += s.file().resident_bytes();
  return n;
}

}  // namespace hpcdl::io
