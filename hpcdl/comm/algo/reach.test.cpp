// Tensors that one process reads from another, and what happens if the system does not allow it.

#include "hpcdl/comm/algo/reach.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "hpcdl/comm/impl.h"
#include "hpcdl/pool.h"
#include "hpcdl/testing/launched.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

using namespace std::chrono_literals;
using algo::Reach;
using testing::Launched;
constexpr auto kLimit = 120s;

/// As containers and sandboxes do it: from now on this thread may not read.
bool forbid_reading() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/// If not even the process itself may be read, there is nothing to forbid.
bool system_reads() {
  int there = 7, here = 0;
  const iovec to{&here, sizeof here}, from{&there, sizeof there};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof here && here == 7;
}

/// use(phases, ground) of a group between its calls.
template <class Use> auto on_ground(const Group& g, Use&& use) {
  Group::Impl& i = *g.impl();
  const Patience patience{.deadline = kLimit};
  Peers peers(*i.engine->transport(), i.world_ranks, i.rank, 0, patience);
  Scratch scratch;
  Ground ground{peers, i.shared.get(), true, scratch, nullptr};
  algo::Phases phases(ground);
  return use(phases, ground);
}

Reach reach_of(const Group& g) {
  return on_ground(g, [](algo::Phases& p, Ground& ground) { return algo::reach(p, ground); });
}

/// Reads even if staging is faster.
void insist(const Group& g) {
  on_ground(g, [](algo::Phases& p, Ground& ground) {
    require(algo::can_read(p, ground), "test", "the system does not let these ranks read each other");
    algo::remember(ground, Reach::reading);
    algo::may_read_sums(ground, true);
  });
}

bool reads_sums(const Group& g) {
  return on_ground(g, [](algo::Phases& p, Ground& ground) { return algo::may_read_sums(ground, p); });
}

/// As if another program had used a processor all the time.
void keep_apart(const Group& g) {
  for (int i = 0; i < 16; ++i) g.impl()->shared->trials.apart.took(std::chrono::nanoseconds(1s).count(), g.size());
}

constexpr std::int64_t kLongSum = 2'000'003;  // elements, enough for reading to pay in that case

std::uint8_t value(int rank, std::int64_t i) { return static_cast<std::uint8_t>(rank * 131 + i * 7 + i / 251); }

/// All-gather, also in place, and all-to-all of n bytes from each rank to each.
void move(const Group& g, const Stream& s, std::int64_t n) {
  const auto tensor = [](std::vector<std::uint8_t>& v, std::int64_t from, std::int64_t count) {
    return Tensor(v.data() + from, Spec{Shape{count}, DType::u8});
  };
  const std::int64_t all = n * g.size(), mine = n * g.rank();
  std::vector<std::uint8_t> in(static_cast<std::size_t>(all)), out(in.size()), place(in.size());
  for (std::int64_t i = 0; i < all; ++i) in[static_cast<std::size_t>(i)] = value(g.rank(), i);
  const auto check = [&](const std::vector<std::uint8_t>& got, std::int64_t offset, const char* what) {
    for (std::int64_t i = 0; i < all; ++i)
      require(got[static_cast<std::size_t>(i)] == value(static_cast<int>(i / n), offset + i % n), "test",
              "{} of {} bytes: rank {} has another byte {}", what, n, g.rank(), i);
  };
  g.all_gather(s, tensor(out, 0, all), tensor(in, 0, n), Algorithm::shared);
  check(out, 0, "all_gather");
  std::copy_n(in.begin(), n, place.begin() + mine);
  g.all_gather(s, tensor(place, 0, all), tensor(place, mine, n), Algorithm::shared);
  check(place, 0, "all_gather in place");
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  g.all_to_all(s, tensor(out, 0, all), tensor(in, 0, all), Algorithm::shared);
  check(out, mine, "all_to_all");
}

/// The phases of the group so far.
std::uint64_t phases(const Group& g) { return g.impl()->shared->epoch; }

/// All-reduce of n floats, summed in the order of the ranks.
void sum(const Group& g, const Stream& s, std::int64_t n) {
  const auto value = [](int rank, std::int64_t i) { return 1.0F / static_cast<float>(3 + rank + i % 1009); };
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = value(g.rank(), i);
  g.all_reduce(s, Tensor(x.data(), Spec{Shape{n}, DType::f32}), Reduce::sum, Algorithm::shared);
  for (std::int64_t i = 0; i < n; ++i) {
    float all = value(0, i);
    for (int r = 1; r < g.size(); ++r) all += value(r, i);
    require(x[static_cast<std::size_t>(i)] == all, "test", "all_reduce of {}: rank {} has another sum at {}", n,
            g.rank(), i);
  }
}

/// Not a test but the body of a rank. "refuse": when the last rank loses permission to read; "measured": it keeps it,
/// and reach() decides whether it reads.
TEST(reading_rank, main) {
  const auto role = testing::launched_role();
  if (!role) GTEST_SKIP() << "the body of the ranks of the tests below";
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // systems that only let parents read let the other ranks, too
  auto joined = testing::join(*role, 60);
  testing::end_rank(joined, [&] {
    Pool pool(1);
    const Stream s(pool);
    const Group g = joined.world().blocking();
    const auto& refuse = role->words.at("refuse");
    const bool last = role->rank + 1 == role->world;
    const auto expect = [&](Reach want) {
      require(reach_of(g) == want, "test", "expected {}, got {}", static_cast<int>(want),
              static_cast<int>(reach_of(g)));
    };
    if (refuse == "first" && last) require(forbid_reading(), "test", "no seccomp");
    if (refuse == "never" || refuse == "later") insist(g);
    if (refuse == "later" && last) require(forbid_reading(), "test", "no seccomp");
    if (refuse == "later") keep_apart(g), sum(g, s, kLongSum);
    for (const std::int64_t n : {16 << 10, 0, 1, 1001, (16 << 10) - 1, 300'007, 5'000'001, 16 << 10}) move(g, s, n);
    for (const std::int64_t n : {1 << 18, 300'007, 1 << 20}) sum(g, s, n);
    keep_apart(g);
    const auto before = phases(g);
    sum(g, s, kLongSum);
    if (refuse == "never") require(phases(g) - before <= 4, "test", "{} phases", phases(g) - before);
    if (refuse != "measured")
      require(reads_sums(g) == (refuse == "never"), "test", "reading of sums is not as expected");
    if (refuse != "measured") expect(refuse == "never" ? Reach::reading : Reach::staging);
    for (int i = 0; refuse == "never" && role->words.at("until") == "killed"; ++i) {
      move(g, s, 300'007), keep_apart(g), sum(g, s, kLongSum);
      if (i == 0) std::puts("moves"), std::fflush(stdout);
    }
  });
}

void all_end_well(int world, const std::string& refuse) {
  Launched ranks(world, "reading_rank.main", {{"refuse", refuse}, {"until", ""}});
  for (int r = 0; r < world; ++r)
    EXPECT_EQ(ranks.wait(r, Launched::Clock::now() + kLimit), 0)
        << world << " ranks, rank " << r << ": " << ranks.words(r);
}

TEST(reading, moves_every_size) {
  if (!system_reads()) GTEST_SKIP() << "this system does not let a process read another one's memory";
  for (const int world : {2, 3, 5}) all_end_well(world, "never");
  all_end_well(3, "measured");
}

TEST(reading, is_not_tried_again_where_a_rank_is_refused) {
  if (!system_reads()) GTEST_SKIP() << "this system does not let a process read another one's memory";
  for (const char* refuse : {"first", "later"})
    for (const int world : {2, 3}) all_end_well(world, refuse);
}

TEST(reading, of_a_killed_rank_ends_in_time) {
  if (!system_reads()) GTEST_SKIP() << "this system does not let a process read another one's memory";
  for (const int bad : {1, 0}) {
    Launched ranks(3, "reading_rank.main", {{"refuse", "never"}, {"until", "killed"}});
    ASSERT_TRUE(ranks.prints(2, "moves")) << ranks.words(2);
    ranks.signal(bad, SIGKILL);
    for (int r = 0; r < 3; ++r) {
      if (r == bad) continue;
      EXPECT_EQ(ranks.wait(r, Launched::Clock::now() + kLimit), exit_code::kPeerLost) << ranks.words(r);
      EXPECT_NE(ranks.words(r).find(fmt::format("[dist] rank {} on ", bad)), std::string::npos) << ranks.words(r);
    }
  }
}

TEST(reading, is_not_for_threads) {
  testing::run_ranks(3, [](Group g) { EXPECT_EQ(reach_of(g), Reach::addresses); });
}

}  // namespace
}  // namespace hpcdl::comm
