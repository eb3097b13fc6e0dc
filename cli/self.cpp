#include "cli/self.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "cli/verb.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/mapped_faults.h"

extern char** environ;

namespace hpcdl::cli {

std::string run_self(const std::vector<std::string>& words) {
  int ends[2];
  const bool made = pipe2(ends, 0) == 0;  // first: a call may read errno before its other arguments
  require(made, "demo", "cannot make a pipe: {}", std::strerror(errno));
  const io::Fd in(ends[0]);
  io::Fd out(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, in.get());
  std::vector<std::string> owned = words;
  owned.insert(owned.begin(), "hpcdl");
  std::vector<char*> argv;
  for (auto& w : owned) argv.push_back(w.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  require(error == 0, "demo", "cannot start hpcdl {}: {}", words.front(), std::strerror(error));
  { const io::Fd closed = std::move(out); }  // the child holds the other copy
  std::string text;
  char block[4096];
  for (ssize_t n; (n = read(in.get(), block, sizeof block)) > 0 || (n < 0 && errno == EINTR);)
    if (n > 0) text.append(block, static_cast<std::size_t>(n));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "demo", "hpcdl {} failed; its message is above",
          words.front());
  return text;
}

std::string own_command() {
  std::ifstream in("/proc/self/cmdline");
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  std::string out;
  for (std::size_t at = 0; at < all.size();) {
    const auto end = std::min(all.find('\0', at), all.size());
    out += (out.empty() ? "" : " ") + quoted(all.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

void end_cleanly_on_signals() {
  struct sigaction action{}, before{};
  sigfillset(&action.sa_mask);  // the same request may come twice, to a process and to its group: the removal goes on
  action.sa_handler = [](int signal) {
    static std::atomic_flag begun;
    if (begun.test_and_set())
      for (;;) pause();  // locked by another thread, which ends with the process
    leave_bar();
    remove_unfinished();
    end_by(signal);
  };
  io::explain_mapped_faults(exit_code::kInternal, []() noexcept {
    leave_bar();
    remove_unfinished();
  });
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP})  // signals that are ignored stay ignored: nohup, `command &` in a script
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

}  // namespace hpcdl::cli
