#include "hpcdl/io/file_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

class FileQueue::Job {
 public:
  std::vector<FilePiece> pieces;
  std::size_t begun = 0, done = 0;
  std::string error;  // the first one; "": none so far
};

std::string_view way_name(FileQueue::Way way) { return way == FileQueue::Way::uring ? "io_uring" : "threads"; }

FileQueue::FileQueue(Way way) {
  if (way == Way::uring) uring_ = Uring::open(kDepth);
  if (uring_) threads_.emplace_back([this] { serve_uring(); });
  else
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { serve_calls(); });
}

FileQueue::~FileQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    jobs_.clear();
  }
  more_.notify_all();
}

FileQueue::Moving FileQueue::start(std::span<const FilePiece> pieces) {
  auto job = std::make_shared<Job>();
  for (const auto& p : pieces)
    for (std::int64_t at = 0; at < p.bytes; at += kPiece)
      job->pieces.push_back({p.file, p.offset + at, std::min(kPiece, p.bytes - at), p.memory + at, p.write});
  if (job->pieces.empty()) return job;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  more_.notify_all();
  return job;
}

void FileQueue::wait(const Moving& moving) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return moving->done == moving->pieces.size(); });
  if (!moving->error.empty()) throw Error(moving->error);
}

bool FileQueue::done(const Moving& moving) {
  const std::lock_guard lock(mutex_);
  return moving->done == moving->pieces.size();
}

/// The next piece; none if the queue ends, or if there is none and it may not wait.
FileQueue::Request FileQueue::take(bool may_wait) {
  std::unique_lock lock(mutex_);
  if (may_wait) more_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
  if (jobs_.empty()) return {};
  const auto job = jobs_.front();
  const auto& piece = job->pieces[job->begun++];
  if (job->begun == job->pieces.size()) jobs_.pop_front();
  return {job, piece};
}

/// From here on file and memory may be gone.
void FileQueue::finish(const Request& request, std::string_view error) {
  const std::lock_guard lock(mutex_);
  auto& job = *request.job;
  if (job.error.empty()) job.error = error;
  if (++job.done == job.pieces.size()) done_.notify_all();
}

/// Takes the result of a request, bytes or -errno. True if it is done, with or without success.
bool FileQueue::advance(Request& request, std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  auto& r = request.rest;
  const auto& file = *r.file;
  try {
    if (result < 0) fail_file(file.path(), r.write ? "write" : "read", static_cast<int>(-result));
    const auto needed = r.write ? r.bytes : std::min(r.bytes, file.size() - r.offset);
    const auto whole = result / DirectFile::kAlign * DirectFile::kAlign;
    require(result >= needed || whole > 0 || r.write, "io",
            "{}: was cut short while it was in use: it had {} bytes and ends at {} now; to change a file, write "
            "another one and rename it into place",
            file.path().string(), file.size(), r.offset + result);
    require(result >= needed || whole > 0, "io", "{}: cannot write: the disk took {} of {} bytes", file.path().string(),
            result, needed);
    if (result < needed) {
      r.offset += whole, r.bytes -= whole, r.memory += whole;
      return false;
    }
    finish(request, {});
  } catch (const Error& e) {
    finish(request, e.what());
  }
  return true;
}

void FileQueue::serve_uring() {
  std::array<Request, kDepth> requests;
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < requests.size(); ++i) idle.push_back(i);
  const auto submit = [&](std::size_t i) {
    const auto& r = requests[i].rest;
    uring_->queue({r.write, r.file->fd(), r.memory, static_cast<std::uint32_t>(r.bytes), r.offset}, i);
  };
  for (;;) {
    while (!idle.empty()) {
      auto next = take(idle.size() == requests.size());
      if (!next) break;
      const auto i = idle.back();
      idle.pop_back();
      requests[i] = std::move(next);
      submit(i);
    }
    if (idle.size() == requests.size()) return;
    uring_->wait([&](std::uint64_t i, std::int64_t result) {
      if (!advance(requests[i], result)) return submit(i);
      requests[i] = {};
      idle.push_back(i);
    });
  }
}

void FileQueue::serve_calls() {
  while (auto request = take(true)) {
    for (bool done = false; !done;) {
      const auto& r = request.rest;
      const auto bytes = static_cast<std::size_t>(r.bytes);
      const auto n = r.write ? ::pwrite(r.file->fd(), r.memory, bytes, r.offset)
                             : ::pread(r.file->fd(), r.memory, bytes, r.offset);
      const std::int64_t result = n < 0 ? -errno : n;
      if (!r.file->direct())  // the cache must not take the memory that is saved elsewhere
        ::posix_fadvise(r.file->fd(), r.offset, r.bytes, POSIX_FADV_DONTNEED);
      done = advance(request, result);
    }
  }
}

}  // namespace hpcdl::io
