#include "hpcdl/io/checkpoint_state.h"

#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/io/number_within.h"
#include "hpcdl/io/safetensors_header.h"

namespace hpcdl::io {
namespace {

std::uint32_t checksum(const MappedFile& file) {
  if (file.path().extension() != ".safetensors") return crc32c(file.bytes());
  const auto header = parse_safetensors_header(file.bytes(), file.path().string());
  return crc32c(file.bytes().first(static_cast<std::size_t>(header.data_offset)));
}

std::string done_text(std::string_view state_json) {
  return fmt::format("state.json crc32c {:08x}\n", crc32c(state_json));
}

}  // namespace

Json file_entry(const fs::path& path) {
  const MappedFile file(path);
  return {{"bytes", file.size()}, {"crc32c", checksum(file)}};
}

void list_other_files(const fs::path& folder, Json& files) {
  for (const auto& path : list_folder(folder, true)) {
    if (fs::is_directory(path)) {
      sync_folder(path);
      continue;
    }
    const std::string name = path.lexically_relative(folder).string();
    if (files.contains(name)) continue;
    sync_file(path);
    files[name] = file_entry(path);
  }
  sync_folder(folder);
}

void seal_checkpoint(const fs::path& folder, const Json& state) {
  const std::string text = state.dump(1) + "\n";
  write_file_atomic(folder / "state.json", text);
  write_file_atomic(folder / "DONE", done_text(text));
}

Json read_checkpoint_state(const fs::path& folder) {
  const fs::path done = folder / "DONE", state = folder / "state.json";
  std::error_code ignored;
  require(fs::exists(done, ignored), "io", "{}: no marker DONE: the checkpoint is not whole", folder.string());
  const std::string text = read_file(state);
  require(read_file(done, 4096) == done_text(text), "io",
          "{}: the checksum does not match the one in DONE: damaged on disk", state.string());
  Json json = parse_json(text, state.string());
  const JsonObject o(json, state.string());
  const auto format = o.need<std::int64_t>("format");
  require(format >= 1, "io", "{}: key \"format\": expected 1 to {}, found {}", state.string(), kCheckpointFormat,
          format);
  require(format <= kCheckpointFormat, "io", "{}: written in format {}, this program knows up to {}: use a newer one",
          state.string(), format, kCheckpointFormat);
  for (const char* key : {"files", "model", "optimizer"})
    require(o.find(key) && o.find(key)->is_object(), "io", "{}: expected an object \"{}\"", state.string(), key);
  if (format == 1) json["optimizer"] = Json{{"optim-rank0.safetensors", json["optimizer"]}};
  return json;
}

}  // namespace hpcdl::io
