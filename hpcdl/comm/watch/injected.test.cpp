// A thousand runs of ranks that are threads, each with one random fault: no rank hangs, no rank accepts a wrong result,
// and if there is one culprit, all others name it. A failure prints the seed of its run: HPCDL_FAULT_SEED=n repeats it,
// and HPCDL_FAULT_COUNT=m runs m seeds from n on.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/transport/passing_for_tests.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/watch/report.h"
#include "hpcdl/comm/watch/watch.h"
#include "hpcdl/pool.h"
#include "hpcdl/rng.h"

namespace hpcdl::comm {
namespace {

using namespace std::chrono_literals;

enum class Kind { none, late, error, death, death_inside, cut, size, order, reduction, root };
constexpr const char* kKindNames[] = {"none",
                                      "late",
                                      "error",
                                      "death",
                                      "death inside a collective",
                                      "cut link",
                                      "another size",
                                      "another order",
                                      "another reduction",
                                      "another root"};

/// The times of a run's fault, of the end of the first rank's wait, and of the verdict.
struct Times {
  std::atomic<Clock::rep> struck{0}, expired{0}, verdict{0};
  std::atomic<std::int64_t> expired_in{0};  // number of the collective of that wait

  static void first(std::atomic<Clock::rep>& t) {
    Clock::rep unset = 0;
    t.compare_exchange_strong(unset, Clock::now().time_since_epoch().count());
  }
  static double between(const std::atomic<Clock::rep>& from, const std::atomic<Clock::rep>& to) {
    return std::chrono::duration<double>(Clock::duration(to - from)).count();
  }
};

struct Plan {
  std::uint64_t seed;
  int ranks, steps;
  Kind kind;
  int bad, at;  // the rank and the step of the fault
  int call;     // death inside, cut: number of the transport call
  bool two_hosts;
  int slow = 1;  // factor by which everything is slower, including deadlines
  double deadline() const { return 0.3 * slow; }
  double delay() const { return 0.9 * slow; }
  std::string text() const {
    return fmt::format("HPCDL_FAULT_SEED={}: {} ranks{}, {} at rank {}, step {} of {}", seed, ranks,
                       two_hosts ? " on two hosts" : "", kKindNames[static_cast<int>(kind)], bad, at, steps);
  }
};

Plan plan_of(std::uint64_t seed) {
  const Rng r{seed, 0};
  Plan p{.seed = seed,
         .ranks = 2 + static_cast<int>(r.below(0, 4)),
         .steps = 3 + static_cast<int>(r.below(1, 5)),
         .kind = static_cast<Kind>(r.below(2, 10)),
         .bad = 0,
         .at = 0,
         .call = static_cast<int>(r.below(3, 12)),
         .two_hosts = r.below(4, 2) == 1,
         .slow = 1};
  p.bad = static_cast<int>(r.below(5, static_cast<std::uint64_t>(p.ranks)));
  p.at = static_cast<int>(r.below(6, static_cast<std::uint64_t>(p.steps)));
  if (p.kind == Kind::cut || p.kind == Kind::death_inside)
    p.two_hosts = true;  // otherwise shared memory leaves few messages
  return p;
}

/// Ends a rank like a crash: without notifying others.
struct Death {};

/// Dies at a call, or loses every message from one on: connections do not lose single messages.
class FaultyTransport final : public PassingTransport {
 public:
  FaultyTransport(std::unique_ptr<Transport> below, const Plan& plan, Times& times)
      : PassingTransport(std::move(below)), mine_(plan.bad == rank()), plan_(plan), times_(times) {}
  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    if (count() && plan_.kind == Kind::cut) return {};
    return PassingTransport::start_send(to, tag, bytes);
  }
  Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) override {
    if (plan_.kind == Kind::death_inside) count();
    return PassingTransport::start_receive(from, tag, bytes);
  }

 private:
  bool count() {
    if (!mine_ || calls_++ < plan_.call) return false;
    Times::first(times_.struck);
    if (plan_.kind == Kind::death_inside) throw Death{};
    return true;
  }
  bool mine_;
  const Plan& plan_;
  Times& times_;
  int calls_ = 0;
};

/// Silent once its rank is dead, like the connection of a killed process.
class MortalChannel final : public Channel {
 public:
  MortalChannel(std::unique_ptr<Channel> below, std::atomic<bool>& dead) : below_(std::move(below)), dead_(dead) {}
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  std::string host(int rank) const override { return below_->host(rank); }
  void send(int to, std::string_view bytes) override {
    if (!dead_) below_->send(to, bytes);
  }
  void finish() override {
    if (!dead_) below_->finish();
  }
  void listen(OnMessage on_message, OnLost on_lost) override {
    below_->listen(std::move(on_message), std::move(on_lost));
  }

 private:
  std::unique_ptr<Channel> below_;
  std::atomic<bool>& dead_;
};

struct Step {
  Collective what;
  Reduce op;
  std::int64_t count;
  int root, salt;
  Algorithm algorithm;
};

/// The same on all ranks, and such that the fault has an effect at its place.
Step step_of(const Plan& p, int i) {
  const Rng r{p.seed, 100 + static_cast<std::uint64_t>(i)};
  static constexpr Collective kWhat[] = {Collective::all_reduce, Collective::all_reduce, Collective::reduce_scatter,
                                         Collective::all_gather, Collective::all_to_all, Collective::broadcast};
  static constexpr std::int64_t kCounts[] = {1, 3, 64, 1000, 5000, 40000};
  Step s{kWhat[r.below(0, 6)],
         r.below(1, 3) ? Reduce::sum : Reduce::max,
         kCounts[r.below(2, 6)],
         static_cast<int>(r.below(3, static_cast<std::uint64_t>(p.ranks))),
         static_cast<int>(r.below(4, 100)),
         Algorithm::automatic};
  if (i == p.at && p.kind == Kind::reduction) s.what = Collective::all_reduce;
  if (i == p.at && p.kind == Kind::root) s.what = Collective::broadcast;
  if (p.kind == Kind::order) s.count += i;  // equal calls in a different order are equal
  const auto all = algo::algorithms_of(s.what);
  if (const auto a = all[r.below(5, all.size())];
      a != Algorithm::native && a != Algorithm::shared && a != Algorithm::hierarchical)
    s.algorithm = a;
  return s;
}

std::int32_t value(const Step& s, int rank, std::int64_t i) {
  return static_cast<std::int32_t>((rank * 31 + i * 7 + s.salt) % 1009);
}

std::int32_t expected(const Step& s, int ranks, int me, std::int64_t i) {
  const auto reduced = [&](std::int64_t at) {
    std::int32_t sum = 0, most = 0;
    for (int r = 0; r < ranks; ++r) sum += value(s, r, at), most = std::max(most, value(s, r, at));
    return s.op == Reduce::sum ? sum : most;
  };
  switch (s.what) {
    case Collective::all_reduce: return reduced(i);
    case Collective::reduce_scatter: return reduced(me * s.count + i);
    case Collective::all_gather: return value(s, static_cast<int>(i / s.count), i % s.count);
    case Collective::all_to_all: return value(s, static_cast<int>(i / s.count), me * s.count + i % s.count);
    default: return value(s, s.root, i);
  }
}

/// Runs one step; throws std::logic_error for a wrong result.
void take(const Group& g, const Stream& stream, const Step& s) {
  const bool wide_in = s.what == Collective::reduce_scatter || s.what == Collective::all_to_all,
             wide_out = s.what == Collective::all_gather || s.what == Collective::all_to_all;
  OwnedTensor in({{wide_in ? s.count * g.size() : s.count}, DType::i32}),
      out({{wide_out ? s.count * g.size() : s.count}, DType::i32});
  for (std::int64_t i = 0; i < in.tensor.size(); ++i) in.tensor.ptr<std::int32_t>()[i] = value(s, g.rank(), i);
  const bool in_place = s.what == Collective::all_reduce || s.what == Collective::broadcast;
  Work work;
  switch (s.what) {
    case Collective::all_reduce: work = g.all_reduce(stream, in.tensor, s.op, s.algorithm); break;
    case Collective::reduce_scatter: work = g.reduce_scatter(stream, out.tensor, in.tensor, s.op, s.algorithm); break;
    case Collective::all_gather: work = g.all_gather(stream, out.tensor, in.tensor, s.algorithm); break;
    case Collective::all_to_all: work = g.all_to_all(stream, out.tensor, in.tensor, s.algorithm); break;
    default: work = g.broadcast(stream, in.tensor, s.root);
  }
  work.wait();
  const Tensor& result = in_place ? in.tensor : out.tensor;
  for (std::int64_t i = 0; i < result.size(); ++i)
    if (result.ptr<std::int32_t>()[i] != expected(s, g.size(), g.rank(), i))
      throw std::logic_error(fmt::format("WRONG RESULT of {}: element {} of {} on rank {}", collective_name(s.what), i,
                                         result.size(), g.rank()));
}

void steps(const Plan& p, const Group& world, const Stream& stream, Times& times) {
  const bool bad = world.rank() == p.bad;
  for (int i = 0; i < p.steps; ++i) {
    Step s = step_of(p, i);
    if (bad && i == p.at) {
      if (p.kind != Kind::death_inside && p.kind != Kind::cut) Times::first(times.struck);
      switch (p.kind) {
        case Kind::late: {
          const InPhase phase(world.ledger(), Phase::data);
          std::this_thread::sleep_for(std::chrono::duration<double>(p.delay()));
          break;
        }
        case Kind::error: fail("data", "an injected error");
        case Kind::death: throw Death{};
        case Kind::size: ++s.count; break;
        case Kind::reduction: s.op = s.op == Reduce::sum ? Reduce::max : Reduce::sum; break;
        case Kind::root: s.root = (s.root + 1) % p.ranks; break;
        case Kind::order: s = step_of(p, (i + 1) % p.steps); break;
        default: break;
      }
    } else if (bad && p.kind == Kind::order && i == (p.at + 1) % p.steps) {
      s = step_of(p, p.at);
    }
    const Label label("injected");
    take(world, stream, s);
  }
}

struct Outcome {
  std::vector<std::string> ends;  // by rank: "" if it completed all its steps
  double seconds = 0;
  bool too_slow = false;  // the machine was too slow for these deadlines: a wait ended that began before the fault or
                          // in an earlier collective, or asking took longer than the fault
};

Outcome run(const Plan& p) {
  const auto begin = Clock::now();
  std::vector<int> hosts(static_cast<std::size_t>(p.ranks));
  if (p.two_hosts) hosts.back() = 1;
  auto transports = thread_transports(p.ranks, hosts);
  auto channels = thread_channels(p.ranks);
  // If nothing is late, a busy machine must not make it late.
  const bool waits = p.kind != Kind::none && p.kind != Kind::error && p.kind != Kind::death;
  Outcome out{std::vector<std::string>(static_cast<std::size_t>(p.ranks))};
  Times times;
  std::vector<std::jthread> threads;
  for (int r = 0; r < p.ranks; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      std::atomic<bool> dead = false;
      Watch watch(std::make_unique<MortalChannel>(std::move(channels[i]), dead),
                  {.beat_seconds = 0.1, .answer_seconds = 2, .close_seconds = 5});
      try {
        Pool pool(1);
        const auto world =
            make_world(std::make_unique<FaultyTransport>(std::move(transports[i]), p, times),
                       {.deadline_seconds = waits ? p.deadline() : 30,
                        .on_lost = [&times, tell = watch.on_lost()](const Ledger& ledger, const PeerLost& lost) {
                          Times::first(times.expired);
                          std::int64_t none = 0;
                          times.expired_in.compare_exchange_strong(none, report_of(ledger).collective.number);
                          return tell(ledger, lost);
                        }});
        watch.guard(world);
        try {
          steps(p, world, Stream(pool), times);
        } catch (const Death&) {
          dead = true;
          throw;
        }
        watch.close();
      } catch (const Death&) {
        out.ends[i] = "dead";
      } catch (const PeerLost& e) {
        Times::first(times.verdict);
        out.ends[i] = e.what();
      } catch (const std::exception& e) {
        out.ends[i] = e.what();
        watch.fail(e.what());
      }
    });
  threads.clear();
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const bool outlasted = p.kind == Kind::late && (times.expired_in <= p.at ||  // the step's collective is p.at + 1
                                                  Times::between(times.struck, times.verdict) > p.delay());
  out.too_slow = times.expired != 0 &&
                 (times.struck == 0 || Times::between(times.struck, times.expired) < p.deadline() || outlasted);
  return out;
}

/// What is wrong with the end of a run; empty: nothing.
std::string complaint(const Plan& p, const Outcome& o) {
  if (o.seconds > 60) return fmt::format("it took {:.1f} s", o.seconds);
  const std::string culprit = fmt::format("rank {} on", p.bad);
  for (int r = 0; r < p.ranks; ++r) {
    const std::string& end = o.ends[static_cast<std::size_t>(r)];
    if (end.find("WRONG RESULT") != std::string::npos) return end;
    if (p.kind == Kind::none && !end.empty()) return fmt::format("without a fault rank {} ended with: {}", r, end);
    if (end.empty() || r == p.bad) continue;
    const bool named =
        p.kind == Kind::late || p.kind == Kind::error || p.kind == Kind::death || p.kind == Kind::death_inside;
    if (!end.starts_with("[dist] ")) return fmt::format("rank {} ended with: {}", r, end);
    if (named && end.find(culprit) == std::string::npos)
      return fmt::format("rank {} does not name the culprit: {}", r, end);
  }
  return "";
}

/// A machine may be so busy that a rank waits longer than a third of a second without any fault: then everything is
/// repeated four times as slowly.
std::string judged(Plan& p, Outcome& o) {
  for (;; p.slow *= 4) {
    o = run(p);
    const std::string what = complaint(p, o);
    if (what.empty() || !o.too_slow || p.slow > 16 || what.starts_with("WRONG")) return what;
  }
}

TEST(injected, a_thousand_faults) {
  const auto asked = [](const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  const bool one = std::getenv("HPCDL_FAULT_SEED") && !std::getenv("HPCDL_FAULT_COUNT");
  const std::uint64_t first = asked("HPCDL_FAULT_SEED", 1), count = asked("HPCDL_FAULT_COUNT", one ? 1 : 1000);
  std::atomic<std::uint64_t> next = first;
  std::mutex mutex;
  std::vector<int> met(10), ended(10);
  int wrong = 0, again = 0;
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < 8; ++w)
      workers.emplace_back([&] {
        for (std::uint64_t seed; (seed = next++) < first + count;) {
          Plan p = plan_of(seed);
          Outcome o;
          const std::string what = judged(p, o);
          const std::lock_guard lock(mutex);
          again += p.slow > 1;
          ++met[static_cast<std::size_t>(p.kind)];
          ended[static_cast<std::size_t>(p.kind)] +=
              std::any_of(o.ends.begin(), o.ends.end(), [](const auto& e) { return e.starts_with("[dist]"); });
          if (one)
            for (std::size_t r = 0; r < o.ends.size(); ++r) std::printf("rank %zu: %s\n", r, o.ends[r].c_str());
          if (!what.empty() && ++wrong <= 20) ADD_FAILURE() << p.text() << ": " << what;
        }
      });
  }
  std::printf("seeds %llu to %llu, %d of them again because the machine was slow\n",
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(first + count - 1), again);
  for (std::size_t k = 0; k < met.size(); ++k) {
    std::printf("  %-26s %4d runs, %4d ended by a verdict\n", kKindNames[k], met[k], ended[k]);
    if (count >= 1000 && k > 0) {
      EXPECT_GT(ended[k], met[k] / 4) << kKindNames[k] << ": the fault hardly ever has an effect";
    }
  }
}

}  // namespace
}  // namespace hpcdl::comm
