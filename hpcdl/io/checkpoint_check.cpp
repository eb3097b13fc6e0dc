#include "hpcdl/io/checkpoint_check.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/number_within.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/shard_plan.h"
#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {
namespace {

/// Whether `state` lists a file of this name with this header and these tensors.
bool lists(const Json& state, const std::string& name, const Json& entry,
           const std::map<std::string, std::uint32_t>& tensors) {
  const auto& files = state["files"];
  if (!files.contains(name) || files[name] != entry) return false;
  const Json& listed = state["optimizer"].contains(name) ? state["optimizer"][name] : state["model"];
  return std::ranges::all_of(tensors, [&](const auto& t) {
    const auto it = listed.find(t.first);
    return it != listed.end() && it->is_object() && it->value("crc32c", Json()) == t.second;
  });
}

class Check {
 public:
  Check(const fs::path& folder, const std::function<void(const std::string&)>& report, const CheckOptions& options)
      : folder_(folder), where_((folder / "state.json").string()), report_(report), options_(options) {}

  void run() {
    if (!attempt([&] { state_ = read_checkpoint_state(folder_); })) return;
    if (options_.parts == 1) find_other_saves();
    for (const auto& [name, entry] : state_["files"].items())
      if (!attempt([&, &n = name, &e = entry] { check_file(n, e); })) bad_.insert(name);
    for (const auto& [name, _] : state_["optimizer"].items())
      if (!state_["files"].contains(name)) {
        report_(fmt::format("[io] {}: {} is not among \"files\"", where_, shown(name)));
        bad_.insert(name);
      }
    const auto model = open_files(false), optimizer = open_files(true);
    for (const auto* files : {&model, &optimizer})
      for (const auto& [_, file] : *files) total_ += file.file().size();
    check_model(model);
    for (const auto& [name, file] : optimizer) check_tensors(file, state_["optimizer"][name], true);
    if (optimizer.size() == state_["optimizer"].size()) check_covers(optimizer);
  }

 private:
  /// False if f() throws an Error, which is reported.
  template <class F> bool attempt(F f) {
    std::string what;
    try {
      f();
      return true;
    } catch (const Error& e) {
      what = e.what();
    }
    report_(what);
    return false;
  }

  void check_file(const std::string& name, const Json& entry) {
    const fs::path path = folder_ / name;
    const JsonObject o(entry, where_ + ": " + shown(name));
    const auto want = need_within(o, "bytes", 0, std::numeric_limits<std::int64_t>::max());
    const auto crc = need_crc32c(o);
    const Fd fd = open_for_reading(path);
    const auto size = file_size(fd, path);
    require(size == want, "io", "{}: expected {} bytes, found {}: {}", path.string(), want, size,
            size < want ? "it was cut off while it was written or copied" : "another file has its name");
    const auto found = file_entry(path);
    if (found["crc32c"] == crc) return;
    fail("io", "{}: the checksum{} does not match: {}", path.string(),
         path.extension() == ".safetensors" ? " of its header" : "",
         owner(name, found).value_or("damaged on disk, or a file of another save"));
  }

  /// The checkpoints beside this one, which may own a file that is found here. What is wrong with them says nothing
  /// about this one.
  void find_other_saves() {
    std::error_code ignored;
    for (fs::directory_iterator it(folder_ / "..", ignored), end; !ignored && it != end; it.increment(ignored)) {
      if (!fs::exists(it->path() / "DONE", ignored) || fs::equivalent(it->path(), folder_, ignored)) continue;
      try {
        others_.emplace_back(it->path().filename().string(), read_checkpoint_state(it->path()));
      } catch (const Error&) {}
    }
  }

  /// Where a file belongs that has another content than `name` should have.
  std::optional<std::string> owner(const std::string& name, const Json& entry) {
    std::map<std::string, std::uint32_t> tensors;
    if (fs::path(name).extension() == ".safetensors") {
      try {
        const auto file = SafeTensors::open(folder_ / name);
        for (const auto& t : file.tensors()) tensors[t.name] = read_crc(file, t);
      } catch (const Error&) {
        return std::nullopt;
      }
    }
    for (const auto& [other, _] : state_["files"].items())
      if (other != name && lists(state_, other, entry, tensors)) return "its content is that of " + other;
    for (const auto& [save, state] : others_)
      for (const auto& [other, _] : state["files"].items())
        if (lists(state, other, entry, tensors)) return fmt::format("it is {} of the checkpoint {}", other, save);
    return std::nullopt;
  }

  std::uint32_t read_crc(const SafeTensors& file, const TensorInfo& t) {
    constexpr std::int64_t kPiece = std::int64_t{16} << 20;
    std::uint32_t crc = 0;
    for (std::int64_t at = 0; at < t.spec.bytes(); at += kPiece) {
      const auto n = std::min(kPiece, t.spec.bytes() - at);
      const auto& mapped = file.file();
      crc = crc32c(mapped.bytes().subspan(static_cast<std::size_t>(t.offset + at), static_cast<std::size_t>(n)), crc);
      mapped.drop(t.offset + at, n);
      read_ += n;
      if (options_.progress && total_ > 0)
        options_.progress(std::min(1.0, static_cast<double>(read_ * options_.parts) / static_cast<double>(total_)),
                          mapped.path().filename().string());
    }
    return crc;
  }

  using Files = std::map<std::string, SafeTensors>;

  /// Those of the optimizer, or those of the model, as far as they can be read.
  Files open_files(bool optimizer) {
    Files files;
    for (const auto& [name, _] : state_["files"].items())
      if (fs::path(name).extension() == ".safetensors" && state_["optimizer"].contains(name) == optimizer &&
          !bad_.contains(name) && !attempt([&, &n = name] { files.emplace(n, SafeTensors::open(folder_ / n)); }))
        bad_.insert(name);
    return files;
  }

  void check_model(const Files& files) {
    const Json& listed = state_["model"];
    std::set<std::string> found;
    for (const auto& [_, file] : files)
      for (const auto& t : file.tensors())
        if (!found.insert(t.name).second)
          report_(fmt::format("[io] {}: tensor {} is in more than one file", folder_.string(), shown(t.name)));
    for (const auto& [_, file] : files) check_tensors(file, listed, false);
    if (!bad_.empty()) return;  // which may hold the others
    for (const auto& [name, _] : listed.items())
      if (!found.contains(name)) report_(fmt::format("[io] {}: tensor {} is missing", folder_.string(), shown(name)));
  }

  /// `all`: the file must hold every tensor of the list.
  void check_tensors(const SafeTensors& file, const Json& listed, bool all) {
    const auto& path = file.file().path();
    if (all && file.tensors().size() != listed.size())
      return report_(
          fmt::format("[io] {}: expected {} tensors, found {}", path.string(), listed.size(), file.tensors().size()));
    std::vector<std::string> wrong;
    for (const auto& t : file.tensors()) {
      const bool mine = count_++ % options_.parts == options_.part;
      attempt([&] {
        const auto it = listed.find(t.name);
        require(it != listed.end(), "io", "{}: tensor {} is not in state.json", path.string(), shown(t.name));
        const auto want = need_crc32c(JsonObject(*it, fmt::format("{}: tensor {}", where_, shown(t.name))));
        if (mine && read_crc(file, t) != want) wrong.push_back(t.name);
      });
    }
    if (wrong.empty()) return;
    const auto of = options_.parts > 1 ? std::nullopt : owner(path.filename().string(), file_entry(path));
    report_(fmt::format("[io] {}: {} of {} tensors do not match their checksums, first {}: {}", path.string(),
                        wrong.size(), file.tensors().size(), shown(wrong[0]),
                        of.value_or(wrong.size() == file.tensors().size() && wrong.size() > 1
                                        ? "damaged on disk, or a file of another save"
                                        : "damaged on disk")));
  }

  void check_covers(const Files& files) {
    std::map<std::string, StoredTensor> tensors;
    bool readable = true;
    for (const auto& [name, file] : files)
      for (const auto& t : file.tensors()) {
        const auto& listed = state_["optimizer"][name];
        if (!listed.contains(t.name)) continue;  // reported
        readable &= attempt([&, &n = name, &f = file] {
          auto& tensor = tensors[t.name];
          tensor.name = t.name;
          add_part(tensor, {f.view(t), part_from(listed[t.name], t.spec.shape, where_ + ": " + shown(t.name))},
                   (folder_ / n).string());
        });
      }
    if (!readable) return;
    for (const auto& [_, t] : tensors)
      attempt([&, &tensor = t] { check_cover(tensor, folder_.string() + ": optimizer"); });
  }

  const fs::path& folder_;
  const std::string where_;
  const std::function<void(const std::string&)>& report_;
  const CheckOptions& options_;
  Json state_;
  std::set<std::string> bad_;                         // files whose tensors are not read
  std::vector<std::pair<std::string, Json>> others_;  // the other checkpoints of this run
  std::int64_t total_ = 0, read_ = 0, count_ = 0;
};

}  // namespace

void check_checkpoint(const fs::path& folder, const std::function<void(const std::string&)>& report,
                      const CheckOptions& options) {
  Check(folder, report, options).run();
}

}  // namespace hpcdl::io
