#include "tools/disturbance.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hpcdl::lab {
namespace {

TEST(disturbance, reads_the_processors_that_it_may_use) {
  constexpr const char* kStat =
      "cpu  100 0 100 1000 0 0 0 0 0 0\n"
      "cpu0 10 20 30 400 5 6 7 8 0 0\n"
      "cpu1 1 0 0 2 0 0 0 0 0 0\n"
      "cpu10 1000 0 0 0 0 0 0 0 0 0\n"
      "intr 1 2 3\n";
  const auto t = processor_times(kStat, {0, 1}, 0.01);
  EXPECT_NEAR(t.busy, 0.74, 1e-9);
  EXPECT_NEAR(t.idle, 4.07, 1e-9);
  EXPECT_NEAR(t.stolen, 0.08, 1e-9);
  EXPECT_EQ(processor_times("", {0}, 0.01).busy, 0);
}

TEST(disturbance, says_what_took_the_time) {
  const Disturbance quiet{.seconds = 1, .processors = 2, .waited = 0.001, .others = 0.02, .idle = 0.5, .preempted = 3};
  EXPECT_FALSE(quiet.heavy());
  EXPECT_EQ(quiet.text(), "");
  EXPECT_EQ(to_json(quiet).at("trusted"), true);
  Disturbance d = quiet;
  d.waited = 0.25;
  EXPECT_EQ(d.text(), "not to be trusted: our threads waited for a processor 25 % of the time");
  d.waited = 0.08;
  EXPECT_FALSE(d.heavy()) << "a quiet machine reaches the same value";
  d = quiet, d.others = 1;
  EXPECT_FALSE(d.heavy()) << "both had enough room";
  d.idle = 0.01;
  EXPECT_EQ(d.text(), "not to be trusted: other programs took 50 % of the processors");
  d = quiet, d.stolen = 0.2;
  EXPECT_EQ(d.text(), "not to be trusted: the host of this virtual machine took 10 % of the processors");
  EXPECT_EQ(to_json(d).at("trusted"), false);
  EXPECT_FALSE(Disturbance().heavy());
}

/// A program that computes on the processor to which this one is bound, until this object is destroyed.
class Beside {
 public:
  Beside() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &before_)) {
        CPU_SET(c, &one);
        break;
      }
    ::sched_setaffinity(0, sizeof one, &one);
    child_ = ::fork();
    if (child_ == 0) {
      ::alarm(60);  // in case the test is killed
      for (;;) asm volatile("");
    }
  }
  ~Beside() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::sched_setaffinity(0, sizeof before_, &before_);
  }
  bool there() const { return child_ > 0; }

 private:
  cpu_set_t before_;
  pid_t child_ = -1;
};

TEST(disturbance, sees_a_program_that_computes_on_the_same_processor) {
  if (!std::ifstream("/proc/self/schedstat")) GTEST_SKIP() << "this system does not report how long threads wait";
  const Beside beside;
  ASSERT_TRUE(beside.there());
  const DisturbanceWatch watch;
  Disturbance d;
  do {
    for (int i = 0; i < 1'000'000; ++i) asm volatile("" : : "r"(i));
    d = watch.so_far();
  } while ((d.seconds < 0.2 || !d.heavy()) && d.seconds < 20);
  EXPECT_TRUE(d.heavy()) << to_json(d);
  EXPECT_GT(d.waited, 0);
  EXPECT_GT(d.preempted, 0);
  EXPECT_EQ(to_json(d).at("trusted"), false);
}

}  // namespace
}  // namespace hpcdl::lab
