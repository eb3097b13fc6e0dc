#include "hpcdl/io/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <tuple>

#include "hpcdl/comm/transport.h"
#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/background_save.h"

namespace hpcdl::io {
namespace {

constexpr std::string_view kAside = ".tmp-";
constexpr auto kSeen = std::chrono::seconds(3);
constexpr auto kLookAgain = std::chrono::milliseconds(50);

std::string step_name(std::int64_t step) { return fmt::format("step_{:08}", step); }

void remove_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) fail_file(path, "remove", code.value());
}

/// A kill in the middle of a removal must not leave a half checkpoint under its real name.
void remove_safely(const fs::path& path) {
  const fs::path aside = path.parent_path() / fmt::format("{}delete-{}", kAside, path.filename().string());
  remove_tree(aside);
  Unfinished rest(aside);
  rename_durably(path, aside);
  rest.created();
  remove_tree(aside);
}

/// Not a folder that a user has renamed to keep it: such a folder is never removed.
bool is_step_name(const std::string& name) {
  constexpr std::string_view kBegin = "step_";
  return name.starts_with(kBegin) && name.size() > kBegin.size() &&
         name.find_first_not_of("0123456789", kBegin.size()) == std::string::npos;
}

/// Those without info sort first, so that a run that resumes reports them.
bool newer(const ListedCheckpoint& a, const ListedCheckpoint& b) {
  const auto key = [](const ListedCheckpoint& c) { return std::tuple(!c.info, c.info ? c.info->serial : 0, c.path); };
  return key(a) > key(b);
}

std::int64_t next_serial(const std::vector<ListedCheckpoint>& all) {
  for (const auto& c : all)
    if (c.info) return c.info->serial + 1;
  return 1;
}

/// Moves `aside` to `path`; an existing folder is exchanged with it in one step, so that one of them is always
/// there.
void put_in_place(const fs::path& aside, const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return rename_durably(aside, path);
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail_file(path, "replace", errno);
    remove_safely(path);  // this file system cannot exchange
    return rename_durably(aside, path);
  }
  sync_folder(path.parent_path());
  remove_tree(aside);
}

}  // namespace

std::vector<ListedCheckpoint> list_checkpoints(const fs::path& folder) {
  std::vector<ListedCheckpoint> out;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return out;
  for (const auto& path : list_folder(folder)) {
    if (!is_step_name(path.filename().string()) || !fs::is_directory(path, ignored)) continue;
    ListedCheckpoint found{path, {}, {}};
    try {
      found.info = read_checkpoint_info(path);
    } catch (const Error& e) {
      found.flaw = e.what();
    }
    out.push_back(std::move(found));
  }
  std::sort(out.begin(), out.end(), newer);
  return out;
}

void Checkpoints::lock_and_clean() {
  make_folder(folder_);
  const fs::path lock = folder_ / ".lock";
  lock_ = Fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock_) fail_file(lock, "create", errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail("io", "{}: another run is writing its checkpoints here; stop it or choose another folder", folder_.string());
  for (const auto& path : list_folder(folder_))
    if (path.filename().string().starts_with(kAside)) remove_tree(path);
}

/// Another host may have its own folder with the same path, even with checkpoints: rank 0 writes a word into its
/// lock file, and the others check for it.
void Checkpoints::expect_one_folder() {
  const fs::path lock = folder_ / ".lock";
  std::string word;
  agree(ranks_, [&] {
    if (!first()) return;
    std::random_device random;
    word = fmt::format("{:08x}{:08x}\n", random(), random());
    const bool written = ::ftruncate(lock_.get(), 0) == 0 &&
                         ::pwrite(lock_.get(), word.data(), word.size(), 0) == static_cast<ssize_t>(word.size()) &&
                         ::fsync(lock_.get()) == 0;
    if (!written) fail_file(lock, "write", errno);
  });
  word = ranks_.gather(word)[0];
  agree(ranks_, [&] {
    // Network file systems may show a little later what another host has written.
    for (const auto end = comm::Clock::now() + kSeen; comm::Clock::now() < end;
         std::this_thread::sleep_for(kLookAgain)) {
      std::error_code ignored;
      if (fs::is_regular_file(lock, ignored) && read_file(lock) == word) return;
    }
    fail("io", "{}: rank {} does not see the folder in which rank 0 writes: all hosts must share it", folder_.string(),
         ranks_.rank());
  });
}

/// A save whose folder is still set aside.
struct Checkpoints::Begun {
  fs::path path, aside;
  std::int64_t serial = 0;
  Unfinished unfinished;  // on rank 0
};

struct Checkpoints::Pending {
  Begun begun;
  std::optional<BackgroundSave> save;
};

Checkpoints::Checkpoints(const fs::path& folder, std::int64_t keep, Ranks* ranks)
    : folder_(folder), keep_(keep), ranks_(ranks ? *ranks : alone_) {
  agree(ranks_, [&] {
    if (first()) lock_and_clean();
  });
  if (ranks_.size() > 1) expect_one_folder();
}

Checkpoints::~Checkpoints() {
  if (pending_) give_up();
}

fs::path Checkpoints::save(const TrainState& state, const CheckpointContent& content) {
  return save(state.step, [&](const fs::path& folder, std::int64_t serial) {
    write_checkpoint(folder, state, serial, content, ranks_);
  });
}

fs::path Checkpoints::save(std::int64_t step,
                           const std::function<void(const fs::path& folder, std::int64_t serial)>& fill) {
  if (pending_) finish();
  Begun begun = set_aside(step);
  try {
    fill(begun.aside, begun.serial);
    agree(ranks_, [&] {
      if (first()) complete(begun);
    });
  } catch (...) {
    remove_aside(begun);
    throw;
  }
  return begun.path;
}

void Checkpoints::begin(const TrainState& state, const CheckpointContent& content, const Stays& stays,
                        std::function<void()> arrive) {
  if (pending_) finish();
  Begun begun = set_aside(state.step);
  try {
    expect_seen(begun.aside, ranks_);
    snapshot_.take(content, stays, ranks_, arrive);
    agree(ranks_, [&] {
      if (first() && content.extra) content.extra(begun.aside);
    });
  } catch (...) {
    remove_aside(begun);
    throw;
  }
  BackgroundSave::Job job{.folder = begun.aside,
                          .state = state,
                          .serial = begun.serial,
                          .rank = ranks_.rank(),
                          .ranks = ranks_.size(),
                          .arrive = std::move(arrive),
                          .put_in_place = [this] { complete(pending_->begun); }};
  pending_ = std::unique_ptr<Pending>(new Pending{std::move(begun), std::nullopt});
  pending_->save.emplace(std::move(job), snapshot_);
}

bool Checkpoints::ready() const { return pending_ && pending_->save->ended(); }

bool Checkpoints::failed() const { return pending_ && pending_->save->failed(); }

fs::path Checkpoints::finish() {
  try {
    agree(ranks_, [&] { pending_->save->wait_for_part(); });
    agree(ranks_, [&] { pending_->save->wait(); });
  } catch (...) {
    give_up();
    throw;
  }
  const auto path = pending_->begun.path;
  pending_.reset();
  return path;
}

/// Nothing of the pending save remains, unless its threads complete it.
void Checkpoints::give_up() {
  pending_->save.reset();
  remove_aside(pending_->begun);
  pending_.reset();
}

Checkpoints::Begun Checkpoints::set_aside(std::int64_t step) {
  Begun begun{folder_ / step_name(step), folder_ / (std::string(kAside) + step_name(step)), 0, {}};
  try {
    agree(ranks_, [&] {
      if (!first()) return;
      begun.serial = next_serial(list_checkpoints(folder_));
      remove_tree(begun.aside);
      begun.unfinished = Unfinished(begun.aside);
      make_folder(begun.aside);
      begun.unfinished.created();
    });
  } catch (...) {
    remove_aside(begun);
    throw;
  }
  return begun;
}

void Checkpoints::complete(Begun& begun) {
  begun.unfinished.finishing();
  put_in_place(begun.aside, begun.path);
  begun.unfinished = {};
  write_file_atomic(folder_ / "latest", begun.path.filename().string() + "\n");
  prune(begun.path);
}

void Checkpoints::remove_aside(const Begun& begun) {
  std::error_code ignored;
  if (first()) fs::remove_all(begun.aside, ignored);
}

void Checkpoints::prune(const fs::path& newest) {
  if (keep_ <= 0) return;
  const auto all = list_checkpoints(folder_);
  std::int64_t kept = 0;
  for (const auto& c : all) {
    // Damaged checkpoints are not counted, so that they do not replace whole ones.
    const bool whole = c.info.has_value();
    if (c.path == newest || (whole && kept < keep_)) kept += whole;
    else remove_safely(c.path);
  }
}

std::optional<CheckpointInfo> Checkpoints::find(const fs::path& folder, const std::string& resume, const Warn& warn,
                                                Ranks* together) {
  if (resume == "none") return std::nullopt;
  OneRank alone;
  Ranks& ranks = together ? *together : alone;
  std::optional<CheckpointInfo> found;
  const auto verify = [&](const fs::path& path) {
    agree(ranks, [&] { found = verify_checkpoint(path, ranks.rank(), ranks.size()); });
  };
  if (resume != "auto") {
    agree(ranks, [&] {
      std::error_code ignored;
      require(fs::is_directory(resume, ignored), "io",
              "resume = {}: expected auto, none or the folder of a checkpoint, found no such folder", shown(resume));
    });
    verify(resume);
    return found;
  }
  std::vector<std::string> names;
  agree(ranks, [&] {
    if (ranks.rank() == 0)
      for (const auto& c : list_checkpoints(folder)) names.push_back(c.path.filename().string());
  });
  names = Json::parse(ranks.gather(Json(names).dump())[0]).get<std::vector<std::string>>();
  for (const auto& name : names) {
    try {
      verify(folder / name);
      return found;
    } catch (const comm::PeerLost&) {
      throw;
    } catch (const Error& e) {
      if (ranks.rank() == 0) warn(fmt::format("{} is damaged and is skipped: {}", (folder / name).string(), e.what()));
    }
  }
  require(names.empty(), "io", "{}: all {} checkpoints are damaged; set checkpoint.resume = \"none\" to start over",
          folder.string(), names.size());
  return std::nullopt;
}

}  // namespace hpcdl::io
