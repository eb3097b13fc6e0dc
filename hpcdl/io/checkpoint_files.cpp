#include "hpcdl/io/checkpoint_files.h"

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/copy_elements.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr const char* kOptimizer = "optim-rank0.safetensors";

std::vector<NamedSpec> specs_of(const std::vector<NamedView>& views) {
  std::vector<NamedSpec> out;
  for (const auto& v : views) out.push_back({v.name, v.view.spec()});
  return out;
}

template <class Writer>
Json write_tensors(Writer&& writer, const std::vector<NamedView>& views) {
  Json out = Json::object();
  for (const auto& [name, view] : views)
    out[name] = {{"spec", to_string(view.spec())}, {"crc32c", writer.write(name, view)}};
  writer.commit();
  return out;
}

bool is_safetensors(const fs::path& path) { return path.extension() == ".safetensors"; }

/// Of a safetensors file only the header: the tensors have checksums of their own.
std::uint32_t checksum(const fs::path& path) {
  if (!is_safetensors(path)) return crc32c(MappedFile(path).bytes());
  const MappedFile file(path);
  const auto header = parse_safetensors_header(file.bytes(), path.string());
  return crc32c(file.bytes().first(static_cast<std::size_t>(header.data_offset)));
}

/// Every file below `folder`, by its path from there, with size and checksum; each synced.
Json list_files(const fs::path& folder) {
  Json out = Json::object();
  for (const auto& path : list_folder(folder, true)) {
    if (fs::is_directory(path)) {
      sync_folder(path);
      continue;
    }
    sync_file(path);
    const std::string name = path.lexically_relative(folder).string();
    out[name] = {{"bytes", file_size(open_for_reading(path), path)}, {"crc32c", checksum(path)}};
  }
  sync_folder(folder);
  return out;
}

std::string done_text(std::string_view state_json) {
  return fmt::format("state.json crc32c {:08x}\n", crc32c(state_json));
}

void verify_files(const fs::path& folder, const Json& files) {
  for (const auto& [name, entry] : files.items()) {
    const fs::path path = folder / name;
    const JsonObject o(entry, (folder / "state.json").string() + ": " + shown(name));
    const auto want = o.need<std::int64_t>("bytes");
    const Fd fd = open_for_reading(path);
    require(file_size(fd, path) == want, "io", "{}: expected {} bytes, found {}", path.string(), want,
            file_size(fd, path));
    require(checksum(path) == o.need<std::int64_t>("crc32c"), "io", "{}: the checksum does not match: damaged on disk",
            path.string());
  }
}

void verify_tensors(const TensorFolder& file, const Json& tensors) {
  require(file.tensors().size() == tensors.size(), "io", "{}: expected {} tensors, found {}", file.path().string(),
          tensors.size(), file.tensors().size());
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorInfo& info = file.tensors()[i];
    const auto it = tensors.find(info.name);
    require(it != tensors.end(), "io", "{}: tensor {} is not in state.json", file.path().string(), shown(info.name));
    const JsonObject o(*it, file.path().string() + ": tensor " + shown(info.name));
    const auto& mapped = file.shard_of(i).file();
    const auto crc = crc32c(
        mapped.bytes().subspan(static_cast<std::size_t>(info.offset), static_cast<std::size_t>(info.spec.bytes())));
    mapped.drop(info.offset, info.spec.bytes());
    require(crc == o.need<std::int64_t>("crc32c"), "io", "{}: the checksum does not match: damaged on disk", o.where());
  }
}

Json read_state(const fs::path& folder) {
  const fs::path done = folder / "DONE", state = folder / "state.json";
  std::error_code ignored;
  require(fs::exists(done, ignored), "io", "{}: no marker DONE: the checkpoint is not whole", folder.string());
  const std::string text = read_file(state);
  require(read_file(done, 4096) == done_text(text), "io",
          "{}: the checksum does not match the one in DONE: damaged on disk", state.string());
  Json json = parse_json(text, state.string());
  const JsonObject o(json, state.string());
  require(o.need<std::int64_t>("format") <= kFormat, "io",
          "{}: written in format {}, this program knows up to {}: use a newer one", state.string(),
          o.need<std::int64_t>("format"), kFormat);
  for (const char* key : {"files", "model", "optimizer"})
    require(o.find(key) && o.find(key)->is_object(), "io", "{}: expected an object \"{}\"", state.string(), key);
  return json;
}

CheckpointInfo info_of(const fs::path& folder, const Json& json) {
  const std::string where = (folder / "state.json").string();
  return {folder, train_state_from(json, where), JsonObject(json, where).need<std::int64_t>("serial")};
}

void load_into(const TensorFolder& file, std::span<const NamedTensor> tensors, const char* what) {
  for (const auto& [name, tensor] : tensors) {
    const auto view = file.find(name);
    require(view.has_value(), "io",
            "{}: the {} needs tensor {}, the checkpoint has none: was it saved with another configuration?",
            file.path().string(), what, shown(name));
    require(view->spec() == tensor.spec(), "io",
            "{}: {} tensor {}: expected {}, found {}: was it saved with another configuration?", file.path().string(),
            what, shown(name), to_string(tensor.spec()), to_string(view->spec()));
    copy_elements(tensor, *view);
  }
  require(file.tensors().size() == tensors.size(), "io",
          "{}: expected the {} tensors of the {}, found {}: was it saved with another configuration?",
          file.path().string(), tensors.size(), what, file.tensors().size());
}

}  // namespace

void write_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                      const CheckpointContent& content) {
  make_folder(folder);
  Json json = to_json(state);
  json["format"] = kFormat;
  json["serial"] = serial;
  json["model"] = write_tensors(TensorFolderWriter(folder, specs_of(content.model)), content.model);
  json["optimizer"] =
      write_tensors(SafeTensorsWriter(folder / kOptimizer, specs_of(content.optimizer)), content.optimizer);
  write_file_atomic(folder / "config.toml", content.config_toml);
  if (content.extra) content.extra(folder);
  json["files"] = list_files(folder);
  const std::string text = json.dump(1) + "\n";
  write_file_atomic(folder / "state.json", text);
  write_file_atomic(folder / "DONE", done_text(text));
}

CheckpointInfo read_checkpoint_info(const fs::path& folder) { return info_of(folder, read_state(folder)); }

CheckpointInfo verify_checkpoint(const fs::path& folder) {
  const Json json = read_state(folder);
  verify_files(folder, json["files"]);
  verify_tensors(TensorFolder::open(folder), json["model"]);
  verify_tensors(TensorFolder::open(folder / kOptimizer), json["optimizer"]);
  return info_of(folder, json);
}

void load_checkpoint(const fs::path& folder, std::span<const NamedTensor> model,
                     std::span<const NamedTensor> optimizer) {
  load_into(TensorFolder::open(folder), model, "model");
  load_into(TensorFolder::open(folder / kOptimizer), optimizer, "optimizer");
}

}  // namespace hpcdl::io
