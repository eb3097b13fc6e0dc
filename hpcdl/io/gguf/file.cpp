#include "hpcdl/io/gguf/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::io {

bool is_gguf(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

GgufFile GgufFile::open(const fs::path& path) {
  GgufFile out;
  out.path_ = path;
  out.add(path);
  out.add_other_parts();
  return out;
}

void GgufFile::add(const fs::path& path) {
  MappedFile file(path);
  GgufHeader header = parse_gguf_header(file.bytes(), path.string());
  for (std::size_t i = 0; i < header.tensors.size(); ++i)
    require(index_.emplace(header.tensors[i].name, Place{parts_.size(), i}).second, "io",
            "{}: tensor {} is in an earlier file of the model, too", path.string(), shown(header.tensors[i].name));
  parts_.push_back({std::move(file), std::move(header)});
}

void GgufFile::add_other_parts() {
  constexpr std::int64_t kMostParts = 99'999;
  const auto count = metadata().get_or<std::int64_t>("split.count", 1);
  if (count <= 1) return;
  require(count <= kMostParts, "io", "{}: split.count: expected at most {}, found {}", path_.string(), kMostParts,
          count);
  const auto name = [&](std::int64_t part) { return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count); };
  const auto number = metadata().need<std::int64_t>("split.no");
  const auto file = path_.filename().string(), end = name(number);
  require(file.ends_with(end), "io", "{}: part {} of {}: expected a name that ends in {}: do not rename the parts",
          path_.string(), number + 1, count, end);
  const auto stem = file.substr(0, file.size() - end.size());
  require(number == 0, "io", "{}: this is part {} of {}: open the first part, {}", path_.string(), number + 1, count,
          stem + name(0));
  for (std::int64_t part = 1; part < count; ++part) {
    const auto path = path_.parent_path() / (stem + name(part));
    add(path);
    const auto& theirs = parts_.back().header.metadata;
    const auto no = theirs.need<std::int64_t>("split.no"), of = theirs.need<std::int64_t>("split.count");
    require(no == part && of == count, "io", "{}: expected part {} of {}, found part {} of {}", path.string(), part + 1,
            count, no + 1, of);
  }
  const auto all = metadata().get<std::int64_t>("split.tensors.count");
  require(!all || *all == std::ssize(index_), "io", "{}: the {} parts should hold {} tensors, found {}", path_.string(),
          count, all.value_or(0), index_.size());
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &parts_[it->second.part].header.tensors[it->second.tensor];
}

const GgufTensor& GgufFile::at(const std::string& name) const {
  if (const auto* t = find(name)) return *t;
  std::vector<std::string> names;
  for (const auto* t : tensors()) names.push_back(t->name);
  fail("io", "{}: expected a tensor {}, found none among {}{}", path_.string(), shown(name), names.size(),
       did_you_mean(name, names));
}

std::vector<const GgufTensor*> GgufFile::tensors() const {
  std::vector<const GgufTensor*> all;
  for (const auto& part : parts_)
    for (const auto& t : part.header.tensors) all.push_back(&t);
  return all;
}

const std::byte* GgufFile::data(const GgufTensor& tensor) const {
  return parts_[index_.at(tensor.name).part].file.data() + tensor.offset;
}

std::vector<const MappedFile*> GgufFile::files() const {
  std::vector<const MappedFile*> files;
  for (const auto& part : parts_) files.push_back(&part.file);
  return files;
}

}  // namespace hpcdl::io
