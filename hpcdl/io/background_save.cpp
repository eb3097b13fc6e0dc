#include "hpcdl/io/background_save.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::io {
namespace {

using namespace std::chrono_literals;

constexpr int kNiceness = 10;        // the threads that compute come first
constexpr double kSeenSeconds = 30;  // for network file systems, which show late what another host has written
constexpr double kEndSeconds = 3;    // for the notes of ranks that may be lost

fs::path note_of(const fs::path& folder, int rank) { return folder / fmt::format("part-rank{}.json", rank); }

}  // namespace

BackgroundSave::BackgroundSave(Job job, const CheckpointSnapshot& snapshot)
    : job_(std::move(job)), snapshot_(snapshot), thread_([this] { run(); }) {}

BackgroundSave::~BackgroundSave() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::run() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
  try {
    const bool first = job_.rank == 0;
    if (job_.arrive) job_.arrive();
    Json own = write_part(job_.folder, snapshot_.content(), snapshot_.plan(), job_.rank, nullptr);
    if (const auto& facts = snapshot_.content().facts) own["facts"] = facts();
    if (!first) write_file_atomic(note_of(job_.folder, job_.rank), own.dump());
    progress_ = Progress::part_written, progress_.notify_all();
    if (first) {
      const auto parts = all_parts(std::move(own));
      accept(parts);
      complete_checkpoint(job_.folder, job_.state, job_.serial, snapshot_.content(), snapshot_.plan(), parts);
      job_.put_in_place();
    }
  } catch (...) {
    error_ = std::current_exception();
    if (progress_ == Progress::writing) progress_ = Progress::failed, progress_.notify_all();
  }
  ended_ = true;
}

/// By rank, and removes the notes.
std::vector<Json> BackgroundSave::all_parts(Json own) const {
  std::vector<Json> parts{std::move(own)};
  for (int r = 1; r < job_.ranks; ++r) {
    const auto note = note_of(job_.folder, r);
    std::optional<Clock::time_point> expected;  // since when it should be there
    for (auto nap = 1ms; !fs::exists(note); nap = std::min<decltype(nap)>(2 * nap, 50ms)) {
      if (!expected && (all_written_ || ending_)) expected = Clock::now();
      require(!expected || seconds_since(*expected) < (all_written_ ? kSeenSeconds : kEndSeconds), "io",
              "{}: rank 0 does not see what rank {} has written: it is lost, or the folder is not shared by all hosts",
              note.string(), r);
      std::this_thread::sleep_for(nap);
      list_folder(job_.folder);  // so that a network file system looks again
    }
    parts.push_back(parse_json(read_file(note), note.string()));
  }
  for (int r = 1; r < job_.ranks; ++r) fs::remove(note_of(job_.folder, r));
  return parts;
}

void BackgroundSave::accept(std::span<const Json> parts) const {
  if (!snapshot_.content().accept) return;
  std::vector<std::string> facts;
  for (const auto& part : parts) facts.push_back(part.value("facts", ""));
  snapshot_.content().accept(facts);
}

void BackgroundSave::wait_for_part() {
  progress_.wait(Progress::writing);
  if (progress_ != Progress::failed) return;
  thread_.join();
  std::rethrow_exception(error_);
}

void BackgroundSave::wait() {
  all_written_ = true;
  thread_.join();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace hpcdl::io
