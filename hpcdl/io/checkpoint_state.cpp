#include "hpcdl/io/checkpoint_state.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/io/number_within.h"
#include "hpcdl/io/safetensors_header.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24;

void read_at(const Fd& fd, const fs::path& path, std::int64_t at, std::span<std::byte> to) {
  while (!to.empty()) {
    const auto n = ::pread(fd.get(), to.data(), to.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path, "read", errno);
    require(n > 0, "io", "{}: the file ends at {} bytes while it is read", path.string(), at);
    to = to.subspan(static_cast<std::size_t>(n));
    at += n;
  }
}

/// The tensors of a file have their own checksums, so only its header is included.
std::int64_t checked_bytes(const Fd& fd, const fs::path& path, std::int64_t size) {
  constexpr std::int64_t kLength = sizeof(std::uint64_t);
  if (path.extension() != ".safetensors") return size;
  std::uint64_t length = 0;
  require(size >= kLength, "io", "{}: expected at least {} bytes, found {}", path.string(), kLength, size);
  read_at(fd, path, 0, std::as_writable_bytes(std::span(&length, 1)));
  require(length <= static_cast<std::uint64_t>(size - kLength), "io", "{}: the header says {} bytes, the file has {}",
          path.string(), length, size);
  return kLength + static_cast<std::int64_t>(length);
}

/// Reads in pieces, because a mapping would need addresses for the whole file.
std::uint32_t checksum(const Fd& fd, const fs::path& path, std::int64_t bytes) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(bytes, std::int64_t{1} << 20)));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < bytes;) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(piece), bytes - at)));
    read_at(fd, path, at, part);
    crc = crc32c(part, crc);
    at += std::ssize(part);
  }
  return crc;
}

std::string done_text(std::string_view state_json) {
  return fmt::format("state.json crc32c {:08x}\n", crc32c(state_json));
}

}  // namespace

Json file_entry(const fs::path& path) {
  const Fd fd = open_for_reading(path);
  const auto size = file_size(fd, path);
  return {{"bytes", size}, {"crc32c", checksum(fd, path, checked_bytes(fd, path, size))}};
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

void finish_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial, int ranks,
                       const CheckpointContent& content, const Json& tensors) {
  Json json = to_json(state);
  json.update({{"format", kCheckpointFormat}, {"serial", serial}, {"ranks", ranks}, {"files", Json::object()}});
  json.update(tensors);
  write_file_atomic(folder / "config.toml", content.config_toml);
  if (content.extra) content.extra(folder);
  list_other_files(folder, json["files"]);
  seal_checkpoint(folder, json);
}

CheckpointInfo checkpoint_info(const fs::path& folder, const Json& json) {
  const std::string where = (folder / "state.json").string();
  const JsonObject o(json, where);
  return {folder, train_state_from(json, where), need_within(o, "serial", 0, kMaxCount),
          o.find("ranks") ? need_within(o, "ranks", 1, kMaxRanks) : 1};
}

Json read_checkpoint_state(const fs::path& folder) {
  const fs::path done = folder / "DONE", state = folder / "state.json";
  std::error_code ignored;
  require(fs::exists(done, ignored), "io", "{}: the file DONE is missing, so the checkpoint is not complete",
          folder.string());
  const std::string text = read_file(state);
  require(read_file(done, 4096) == done_text(text), "io",
          "{}: the checksum does not match the one in DONE: damaged on disk", state.string());
  Json json = parse_json(text, state.string());
  const JsonObject o(json, state.string());
  const auto format = o.need<std::int64_t>("format");
  require(format >= 1, "io", "{}: key \"format\": expected 1 to {}, found {}", state.string(), kCheckpointFormat,
          format);
  require(format <= kCheckpointFormat, "io",
          "{}: written in format {}, but this program reads formats up to {}: use a newer version", state.string(),
          format, kCheckpointFormat);
  for (const char* key : {"files", "model", "optimizer"})
    require(o.find(key) && o.find(key)->is_object(), "io", "{}: expected an object \"{}\"", state.string(), key);
  if (format == 1) json["optimizer"] = Json{{"optim-rank0.safetensors", json["optimizer"]}};
  return json;
}

}  // namespace hpcdl::io
