#include "tools/probe/parts.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "hpcdl/core/clock.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/relu/relu.h"
#include "tools/probe/bound.h"

namespace hpcdl::lab {

namespace {

void wait_awake(std::chrono::microseconds time) {
  for (const auto until = Clock::now() + time; Clock::now() < until;) {}
}

/// Mean seconds of a job on a pool whose workers sleep: they give up spinning after some 50 us.
double launch_asleep(Pool& pool) {
  constexpr int kTimes = 8;
  double sum = 0;
  for (int i = 0; i < kTimes; ++i) {
    wait_awake(std::chrono::microseconds(200));
    const auto start = Clock::now();
    pool.run_on_each_thread([](int) {});
    sum += seconds_since(start);
  }
  return sum / kTimes;
}

constexpr int kChained = 1000;

Instance empty_program() {
  Graph g({.inference = true});
  const Operand x = g.temporary("x", {{16}, DType::f32}).operand();
  for (int i = 0; i < kChained; ++i)
    g.emit("nothing", [](Stream&, const Grad*, const void*) {}, std::span(&x, 1), nullptr, 0, {});
  return Instance(g.finish());
}

Instance small_program() {
  Graph g({.inference = true});
  Var x = g.input("x", {{16}, DType::f32});
  for (int i = 0; i < kChained; ++i) x = relu(x);
  g.keep(x);
  return Instance(g.finish());
}

constexpr std::int64_t kTouched = std::int64_t{32} << 20;

/// Bytes per second of the first write to pages; negative if the memory cannot be allocated.
double first_touch(Pool& pool, bool huge) {
  constexpr std::int64_t kHuge = std::int64_t{2} << 20, kPage = 4096;
  void* p = mmap(nullptr, kTouched + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return -1;
  madvise(p, kTouched + kHuge, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  auto* begin = reinterpret_cast<volatile char*>((reinterpret_cast<std::uintptr_t>(p) + kHuge - 1) / kHuge * kHuge);
  const auto start = Clock::now();
  parallel_for(pool, kTouched / kHuge, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t at = from * kHuge; at < to * kHuge; at += kPage) begin[at] = 1;
  });
  const double seconds = seconds_since(start);
  munmap(p, kTouched + kHuge);
  return static_cast<double>(kTouched) / seconds;
}

/// Seconds in one direction; negative if a thread cannot be bound to its CPU.
double ping_pong(int from, int to) {
  constexpr int kTrips = 2000;
  struct alignas(64) {
    std::atomic<int> value{0};
  } line;
  std::atomic<int> ready{0};
  std::atomic<bool> bound{true};
  const auto meet = [&](int cpu) {
    if (!bind_to(cpu)) bound = false;
    ready.fetch_add(1);
    while (ready.load() < 2) std::this_thread::yield();
    return bound.load();
  };
  double seconds = -1;
  std::thread other([&] {
    if (!meet(to)) return;
    for (int i = 0; i < kTrips; ++i) {
      while (line.value.load(std::memory_order_acquire) != 2 * i + 1) {}
      line.value.store(2 * i + 2, std::memory_order_release);
    }
  });
  std::thread one([&] {
    if (!meet(from)) return;
    const auto start = Clock::now();
    for (int i = 0; i < kTrips; ++i) {
      line.value.store(2 * i + 1, std::memory_order_release);
      while (line.value.load(std::memory_order_acquire) != 2 * i + 2) {}
    }
    seconds = seconds_since(start) / (2 * kTrips);
  });
  one.join();
  other.join();
  return seconds;
}

}  // namespace

void add_launch(Rounds& rounds, std::vector<Launch>& list, const std::vector<Pool*>& pools, double seconds) {
  for (const Pool* p : pools) list.push_back({p->threads()});
  for (std::size_t i = 0; i < pools.size(); ++i) {
    Pool* pool = pools[i];
    Rate rate(
        [pool](std::int64_t n) {
          for (std::int64_t k = 0; k < n; ++k) {
            pool->run_on_each_thread([](int) { __asm__ volatile(""); });
          }
          return static_cast<double>(n);
        },
        seconds);
    rounds.add("launch", list[i].awake, [rate]() mutable { return 1 / rate(); });
    if (pool->threads() > 1)
      rounds.add("launch of sleeping threads", list[i].asleep, [pool] { return launch_asleep(*pool); });
  }
}

void add_replay(Rounds& rounds, Pool& one_thread, Figure& empty, Figure& small, double seconds) {
  const auto add = [&](Instance (*make)(), Figure& into) {
    const auto program = std::make_shared<Instance>(make());
    Rate rate(
        [program, &one_thread](std::int64_t n) {
          StepParams params;
          Stream stream(one_thread, &params);
          for (std::int64_t k = 0; k < n; ++k) program->run(stream);
          return static_cast<double>(n * kChained);
        },
        seconds);
    rounds.add("replay", into, [rate]() mutable { return 1 / rate(); });
  };
  add(empty_program, empty);
  add(small_program, small);
}

void add_first_touch(Rounds& rounds, std::vector<FirstTouch>& list, const std::vector<Pool*>& pools) {
  std::vector<Pool*> some{pools.front()};
  if (pools.size() > 1) some.push_back(pools.back());
  for (const Pool* p : some)
    for (const char* pages : {"4 KiB", "huge"}) list.push_back({pages, p->threads()});
  for (std::size_t i = 0; i < list.size(); ++i)
    rounds.add("first touch of " + list[i].pages + " pages", list[i].rate,
               [pool = some[i / 2], huge = i % 2 == 1] { return first_touch(*pool, huge); });
}

void add_core_to_core(Rounds& rounds, std::vector<CoreToCore>& list) {
  constexpr std::size_t kAllPairs = 6, kMost = 32;  // of the first CPU to others, on larger machines
  const auto cpus = allowed_cpus();
  for (std::size_t a = 0; a + 1 < cpus.size() && (a == 0 || cpus.size() <= kAllPairs); ++a)
    for (std::size_t b = a + 1; b < cpus.size() && b - a <= kMost; ++b) list.push_back({cpus[a], cpus[b]});
  for (auto& c : list)
    rounds.add("core to core", c.seconds, [from = c.from, to = c.to] { return ping_pong(from, to); });
}

}  // namespace hpcdl::lab
