#include "hpcdl/train/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <type_traits>

namespace hpcdl::train {
namespace {

TEST(stop, the_first_signal_is_remembered) {
  for (const int s : {SIGTERM, SIGUSR1}) {
    const StopSignals signals(StopSignals::Interrupt::ends, nullptr);
    EXPECT_EQ(StopSignals::requested(), 0);
    raise(s);
    EXPECT_EQ(StopSignals::requested(), s);
  }
  const StopSignals signals(StopSignals::Interrupt::stops, nullptr);
  raise(SIGINT);
  EXPECT_EQ(StopSignals::requested(), SIGINT);
}

/// How a child ends that runs `body` and then returns.
int status_of(void (*body)()) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

TEST(stop, the_second_one_ends_the_process) {
  const auto twice = [] {
    const StopSignals signals(StopSignals::Interrupt::ends, nullptr);
    raise(SIGUSR1);
    if (StopSignals::requested() != SIGUSR1) _exit(1);
    raise(SIGTERM);
  };
  const int status = status_of(twice);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

/// As timeout(1) does: signals the process, and then its group.
TEST(stop, the_same_one_at_once_is_the_same_asking) {
  const auto asked = [](auto milliseconds) {
    return status_of([] {
      const StopSignals signals(StopSignals::Interrupt::ends, nullptr);
      raise(SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(decltype(milliseconds)::value));
      raise(SIGTERM);
      if (StopSignals::requested() != SIGTERM) _exit(1);
    });
  };
  EXPECT_EQ(asked(std::integral_constant<int, 0>()), 0);
  const int status = asked(std::integral_constant<int, 500>());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(stop, an_interrupt_counts_where_asked_for_only) {
  const int status = status_of([] {
    const StopSignals signals(StopSignals::Interrupt::ends, nullptr);
    raise(SIGINT);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

/// If they are nested, the inner one also handles SIGINT, and comes first.
TEST(stop, an_inner_one_adds_the_interrupt_and_takes_it_away) {
  const int status = status_of([] {
    const StopSignals outer(StopSignals::Interrupt::ends, nullptr);
    {
      const StopSignals inner(StopSignals::Interrupt::stops, nullptr);
      raise(SIGINT);
      if (StopSignals::requested() != SIGINT) _exit(1);
    }
    raise(SIGINT);
    _exit(2);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

/// The second signal has the effect that ended the process before: cleaning up may be needed.
TEST(stop, the_second_one_meets_the_previous_handler) {
  const int status = status_of([] {
    signal(SIGINT, [](int) { _exit(42); });
    const StopSignals signals(StopSignals::Interrupt::stops, nullptr);
    raise(SIGINT);
    std::this_thread::sleep_for(kSameAsking + std::chrono::milliseconds(200));
    raise(SIGINT);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
}

/// As when torchrun passes on a signal that the terminal has already sent to the ranks.
TEST(stop, sigterm_at_once_after_an_interrupt_is_the_same_asking) {
  EXPECT_EQ(status_of([] {
              const StopSignals signals(StopSignals::Interrupt::stops, nullptr);
              raise(SIGINT);
              raise(SIGTERM);
              if (StopSignals::requested() != SIGINT) _exit(1);
            }),
            0);
}

TEST(stop, an_interrupt_that_is_ignored_stays_so) {  // `command &` in a script
  EXPECT_EQ(status_of([] {
              signal(SIGINT, SIG_IGN);
              const StopSignals signals(StopSignals::Interrupt::stops, nullptr);
              raise(SIGINT);
              if (StopSignals::requested() != 0) _exit(1);
            }),
            0);
}

TEST(stop, handlers_go_with_it) {
  const int status = status_of([] {
    { const StopSignals signals(StopSignals::Interrupt::ends, nullptr); }
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(stop, the_end_of_the_job) {
  const auto at = [](long seconds) { return std::to_string(std::time(nullptr) + seconds); };
  const auto requested = [](const std::string& end) {
    const StopSignals signals(StopSignals::Interrupt::ends, end.c_str());
    return StopSignals::requested();
  };
  EXPECT_EQ(requested(at(3600)), 0);
  EXPECT_EQ(requested(at(30)), 0);  // a short job must not end at once
  for (const char* nonsense : {"", "soon", "1e9", "-1", "0", "99999999999999999999"})
    EXPECT_EQ(requested(nonsense), 0) << nonsense;
  const auto end = at(2);
  const StopSignals signals(StopSignals::Interrupt::ends, end.c_str());
  while (std::time(nullptr) < std::stol(end)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(StopSignals::requested(), SIGTERM);
}

}  // namespace
}  // namespace hpcdl::train
