#pragma once
// Runs the real program like a user, and returns its output.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/io/temp_folder.h"

extern char** environ;

namespace hpcdl::cli_test {

struct Result {
  int code = 0;  // exit code; 128 + signal if killed
  std::string out, err;
  /// stdout as one JSON object; throws if it is not JSON.
  nlohmann::json json() const { return io::parse_json(out, "standard output"); }
};

/// A running program.
class Program {
 public:
  /// `in` is a file for stdin; "out>" may be replaced by a device such as /dev/full.
  explicit Program(const std::vector<std::string>& words, const std::string& in = "/dev/null",
                   const std::string& out = "") {
    out_ = out.empty() ? (folder_ / "out").string() : out;
    err_ = (folder_ / "err").string();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, in.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::vector<std::string> owned = words;
    owned.insert(owned.begin(), HPCDL_PROGRAM);
    std::vector<char*> argv;
    for (auto& w : owned) argv.push_back(w.data());
    argv.push_back(nullptr);
    posix_spawnattr_t attributes;  // the tests may have been started with Ctrl-C ignored
    posix_spawnattr_init(&attributes);
    sigset_t interrupt;
    sigemptyset(&interrupt), sigaddset(&interrupt, SIGINT);
    posix_spawnattr_setsigdefault(&attributes, &interrupt);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    require(posix_spawn(&pid_, HPCDL_PROGRAM, &actions, &attributes, argv.data(), environ) == 0, "test",
            "cannot start {}", HPCDL_PROGRAM);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  pid_t pid() const { return pid_; }
  /// Its standard output and error so far.
  std::string printed() const { return io::read_file(out_); }
  std::string said() const { return io::read_file(err_); }
  Result wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, out_.starts_with("/dev/") ? "" : io::read_file(out_), io::read_file(err_)};
  }

 private:
  io::TempFolder folder_;
  std::string out_, err_;
  pid_t pid_ = 0;
};

inline Result run(const std::vector<std::string>& words, const std::string& in = "/dev/null",
                  const std::string& out = "") {
  return Program(words, in, out).wait();
}

}  // namespace hpcdl::cli_test
