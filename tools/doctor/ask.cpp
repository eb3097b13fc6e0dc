#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "hpcdl/io/file.h"
#include "tools/doctor/software.h"

extern char** environ;

namespace hpcdl::lab {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostText = 1 << 16;

/// Starts a program in its own process group with both outputs on `fd`; returns its id, or -1.
pid_t start(const std::filesystem::path& program, const std::vector<std::string>& words, int fd) {
  std::vector<std::string> owned{program.string()};
  owned.insert(owned.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (auto& w : owned) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, fd, 1);
  posix_spawn_file_actions_adddup2(&files, fd, 2);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  if (posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return pid;
}

/// Reads until the other end is closed; false if that takes too long.
bool read_until(int fd, Clock::time_point deadline, std::string& text) {
  for (char block[4096];;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    if (left <= 0 || poll(&p, 1, static_cast<int>(left)) <= 0) return false;
    const auto n = ::read(fd, block, sizeof block);
    if (n <= 0) return true;
    text.append(block, std::min(static_cast<std::size_t>(n), kMostText - text.size()));
  }
}

}  // namespace

std::string ask(const std::filesystem::path& program, const std::vector<std::string>& words, double seconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const io::Fd out(ends[0]);
  io::Fd in(ends[1]);
  const pid_t pid = start(program, words, in.get());
  in = {};
  if (pid < 0) return "";
  std::string text;
  const bool whole =
      read_until(out.get(), Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6)), text);
  if (!whole) kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return whole && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "";
}

}  // namespace hpcdl::lab
