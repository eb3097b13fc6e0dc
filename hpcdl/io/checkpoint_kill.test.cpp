// Kill -9 at random moments of a run that only saves.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

/// Resumes, then saves every step, and writes each saved step to the pipe. Ends only by a signal or a wrong byte. If it is
/// `asynchronous`, the run goes on while a thread writes.
[[noreturn]] void run_until_killed(const fs::path& folder, int pipe, bool asynchronous) {
  try {
    Checkpoints store(folder, 2);
    ToyRun run(0);
    std::int64_t step = 0;
    if (const auto found = Checkpoints::find(folder, "auto", [](const std::string&) {})) {
      load_checkpoint(found->path, run.model(), run.optimizer());
      step = found->state.step;
      if (!run.is_at(step)) _exit(3);
    }
    for (;; ++step) {
      if (write(pipe, &step, sizeof step) != sizeof step) _exit(4);
      run.go_to(step + 1);
      if (!asynchronous) {
        store.save(run.state(), run.content());
        continue;
      }
      store.begin(run.state(), run.content());
      run.go_to(step + 2);
      store.finish();
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    _exit(5);
  }
}

/// The current duration of a save: moments for kills are chosen from a few of these.
std::uint64_t microseconds_of_a_save() {
  const TempFolder tmp;
  Checkpoints store(tmp.path(), 2);
  const auto begin = std::chrono::steady_clock::now();
  for (const int step : {1, 2, 3}) store.save(ToyRun(step).state(), ToyRun(step).content());
  const auto taken = std::chrono::steady_clock::now() - begin;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(taken).count()) / 3 + 1;
}

/// Waits for the first step, which shows that the run has resumed.
std::int64_t first_in(int pipe) {
  std::int64_t step = -1;
  return read(pipe, &step, sizeof step) == sizeof step ? step : -1;
}

std::int64_t last_in(int pipe, std::int64_t last) {
  std::int64_t step = 0;
  while (read(pipe, &step, sizeof step) == sizeof step) last = step;
  return last;
}

class CheckpointKill : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Saves, CheckpointKill, ::testing::Bool(), [](const auto& asynchronous) {
  return std::string(asynchronous.param ? "asynchronous" : "synchronous");
});

TEST_P(CheckpointKill, fifty_times_loses_no_saved_step) {
  const TempFolder tmp;
  const Rng rng{2026, 0};
  std::int64_t safe = 0;
  int in_the_middle = 0;
  const std::uint64_t save_time = microseconds_of_a_save();
  for (std::uint64_t round = 0; round < 50; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      run_until_killed(tmp.path(), ends[1], GetParam());
    }
    close(ends[1]);
    if (round % 5 != 0) {  // every fifth is killed at once, perhaps while it still resumes
      const std::int64_t resumed = first_in(ends[0]);
      ASSERT_GE(resumed, safe) << "did not resume, round " << round;
      safe = resumed;
      usleep(static_cast<useconds_t>(rng.below(round, 3 * save_time)));
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "the run ended before it was killed, round " << round << ", " << status;
    safe = last_in(ends[0], safe);
    close(ends[0]);

    for (const auto& entry : fs::directory_iterator(tmp.path()))
      in_the_middle += entry.path().filename().string().starts_with(".tmp-");
    std::string warnings;
    const auto found = Checkpoints::find(tmp.path(), "auto", [&](const std::string& w) { warnings += w; });
    EXPECT_EQ(warnings, "") << "a kill may leave leftovers, never a damaged checkpoint";
    ASSERT_TRUE(found || safe == 0);
    if (!found) continue;
    EXPECT_GE(found->state.step, safe);
    EXPECT_LE(found->state.step, safe + 1);
    ToyRun run(0);
    load_checkpoint(found->path, run.model(), run.optimizer());
    EXPECT_TRUE(run.is_at(found->state.step));
    EXPECT_EQ(found->state.tokens, found->state.step * 1024);
    safe = found->state.step;
  }
  EXPECT_GT(safe, 0);
  EXPECT_GT(in_the_middle, 0) << "no kill happened during a save, so nothing was tested";
  const Checkpoints cleaned(tmp.path());
  for (const auto& entry : fs::directory_iterator(tmp.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-"));
}

}  // namespace
}  // namespace hpcdl::io
