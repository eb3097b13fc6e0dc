// The planned memory of a run against the memory that its process takes.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/device.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

/// The amount by which the plan may be too high: its estimates are upper bounds, mainly that of each thread's scratch.
std::int64_t margin(int threads) { return (48 + 14 * threads) * kMiB; }

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

/// A value of /proc/self/status, in bytes: "VmHWM" is the peak resident size.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stoll(line.substr(key.size() + 1));
  return -1;
}

/// Runs `body` in a separate process, whose memory is that of the run alone; it returns what went wrong, or "".
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
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << ", see the output above";
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

/// The amount announced before the first step, with the copy for checkpoints, for which there is room, against the peak
/// of the process until its last file is written.
std::string compare(RunConfig& c, const std::string& name) {
  const auto ledger = plan_run(c, {}).now().ledger;
  const auto before = status_bytes("VmRSS");
  run(c, {});
  const auto taken = status_bytes("VmHWM") - before, planned = ledger.total() + ledger.copy;
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
  bool images = false;
  io::Family family = io::Family::gpt2;
  std::int64_t heads = 2, accumulate = 1;
  int ranks = 1;
};

void configure(RunConfig& c, const Kind& kind, const io::TempFolder& tmp) {
  toy_config(c, tmp, "r");
  c.train.steps = 2, c.train.batch = kind.batch, c.train.threads = kind.threads, c.train.dtype = kind.dtype;
  c.train.accumulate = kind.accumulate;
  c.model.family = kind.family;
  c.model.layers = kind.layers, c.model.width = kind.width, c.model.heads = kind.heads, c.model.context = kind.context;
  c.model.vocab = kind.vocab;
}

class MemoryHeld : public ::testing::TestWithParam<Kind> {};

TEST_P(MemoryHeld, the_plan_is_what_the_process_takes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes additional memory";
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

/// The peak of used memory according to the driver, sampled every other millisecond.
class Taken {
 public:
  explicit Taken(Device device) : device_(device), before_(free()), watch_([this] { watch(); }) {}
  ~Taken() { stop(); }
  std::int64_t most() {
    stop();
    return most_;
  }

 private:
  std::int64_t free() const { return available_memory(device_).bytes; }
  void watch() {
    for (bool last = false; !last; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
      last = over_;
      most_ = std::max(most_, before_ - free());
    }
  }
  void stop() {
    over_ = true;
    if (watch_.joinable()) watch_.join();
  }

  Device device_;
  std::int64_t before_, most_ = 0;
  std::atomic<bool> over_ = false;
  std::thread watch_;
};

class GpuMemoryHeld : public ::testing::TestWithParam<Kind> {
 protected:
  /// The amount by which the plan may be too high: that for the driver and the libraries is an upper bound.
  static std::int64_t margin(const Kind& kind) { return (kind.ranks > 1 ? 128 : 64) * kMiB; }

  static void configure(RunConfig& c, const Kind& kind, const io::TempFolder& tmp, int rank) {
    train::configure(c, kind, tmp);
    c.train.device = fmt::format("cuda:{}", rank), c.train.steps = 4;
    if (!kind.images) return;
    c.model = {}, c.data = {};
    c.model.family = io::Family::resnet18, c.image.width = 16, c.data.procedural = 64;
  }

  static bool is_right(const Kind& kind) {
    const io::TempFolder tmp;
    std::vector<RunConfig> configs(static_cast<std::size_t>(kind.ranks));
    for (int rank = 0; rank < kind.ranks; ++rank) configure(configs[static_cast<std::size_t>(rank)], kind, tmp, rank);
    if (kind.ranks == 1) return is_right(kind, configs[0], {}, 0);
    std::vector<char> right(configs.size());
    testing::run_ranks(kind.ranks, [&](const comm::Group& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      Hooks hooks;
      hooks.world = world;
      right[rank] = is_right(kind, configs[rank], hooks, world.rank());
    });
    return std::ranges::all_of(right, [](char x) { return x != 0; });
  }
  static bool is_right(const Kind& kind, RunConfig& c, const Hooks& hooks, int rank) {
    const auto device = device_from_name(c.train.device);
    const auto ledger = plan_run(c, hooks).now().ledger;
    Taken taken(device);
    run(c, hooks);
    const auto most = taken.most(), planned = ledger.total();
    const auto text = fmt::format(
        "[ MEASURED ] {}, rank {}: planned {:.1f} MiB, of them {:.1f} of tensors and {:.1f} of workspaces; taken "
        "{:.1f} "
        "MiB\n",
        kind.name, rank, mib(planned), mib(ledger.tensors()), mib(ledger.workspaces), mib(most));
    for (std::FILE* to : {stdout, stderr}) std::fputs(text.c_str(), to), std::fflush(to);
    return most <= planned && planned <= most + margin(kind);
  }
};

/// In a newly started program, so that no earlier run has loaded anything that this one needs.
TEST_P(GpuMemoryHeld, the_plan_is_what_the_driver_says_is_gone) {
  if (cuda_devices() < GetParam().ranks) GTEST_SKIP() << "needs GPUs: " << GetParam().ranks;
  if (kSanitized) GTEST_SKIP() << "a second program cannot be started under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(is_right(GetParam()) ? 0 : 1), ::testing::ExitedWithCode(0), "MEASURED");
}
INSTANTIATE_TEST_SUITE_P(
    kinds, GpuMemoryHeld,
    ::testing::Values(
        Kind{.name = "toy"}, Kind{.name = "toy_bf16", .dtype = Compute::bf16},
        Kind{.name = "text", .width = 256, .context = 128, .batch = 4, .vocab = 8192},
        Kind{.name = "text_tf32", .width = 256, .context = 128, .batch = 4, .vocab = 8192, .dtype = Compute::tf32},
        Kind{.name = "text_bf16", .width = 256, .context = 128, .batch = 4, .vocab = 8192, .dtype = Compute::bf16},
        Kind{.name = "large_bf16",
             .layers = 6,
             .width = 1024,
             .context = 1024,
             .batch = 4,
             .vocab = 32000,
             .dtype = Compute::bf16,
             .heads = 16,
             .accumulate = 2},
        Kind{.name = "large_f32", .layers = 3, .width = 1024, .context = 512, .vocab = 16384, .heads = 8},
        Kind{.name = "wide_heads",
             .width = 384,
             .context = 256,
             .vocab = 512,
             .dtype = Compute::bf16,
             .family = io::Family::llama},
        Kind{.name = "deep_bf16", .layers = 60, .dtype = Compute::bf16},
        Kind{.name = "odd_bf16",
             .width = 1000,
             .context = 128,
             .batch = 4,
             .vocab = 8191,
             .dtype = Compute::bf16,
             .heads = 8},
        Kind{.name = "images", .batch = 8, .images = true},
        Kind{.name = "images_bf16", .batch = 8, .dtype = Compute::bf16, .images = true, .accumulate = 2},
        Kind{.name = "two_ranks", .width = 256, .context = 128, .batch = 4, .vocab = 8192, .ranks = 2},
        Kind{.name = "two_ranks_bf16",
             .layers = 6,
             .width = 768,
             .context = 512,
             .batch = 4,
             .vocab = 16384,
             .dtype = Compute::bf16,
             .heads = 12,
             .ranks = 2}),
    [](const auto& kind) { return kind.param.name; });

/// With the smallest limit of address space for which the plan says "fits", the run completes: including the
/// checkpoint, the model, and a second run that continues it.
TEST(memory_held, a_run_that_fits_a_limit_of_addresses_comes_to_its_end) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves address space";
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
