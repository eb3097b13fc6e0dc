#include "hpcdl/io/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/buffer.h"
#include "hpcdl/core/copy_elements.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

SafeTensorsWriter::SafeTensorsWriter(const fs::path& path, std::vector<NamedSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedSpec& a, const NamedSpec& b) {
    return dtype_bytes(a.spec.dtype) > dtype_bytes(b.spec.dtype);
  });
  std::vector<TensorInfo> infos;
  std::int64_t at = 0;
  for (auto& t : tensors) {
    require(static_cast<bool>(t.spec), "io", "{}: tensor {}: expected a dtype, found none", path.string(),
            shown(t.name));
    infos.push_back({t.name, t.spec, at});
    at += t.spec.bytes();
  }
  const std::string header = make_safetensors_header(infos, metadata);
  const auto data_offset = static_cast<std::int64_t>(header.size());
  file_.reserve(data_offset + at);
  file_.append(header);
  for (auto& info : infos) {
    info.offset += data_offset;
    index_.emplace(info.name, slots_.size());
    slots_.push_back({std::move(info)});
  }
}

SafeTensorsWriter::Slot& SafeTensorsWriter::slot_of(const std::string& name) {
  const auto it = index_.find(name);
  require(it != index_.end(), "io", "{}: tensor {} was not declared", path_.string(), shown(name));
  return slots_[it->second];
}

std::uint32_t SafeTensorsWriter::append(Slot& slot, View piece) {
  const auto& info = slot.info;
  require(slot.written + piece.bytes() <= info.spec.bytes(), "io", "{}: tensor {} is written beyond its end",
          path_.string(), shown(info.name));
  const std::span bytes(piece.ptr<std::byte>(), static_cast<std::size_t>(piece.bytes()));
  file_.write_at(info.offset + slot.written, bytes);
  slot.written += piece.bytes();
  slot.begun = true;
  return slot.crc = crc32c(bytes, slot.crc);
}

std::uint32_t SafeTensorsWriter::append(const std::string& name, View piece) {
  Slot& slot = slot_of(name);
  require(piece.dtype() == slot.info.spec.dtype && piece.is_contiguous(), "io",
          "{}: tensor {}: expected contiguous elements of {}, found {}", path_.string(), shown(name),
          to_string(slot.info.spec), to_string(piece.spec()));
  return append(slot, piece);
}

std::uint32_t SafeTensorsWriter::write(const std::string& name, View view) {
  Slot& slot = slot_of(name);
  require(!slot.begun, "io", "{}: tensor {} is written twice", path_.string(), shown(name));
  require(view.spec() == slot.info.spec, "io", "{}: tensor {}: declared as {}, found {}", path_.string(), shown(name),
          to_string(slot.info.spec), to_string(view.spec()));
  OwnedTensor dense;
  if (!view.is_contiguous()) {
    dense = OwnedTensor(view.spec());
    copy_elements(dense.tensor, view);
    view = dense.tensor;
  }
  return append(slot, view);
}

void SafeTensorsWriter::commit() {
  for (const auto& slot : slots_) {
    const auto& [name, spec, _] = slot.info;
    require(slot.begun || spec.bytes() == 0, "io", "{}: tensor {} was declared but never written", path_.string(),
            shown(name));
    require(slot.written == spec.bytes(), "io", "{}: tensor {}: expected {} bytes, but only {} were written",
            path_.string(), shown(name), spec.bytes(), slot.written);
  }
  file_.commit();
}

TensorFolderWriter::TensorFolderWriter(const fs::path& folder, const std::vector<NamedSpec>& tensors,
                                       std::int64_t max_shard_bytes)
    : folder_(folder) {
  make_folder(folder);
  std::vector<std::vector<NamedSpec>> parts(1);
  std::int64_t bytes = 0;
  for (const auto& t : tensors) {
    if (!parts.back().empty() && bytes + t.spec.bytes() > max_shard_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    home_[t.name] = parts.size() - 1;
    parts.back().push_back(t);
    bytes += t.spec.bytes();
    total_bytes_ += t.spec.bytes();
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    files_.push_back(parts.size() == 1 ? "model.safetensors"
                                       : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size()));
    shards_.push_back(std::make_unique<SafeTensorsWriter>(folder / files_[i], std::move(parts[i])));
  }
}

SafeTensorsWriter& TensorFolderWriter::shard_of(const std::string& name) {
  const auto it = home_.find(name);
  require(it != home_.end(), "io", "{}: tensor {} was not declared", folder_.string(), shown(name));
  return *shards_[it->second];
}

std::uint32_t TensorFolderWriter::write(const std::string& name, View view) { return shard_of(name).write(name, view); }

std::uint32_t TensorFolderWriter::append(const std::string& name, View piece) {
  return shard_of(name).append(name, piece);
}

void TensorFolderWriter::commit() {
  for (auto& shard : shards_) shard->commit();
  const fs::path index = folder_ / "model.safetensors.index.json", single = folder_ / "model.safetensors";
  std::error_code ignored;
  if (shards_.size() == 1) {
    fs::remove(index, ignored);
    return;
  }
  Json json = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", Json::object()}};
  for (const auto& [name, shard] : home_) json["weight_map"][name] = files_[shard];
  write_file_atomic(index, json.dump(2) + "\n");
  fs::remove(single, ignored);
}

}  // namespace hpcdl::io
