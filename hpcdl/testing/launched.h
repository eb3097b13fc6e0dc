#pragma once
// Ranks that are processes, for tests that kill or stop them: the test program itself, started once more for every rank
// with a filter for one "test", which is the body of a rank.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::testing {

/// The arguments of a process of Launched.
struct Role {
  int rank = 0, world = 1;
  std::string folder;                        // folder of this launch; also for files of the ranks
  std::map<std::string, std::string> words;  // of the test
};

/// Set in the body of a rank; empty in the process that runs the tests.
inline std::optional<Role> launched_role() {
  const char* text = std::getenv("HPCDL_TEST_ROLE");
  if (!text) return std::nullopt;
  const auto json = io::parse_json(text, "HPCDL_TEST_ROLE");
  return Role{json.at("rank"), json.at("world"), json.at("folder"), json.at("words")};
}

/// The ranks of a launch meet over sockets. One that knows a verdict and cannot end by itself prints it and ends
/// with 71.
inline comm::Joined join(const Role& role, double timeout) {
  comm::Place place;
  place.rank = role.rank, place.world = role.world, place.run_id = "test";
  place.local_rank = -1, place.local_world = 0;
  return comm::join(place, {.method = "file://" + role.folder + "/meet",
                            .transport = "tcp",
                            .init_timeout = 60,
                            .timeout = timeout,
                            .leave = [](const std::string& sentence) {
                              std::fprintf(stderr, "%s\n", sentence.c_str());
                              std::_Exit(exit_code::kPeerLost);
                            }});
}

/// Runs body() like the program: exit codes, errors as one line on standard error, and telling the other ranks. Does
/// not return.
template <class F> [[noreturn]] void end_rank(comm::Joined& joined, F&& body) {
  int code = exit_code::kDone;
  try {
    body();
    joined.close();
  } catch (const comm::PeerLost& e) {
    std::fprintf(stderr, "%s\n", e.what());
    code = exit_code::kPeerLost;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    joined.fail(e.what());
    code = exit_code::kInternal;
  }
  std::_Exit(code);
}

class Launched {
 public:
  using Clock = std::chrono::steady_clock;

  /// filter: selects the test that is the body. Output of rank r: folder/r.out and folder/r.err.
  Launched(int world, const std::string& filter, std::map<std::string, std::string> words = {}) {
    for (int r = 0; r < world; ++r)
      start(io::Json{{"rank", r}, {"world", world}, {"folder", tmp_.path().string()}, {"words", words}}.dump(), filter,
            r);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    for (std::size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] <= 0) continue;
      signal(static_cast<int>(r), SIGKILL);
      ::waitpid(pids_[r], nullptr, 0);
    }
  }

  const io::fs::path& folder() const { return tmp_.path(); }
  void signal(int rank, int s) const { ::kill(pids_[static_cast<std::size_t>(rank)], s); }

  /// Waits until a rank has printed this line. False after a minute.
  bool prints(int rank, const std::string& line) const {
    for (const auto end = Clock::now() + std::chrono::minutes(1); Clock::now() < end;
         std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      std::ifstream out(tmp_ / fmt::format("{}.out", rank));
      for (std::string l; std::getline(out, l);)
        if (l == line) return true;
    }
    return false;
  }
  /// Exit code; -1: still running at the limit, -2: killed by a signal.
  int wait(int rank, Clock::time_point limit) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    for (int status = 0; Clock::now() < limit; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      if (::waitpid(pid, &status, WNOHANG) != pid) continue;
      pid = 0;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    }
    return -1;
  }
  /// What a rank wrote to its standard error.
  std::string words(int rank) const {
    std::ifstream in(tmp_ / fmt::format("{}.err", rank));
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  void start(const std::string& role, const std::string& filter, int rank) {
    const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
    const auto only = "--gtest_filter=" + filter;
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const auto& [ending, fd] : {std::pair{"out", 1}, {"err", 2}})
        ::dup2(::open((tmp_ / fmt::format("{}.{}", rank, ending)).c_str(), O_WRONLY | O_CREAT, 0644), fd);
      ::setenv("HPCDL_TEST_ROLE", role.c_str(), 1);
      ::execl(self.c_str(), self.c_str(), only.c_str(), nullptr);
      ::_exit(127);
    }
    pids_.push_back(pid);
  }

  io::TempFolder tmp_;
  std::vector<pid_t> pids_;
};

}  // namespace hpcdl::testing
