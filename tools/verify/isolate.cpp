#include "tools/verify/isolate.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::lab::verify {

namespace {

/// Processor time of all threads of a process, seconds.
double processor_seconds(pid_t pid) {
  clockid_t clock{};
  timespec t{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(p != MAP_FAILED, "verify", "cannot share {} bytes with a child process", bytes);
  memory_ = {p, [bytes](void* at) { ::munmap(at, bytes); }};
}

Child::Child(const std::function<void()>& body, const volatile std::uint64_t* beat, std::chrono::milliseconds patience)
    : beat_(beat), last_(*beat), patience_(patience), since_(std::chrono::steady_clock::now()) {
  std::fflush(stdout);  // otherwise the child would print it again
  pid_ = ::fork();
  require(pid_ >= 0, "verify", "cannot start a process for a kernel: {}", std::strerror(errno));
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) std::signal(s, SIG_DFL);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  try {
    body();
    *returned_.as<bool>() = true;
  } catch (...) {}
  std::fflush(stdout);
  ::_exit(*returned_.as<bool>() ? 0 : 1);  // the child must not run the parent's destructors
}

Child::Child(Child&& o) noexcept
    : pid_(std::exchange(o.pid_, -1)),
      returned_(std::move(o.returned_)),
      beat_(o.beat_),
      last_(o.last_),
      patience_(o.patience_),
      since_(o.since_),
      worked_(o.worked_),
      failure_(std::move(o.failure_)),
      hung_(o.hung_) {}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Child::poll() {
  if (pid_ <= 0) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = -1;
    if (WIFSIGNALED(status)) failure_ = fmt::format("crashed: {}", ::strsignal(WTERMSIG(status)));
    else if (!*returned_.as<bool>()) failure_ = fmt::format("ended the process with exit code {}", WEXITSTATUS(status));
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  const double worked = processor_seconds(pid_);
  if (const auto beat = *beat_; beat != last_ || (beat & kPatient)) last_ = beat, since_ = now, worked_ = worked;
  const double patience = std::chrono::duration<double>(patience_).count();
  const double spent = worked - worked_, elapsed = std::chrono::duration<double>(now - since_).count();
  const bool asleep = elapsed >= 4 * patience && spent < 0.01 * elapsed;
  if (spent < patience && !asleep && elapsed < 24 * patience) return false;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1, hung_ = true;
  failure_ = fmt::format("hung: no answer within {:.3g} s", patience);
  return true;
}

void Child::wait() {
  for (auto pause = std::chrono::microseconds(100); !poll();
       pause = std::min(2 * pause, std::chrono::microseconds(5000)))
    std::this_thread::sleep_for(pause);
}

}  // namespace hpcdl::lab::verify
