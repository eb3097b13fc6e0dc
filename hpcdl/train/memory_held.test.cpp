// What a run is planned to take against what its process then takes.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <string>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/device.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

/// By how much the plan may be too high: what it estimates are bounds, that of each thread's scratch above all.
std::int64_t margin(int threads) { return (48 + 14 * threads) * kMiB; }

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

/// A value of /proc/self/status, in bytes: "VmHWM" is the most that was ever resident.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stoll(line.substr(key.size() + 1));
  return -1;
}

/// Runs `body` in a process of its own, whose memory is that of the run alone; it returns what went wrong, or "".
void in_child(const std::function<std::string()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    std::string wrong;
    try {
      wrong = body();
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    std::fflush(nullptr);
    _exit(wrong.empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << ", see above";
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

/// What is said before the first step against the most that the process holds until its last file is written.
std::string compare(RunConfig& c, const std::string& name) {
  const auto ledger = plan_run(c, {}).now().ledger;
  const auto before = status_bytes("VmRSS");
  run(c, {});
  const auto taken = status_bytes("VmHWM") - before, planned = ledger.total();
  std::printf("[ MEASURED ] %s, %d threads: planned %.1f MiB, of them %.1f of tensors; taken %.1f MiB\n", name.c_str(),
              c.train.threads, mib(planned), mib(ledger.tensors()), mib(taken));
  if (taken > planned) return fmt::format("{}: {} bytes were planned, {} were taken", name, planned, taken);
  if (planned > taken + margin(c.train.threads))
    return fmt::format("{}: {} bytes were planned, only {} were taken", name, planned, taken);
  return "";
}

struct Kind {
  std::string name;
  int threads = 1;
  std::int64_t layers = 2, width = 32, context = 32, batch = 3, vocab = 0;
  Compute dtype = Compute::f32;
};

void configure(RunConfig& c, const Kind& kind, const io::TempFolder& tmp) {
  toy_config(c, tmp, "r");
  c.train.steps = 2, c.train.batch = kind.batch, c.train.threads = kind.threads, c.train.dtype = kind.dtype;
  c.model.family = io::Family::gpt2;
  c.model.layers = kind.layers, c.model.width = kind.width, c.model.heads = 2, c.model.context = kind.context;
  c.model.vocab = kind.vocab;
}

class MemoryHeld : public ::testing::TestWithParam<Kind> {};

TEST_P(MemoryHeld, the_plan_is_what_the_process_takes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  const io::TempFolder tmp;
  in_child([&] {
    RunConfig c;
    configure(c, GetParam(), tmp);
    return compare(c, GetParam().name);
  });
}
INSTANTIATE_TEST_SUITE_P(
    kinds, MemoryHeld,
    ::testing::Values(Kind{.name = "toy", .threads = 2}, Kind{.name = "deep", .layers = 60},
                      Kind{.name = "wide", .threads = 2, .width = 256, .context = 128, .batch = 4, .vocab = 8192},
                      Kind{.name = "wide_bf16",
                           .threads = 4,
                           .width = 256,
                           .context = 128,
                           .batch = 4,
                           .vocab = 8192,
                           .dtype = Compute::bf16}),
    [](const auto& kind) { return kind.param.name; });

/// What the driver says is gone while the last step runs. Libraries load what they like: hence the margin.
TEST(memory_held, gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t kGpuMargin = 1024 * kMiB;
  for (const Kind& kind :
       {Kind{.name = "gpu_text", .threads = 2, .width = 256, .context = 128, .batch = 4, .vocab = 8192},
        Kind{.name = "gpu_text_bf16",
             .threads = 2,
             .width = 256,
             .context = 128,
             .batch = 4,
             .vocab = 8192,
             .dtype = Compute::bf16}}) {
    const io::TempFolder tmp;
    RunConfig c;
    configure(c, kind, tmp);
    c.train.device = "cuda", c.train.steps = 4;
    const auto device = device_from_name("cuda");
    const auto ledger = plan_run(c, {}).now().ledger;
    const auto before = available_memory(device).bytes;
    std::int64_t taken = 0;
    Hooks hooks;
    hooks.after_step = [&](std::int64_t) { taken = std::max(taken, before - available_memory(device).bytes); };
    run(c, hooks);
    std::printf("[ MEASURED ] %s: planned %.1f MiB, of them %.1f of tensors; taken %.1f MiB\n", kind.name.c_str(),
                mib(ledger.total()), mib(ledger.tensors()), mib(taken));
    EXPECT_LE(taken, ledger.total() + kGpuMargin) << kind.name;
    EXPECT_LE(ledger.tensors(), taken + kGpuMargin) << kind.name;
  }
}

/// Under the least limit of addresses of which the plan says "fits" the run comes to its end: through the checkpoint,
/// the model, and a second run that goes on.
TEST(memory_held, a_run_that_fits_a_limit_of_addresses_comes_to_its_end) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves addresses of its own";
  const io::TempFolder tmp;
  const Kind kind{.name = "limited", .threads = 2, .width = 256, .context = 32, .batch = 1, .vocab = 8192};
  for (const std::int64_t steps : {1, 2})
    in_child([&]() -> std::string {
      RunConfig c;
      configure(c, kind, tmp);
      c.train.steps = steps;
      const auto fits = [&](std::int64_t limit) {
        const rlimit l{static_cast<rlim_t>(limit), RLIM_INFINITY};
        if (setrlimit(RLIMIT_AS, &l) != 0) std::abort();
        return plan_run(c, {}).fits();
      };
      const auto now = status_bytes("VmSize");
      std::int64_t limit = now + 64 * kMiB;
      while (!fits(limit)) limit += 4 * kMiB;
      std::printf("[ MEASURED ] step %lld: fits from %.0f MiB of addresses on\n", static_cast<long long>(steps),
                  mib(limit - now));
      run(c, {});
      return "";
    });
}

}  // namespace
}  // namespace hpcdl::train
