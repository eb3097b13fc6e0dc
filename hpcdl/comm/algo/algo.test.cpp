// Every algorithm on 1-9 ranks, by messages and in shared memory, against sums in double; the same bits on all ranks,
// in every run, and, for algorithms that promise it, for any division of a tensor.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/algo/reduction.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

using algo::algorithms_of;
using testing::Cpu;
using testing::rank_errors;
using testing::RankOptions;
using testing::run_ranks;

RankOptions on_hosts(std::vector<int> hosts) {
  RankOptions o;
  o.hosts = std::move(hosts);
  return o;
}

template <class T> constexpr double kUnit = 0;  // rounding of integers
template <> constexpr double kUnit<float> = 0x1p-24;
template <> constexpr double kUnit<double> = 0x1p-53;
template <> constexpr double kUnit<bf16> = 0x1p-8;
template <> constexpr double kUnit<f16> = 0x1p-11;

/// For a float: in [-4, 4), with all its digits; for an integer: its whole range.
template <class T> T value(int rank, std::int64_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(i) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(x);
  else return T(static_cast<float>(static_cast<double>(x >> 20) * 0x1p-41 - 4));
}

/// The beginning of a sequence, computed once for all users: algorithms, calls and ranks are compared with the same
/// values, and under a sanitizer computing these would take longer than the tested code.
template <class V> class Beginning {
 public:
  using List = std::vector<V>;
  /// At least its first n elements. `key`: identifies the sequence; the last one is kept.
  template <class F> std::shared_ptr<const List> first(std::int64_t n, int key, F&& element) {
    const std::lock_guard lock(mutex_);
    if (!list_ || key != key_ || std::ssize(*list_) < n) {
      List list(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) list[static_cast<std::size_t>(i)] = element(i);
      list_ = std::make_shared<const List>(std::move(list)), key_ = key;
    }
    return list_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const List> list_;
  int key_ = 0;
};

constexpr int kMostRanks = 9;

/// The thread sanitizer inspects every byte that is copied: there, long tensors are only as long as needed to reach
/// every code path.
#ifdef __SANITIZE_THREAD__
constexpr bool kShorter = true;
#else
constexpr bool kShorter = false;
#endif

/// Elements [begin, end) of a rank, stored at the end of `to`.
template <class T> void append_values(std::vector<T>& to, int rank, std::int64_t begin, std::int64_t end) {
  static std::array<Beginning<T>, kMostRanks> all;
  const auto list =
      all.at(static_cast<std::size_t>(rank)).first(end, 0, [&](std::int64_t i) { return value<T>(rank, i); });
  to.insert(to.end(), list->begin() + begin, list->begin() + end);
}

template <class T> struct Rows {
  std::vector<T> v;
  explicit Rows(std::int64_t n) : v(static_cast<std::size_t>(n)) {}
  explicit Rows(std::vector<T> values) : v(std::move(values)) {}
  Rows(int rank, std::int64_t n) { append_values(v, rank, 0, n); }
  Tensor tensor() { return tensor(0, size()); }
  Tensor tensor(std::int64_t begin, std::int64_t end) {
    return Tensor(v.data() + begin, Spec{Shape{end - begin}, dtype_of<T>});
  }
  std::int64_t size() const { return static_cast<std::int64_t>(v.size()); }
  bool operator==(const Rows& o) const {
    return v.size() == o.v.size() && (v.empty() || std::memcmp(v.data(), o.v.data(), v.size() * sizeof(T)) == 0);
  }
};

/// The reduction of one element over all ranks. A sum of floats is within `room` of it.
template <class T> struct Wanted {
  using Sum = std::conditional_t<std::is_integral_v<T>, T, double>;
  Sum sum, most;
  double room = 0;
};
template <class T> Wanted<T> wanted(int ranks, std::int64_t i) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    Wanted<T> w{value<T>(0, i), value<T>(0, i)};
    for (int r = 1; r < ranks; ++r) {
      const T other = value<T>(r, i);
      w = {static_cast<T>(static_cast<U>(w.sum) + static_cast<U>(other)), std::max(w.most, other)};
    }
    return w;
  } else {
    Wanted<T> w{0, -INFINITY};
    double size = 0;
    for (int r = 0; r < ranks; ++r) {
      const auto v = static_cast<double>(value<T>(r, i));
      w.sum += v, size += std::abs(v), w.most = std::max(w.most, v);
    }
    w.room = (ranks + 1) * kUnit<T> * size;
    return w;
  }
}

/// Empty if all elements are the reduction of elements [offset, offset + n) of `ranks` ranks.
template <class T> std::string wrong(const Rows<T>& got, std::int64_t offset, int ranks, Reduce op) {
  using Sum = typename Wanted<T>::Sum;
  static Beginning<Wanted<T>> all;
  const auto list = all.first(offset + got.size(), ranks, [&](std::int64_t i) { return wanted<T>(ranks, i); });
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const auto x = static_cast<Sum>(got.v[static_cast<std::size_t>(i)]);
    const Wanted<T>& w = (*list)[static_cast<std::size_t>(offset + i)];
    Sum want = op == Reduce::max ? w.most : w.sum;
    bool right = x == want;
    if constexpr (!std::is_integral_v<T>) {
      const int divisor = op == Reduce::avg ? ranks : 1;
      want /= divisor;
      right = std::abs(x - want) <= (op == Reduce::max ? 0 : w.room / divisor + 0x1p-60);
    }
    if (!right) return fmt::format("element {}: {} for {}", i, x, want);
  }
  return {};
}

const std::vector<std::int64_t> kSizes{0, 1, 2, 5, 17, 63, 1000, 4099};

template <class T> void reduce_everything(const Group& g, const Stream& s, Algorithm a, std::int64_t n) {
  for (const Reduce op : {Reduce::sum, Reduce::max, Reduce::avg}) {
    if (op == Reduce::avg && !is_float(dtype_of<T>)) continue;
    const auto what = fmt::format("{} {} of {} ranks, {} x {}", algorithm_name(a), reduce_name(op), g.size(), n,
                                  dtype_name(dtype_of<T>));
    Rows<T> x(g.rank(), n), again = x;
    g.all_reduce(s, x.tensor(), op, a).wait();
    ASSERT_EQ(wrong(x, 0, g.size(), op), "") << what;
    g.blocking().all_reduce(s, again.tensor(), op, a);
    ASSERT_TRUE(x == again) << what << ": a second run has different bits";
    Rows<T> all(n * g.size());
    g.all_gather(s, all.tensor(), x.tensor()).wait();
    for (int r = 0; r < g.size() && n > 0; ++r)
      ASSERT_EQ(std::memcmp(all.v.data() + r * n, x.v.data(), x.v.size() * sizeof(T)), 0)
          << what << ": rank " << r << " has different bits";
  }
}

template <class T> void scatter_everything(const Group& g, const Stream& s, Algorithm a, std::int64_t n) {
  for (const Reduce op : {Reduce::sum, Reduce::max, Reduce::avg}) {
    if (op == Reduce::avg && !is_float(dtype_of<T>)) continue;
    const auto what = fmt::format("{} {} of {} ranks, {} x {}", algorithm_name(a), reduce_name(op), g.size(), n,
                                  dtype_name(dtype_of<T>));
    Rows<T> in(g.rank(), n * g.size()), out(n);
    const Rows<T> before = in;
    g.reduce_scatter(s, out.tensor(), in.tensor(), op, a).wait();
    ASSERT_EQ(wrong(out, g.rank() * n, g.size(), op), "") << what;
    ASSERT_TRUE(in == before) << what << ": the input has changed";
    g.reduce_scatter(s, in.tensor(g.rank() * n, (g.rank() + 1) * n), in.tensor(), op, a).wait();
    ASSERT_TRUE(n == 0 || std::memcmp(in.v.data() + g.rank() * n, out.v.data(), out.v.size() * sizeof(T)) == 0)
        << what << ": in place, different bits";
  }
}

template <class T> void move_everything(const Group& g, const Stream& s, Algorithm a, std::int64_t n) {
  const auto what = fmt::format("{} of {} ranks, {} elements", algorithm_name(a), g.size(), n);
  const auto gathers = algorithms_of(Collective::all_gather);
  Rows<T> in(g.rank(), n), want(0), out(n * g.size());
  for (int r = 0; r < g.size(); ++r) append_values(want.v, r, 0, n);
  if (std::find(gathers.begin(), gathers.end(), a) != gathers.end()) {
    g.all_gather(s, out.tensor(), in.tensor(), a).wait();
    ASSERT_TRUE(out == want) << what;
    Rows<T> place(n * g.size());
    std::copy(in.v.begin(), in.v.end(), place.v.begin() + g.rank() * n);
    g.all_gather(s, place.tensor(), place.tensor(g.rank() * n, (g.rank() + 1) * n), a).wait();
    ASSERT_TRUE(place == want) << what << ", in place";
  }
  const auto exchanges = algorithms_of(Collective::all_to_all);
  if (std::find(exchanges.begin(), exchanges.end(), a) == exchanges.end()) return;
  Rows<T> parts(g.rank(), n * g.size());
  g.all_to_all(s, out.tensor(), parts.tensor(), a).wait();
  want.v.clear();
  for (int r = 0; r < g.size(); ++r) append_values(want.v, r, g.rank() * n, (g.rank() + 1) * n);
  ASSERT_TRUE(out == want) << what;
}

/// Every algorithm except native that can be used there.
std::vector<Algorithm> usable(Collective what, int ranks, int hosts) {
  auto list = algo::possible({.what = what, .ranks = ranks, .hosts = hosts}, false);
  list.push_back(Algorithm::automatic);
  return list;
}

template <class T> class algorithms : public ::testing::Test {};
using Types = ::testing::Types<float, double, bf16, f16, std::int64_t, std::int32_t, std::int16_t, std::int8_t,
                               std::uint64_t, std::uint32_t, std::uint16_t, std::uint8_t>;
TYPED_TEST_SUITE(algorithms, Types);

TYPED_TEST(algorithms, equal_sums_in_double_on_one_host) {
  for (int n = 1; n <= kMostRanks; ++n)
    run_ranks(n, [n](Group g) {
      Cpu cpu;
      for (const std::int64_t count : kSizes) {
        for (const Algorithm a : usable(Collective::all_reduce, n, 1))
          reduce_everything<TypeParam>(g, cpu.stream, a, count);
        for (const Algorithm a : usable(Collective::reduce_scatter, n, 1))
          scatter_everything<TypeParam>(g, cpu.stream, a, count);
        for (const Algorithm a : usable(Collective::all_gather, n, 1))
          move_everything<TypeParam>(g, cpu.stream, a, count);
      }
    });
}

TEST(algorithms_on_hosts, several_with_one_or_more_ranks) {
  const std::vector<std::vector<int>> layouts{
      {0, 1}, {0, 0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 2}, {0, 0, 1, 1, 2, 2}, {0, 1, 2, 3, 0, 1, 2, 3, 0}};
  for (const auto& hosts : layouts) {
    const int n = static_cast<int>(hosts.size()), count = *std::max_element(hosts.begin(), hosts.end()) + 1;
    run_ranks(
        n,
        [&](Group g) {
          Cpu cpu;
          for (const std::int64_t size : {0, 1, 17, 4099, kShorter ? 40009 : 300001}) {
            for (const Algorithm a : usable(Collective::all_reduce, n, count))
              reduce_everything<float>(g, cpu.stream, a, size);
            for (const Algorithm a : usable(Collective::all_reduce, n, count))
              reduce_everything<bf16>(g, cpu.stream, a, size);
            for (const Algorithm a : usable(Collective::reduce_scatter, n, count))
              scatter_everything<float>(g, cpu.stream, a, size);
            for (const Algorithm a : usable(Collective::all_gather, n, count))
              move_everything<std::int32_t>(g, cpu.stream, a, size);
          }
        },
        on_hosts(hosts));
  }
}

TEST(algorithms_on_hosts, long_tensors_of_many_segments) {
  for (const int n : {2, 3, 5})
    run_ranks(n, [n](Group g) {
      Cpu cpu;
      for (const std::int64_t size : {70001, kShorter ? 300001 : 800007}) {
        for (const Algorithm a : usable(Collective::all_reduce, n, 1)) {
          Rows<float> x(g.rank(), size);
          g.all_reduce(cpu.stream, x.tensor(), Reduce::avg, a).wait();
          ASSERT_EQ(wrong(x, 0, n, Reduce::avg), "") << algorithm_name(a);
        }
        for (const Algorithm a : usable(Collective::reduce_scatter, n, 1)) {
          Rows<float> in(g.rank(), size * n), out(size);
          g.reduce_scatter(cpu.stream, out.tensor(), in.tensor(), Reduce::sum, a).wait();
          ASSERT_EQ(wrong(out, g.rank() * size, n, Reduce::sum), "") << algorithm_name(a);
        }
        for (const Algorithm a : usable(Collective::all_gather, n, 1)) move_everything<float>(g, cpu.stream, a, size);
      }
    });
}

TEST(shared_window, equals_private_memory_bit_for_bit) {
  for (const int n : {2, 3, 4, 5, 8})
    run_ranks(n, [n](Group g) {
      Cpu cpu;
      const std::int64_t most = kShorter ? 40000 : 200000;
      const auto window = g.share(2 * most * n * 4);
      ASSERT_TRUE(window);
      float* in_window = reinterpret_cast<float*>(window->block(g.local_rank())) + 64;
      const auto spec = [](std::int64_t k) { return Spec{Shape{k}, DType::f32}; };
      for (const std::int64_t size : {0L, 1L, 17L, 700L, 5001L, most}) {
        Rows<float> x(g.rank(), size);
        std::copy(x.v.begin(), x.v.end(), in_window);
        g.all_reduce(cpu.stream, x.tensor(), Reduce::avg, Algorithm::shared).wait();
        g.all_reduce(cpu.stream, Tensor(in_window, spec(size)), Reduce::avg, Algorithm::shared).wait();
        ASSERT_TRUE(size == 0 || std::memcmp(x.v.data(), in_window, x.v.size() * 4) == 0) << n << " ranks, " << size;
        ASSERT_EQ(wrong(x, 0, n, Reduce::avg), "");

        Rows<float> wide(g.rank(), size * n), part(size);
        std::copy(wide.v.begin(), wide.v.end(), in_window);
        g.reduce_scatter(cpu.stream, part.tensor(), Tensor(in_window, spec(size * n)), Reduce::sum, Algorithm::shared)
            .wait();
        ASSERT_EQ(wrong(part, g.rank() * size, n, Reduce::sum), "");
        Rows<float> all(size * n), expected(size * n);
        g.all_to_all(cpu.stream, expected.tensor(), wide.tensor(), Algorithm::pairwise).wait();
        g.all_to_all(cpu.stream, all.tensor(), Tensor(in_window, spec(size * n)), Algorithm::shared).wait();
        ASSERT_TRUE(all == expected);
        g.all_gather(cpu.stream, expected.tensor(), wide.tensor(0, size), Algorithm::ring).wait();
        g.all_gather(cpu.stream, all.tensor(), Tensor(in_window, spec(size)), Algorithm::shared).wait();
        ASSERT_TRUE(all == expected);
      }
    });
}

/// Gradients are divided into buckets: the division must not affect results.
template <class T> void cut_anywhere(int n, const RankOptions& options, const std::vector<Algorithm>& list) {
  run_ranks(
      n,
      [&](Group g) {
        Cpu cpu;
        constexpr std::int64_t kSize = 150011;
        for (const Algorithm a : list) {
          Rows<T> whole(g.rank(), kSize);
          g.all_reduce(cpu.stream, whole.tensor(), Reduce::avg, a).wait();
          for (const std::vector<std::int64_t>& cuts :
               {std::vector<std::int64_t>{0, 1, kSize}, {0, 70001, 70018, kSize}, {0, 1024, 1027, 90000, kSize}}) {
            Rows<T> x(g.rank(), kSize);
            for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
              g.all_reduce(cpu.stream, x.tensor(cuts[i], cuts[i + 1]), Reduce::avg, a).wait();
            ASSERT_TRUE(x == whole) << algorithm_name(a) << " of " << n << " ranks";
          }
        }
      },
      options);
}

TEST(position, does_not_change_bits_where_that_is_promised) {
  for (const int n : {2, 3, 4, 6, 7, 8}) {
    std::vector<Algorithm> list;
    for (const Algorithm a : usable(Collective::all_reduce, n, 1))
      if (algo::position_independent(a, n)) list.push_back(a);
    EXPECT_GE(list.size(), 4u);
    cut_anywhere<float>(n, {}, list);
    cut_anywhere<bf16>(n, {}, list);
  }
  for (const auto& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 0, 1, 1, 2}, {0, 1, 2, 3, 0, 1, 2, 3}})
    cut_anywhere<float>(static_cast<int>(hosts.size()), on_hosts(hosts), {Algorithm::hierarchical});
}

TEST(position, matters_in_a_ring_of_three) {
  EXPECT_FALSE(algo::position_independent(Algorithm::ring, 3));
  bool differs = false;
  run_ranks(3, [&](Group g) {
    Cpu cpu;
    Rows<float> whole(g.rank(), 3000), x = whole;
    g.all_reduce(cpu.stream, whole.tensor(), Reduce::sum, Algorithm::ring).wait();
    g.all_reduce(cpu.stream, x.tensor(0, 1500), Reduce::sum, Algorithm::ring).wait();
    g.all_reduce(cpu.stream, x.tensor(1500, 3000), Reduce::sum, Algorithm::ring).wait();
    if (g.rank() == 0) differs = !(x == whole);
  });
  EXPECT_TRUE(differs) << "the sums never differ, so this order could be promised";
}

TEST(combine, keeps_not_a_number_and_infinity) {
  const float nan = std::nanf(""), inf = INFINITY;
  const std::vector<float> a{nan, 1, inf, -inf, 0, nan}, b{1, nan, 2, inf, -1, nan};
  for (const bool swapped : {false, true}) {
    std::vector<float> out(a.size());
    const auto bytes = [](const std::vector<float>& v) { return reinterpret_cast<const std::byte*>(v.data()); };
    algo::combine({DType::f32, Reduce::max, 2}, algo::Part::last, reinterpret_cast<std::byte*>(out.data()),
                  bytes(swapped ? b : a), bytes(swapped ? a : b), 6);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[5]));
    EXPECT_EQ(out[2], inf);
    EXPECT_EQ(out[3], inf);
    EXPECT_EQ(out[4], 0);
  }
}

TEST(combine, sums_16_bit_floats_in_f32) {
  std::vector<bf16> big{bf16(256.f)}, small{bf16(0.75f)}, out(1);
  const std::byte* in[] = {reinterpret_cast<std::byte*>(big.data()), reinterpret_cast<std::byte*>(small.data()),
                           reinterpret_cast<std::byte*>(small.data())};
  std::byte* to = reinterpret_cast<std::byte*>(out.data());
  algo::combine_all({DType::bf16, Reduce::sum, 3}, std::span(&to, 1), in, 1);
  EXPECT_EQ(static_cast<float>(out[0]), 258.f);  // rounded after each addition it would be 256
}

/// Every length up to some registers, from the middle of a tensor: nothing next to it may be written.
TEST(combine, is_the_same_in_every_direction) {
  constexpr std::int64_t kMost = 200, kAround = 3;
  for (const int ins : {2, 3})
    for (std::int64_t n = 0; n <= kMost; ++n) {
      std::vector<std::vector<float>> got;
      for (const auto sweep : {algo::Sweep::up, algo::Sweep::down, algo::Sweep::stream}) {
        std::vector<Rows<float>> rows;
        for (int k = 0; k < ins; ++k) rows.emplace_back(k, kMost + 2 * kAround);
        std::vector<std::byte*> at;
        for (auto& r : rows) at.push_back(reinterpret_cast<std::byte*>(r.v.data() + kAround));
        const std::vector<const std::byte*> in(at.begin(), at.end());
        algo::combine_all({DType::f32, Reduce::avg, ins}, at, in, n, sweep);
        auto& all = got.emplace_back();
        for (const auto& r : rows) all.insert(all.end(), r.v.begin(), r.v.end());
        ASSERT_EQ(wrong(Rows<float>(std::vector<float>(rows[0].v.begin() + kAround, rows[0].v.begin() + kAround + n)),
                        kAround, ins, Reduce::avg),
                  "")
            << n;
        ASSERT_EQ(all, got[0]) << n << " elements of " << ins;
        for (int k = 0; k < ins; ++k)
          for (std::int64_t i = 0; i < kMost + 2 * kAround; ++i)
            if (i < kAround || i >= kAround + n) {
              ASSERT_EQ(rows[static_cast<std::size_t>(k)].v[static_cast<std::size_t>(i)], value<float>(k, i)) << n;
            }
      }
    }
}

TEST(choice, is_possible_everywhere) {
  for (const Collective what : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                Collective::all_to_all, Collective::broadcast, Collective::barrier})
    for (const int hosts : {1, 2, 4})
      for (const bool shared : {false, true})
        for (const std::int64_t bytes : {0L, 4L, 100000L, 1L << 28})
          for (const int ranks : {4, 64, 65, 256, 1000})
            for (const int on_host : {0, ranks - hosts + 1}) {
              const algo::Situation s{
                  .what = what, .bytes = bytes, .ranks = ranks, .hosts = hosts, .shared = shared, .on_host = on_host};
              const auto can = algo::possible(s, false);
              EXPECT_NE(std::find(can.begin(), can.end(), algo::default_choice(s)), can.end())
                  << ranks << " ranks, " << hosts << " hosts, " << bytes << " bytes";
            }
}

TEST(choice, between_gpus_follows_what_was_measured) {
  constexpr std::int64_t kib = 1024;
  for (const auto& [ranks, most] :
       {std::pair{2, 16384 * kib}, {3, 8192 * kib}, {4, 8192 * kib}, {5, 64 * kib}, {8, 64 * kib}}) {
    algo::Situation s{.bytes = most, .ranks = ranks, .gpus = true};
    EXPECT_EQ(algo::default_choice(s), Algorithm::shared) << ranks;
    EXPECT_EQ(algo::possible(s, true), (std::vector{Algorithm::shared, Algorithm::native})) << ranks;
    s.bytes = most + 1;
    EXPECT_EQ(algo::default_choice(s), Algorithm::native) << ranks;
    s.bytes = 4, s.shared = false;
    EXPECT_EQ(algo::default_choice(s), Algorithm::native) << "without NVLink";
    s.shared = true, s.what = Collective::all_gather;
    EXPECT_EQ(algo::default_choice(s), Algorithm::native) << "our kernels only reduce";
    EXPECT_EQ(algo::possible(s, true), std::vector{Algorithm::native}) << ranks;
  }
}

/// Element i of each rank's tensor is its rank plus i.
void exchange_integers(const Group& g, const Stream& s, std::int64_t n) {
  const auto mine = [&](int rank, std::int64_t count) {
    Rows<std::int32_t> x(count);
    std::iota(x.v.begin(), x.v.end(), rank);
    return x;
  };
  const auto all = static_cast<std::int32_t>(g.size());
  const auto sum = [&](std::int64_t i) { return all * (all - 1) / 2 + all * static_cast<std::int32_t>(i); };
  auto x = mine(g.rank(), n);
  g.all_reduce(s, x.tensor(), Reduce::sum).wait();
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(x.v[static_cast<std::size_t>(i)], sum(i));
  auto in = mine(g.rank(), n * all);
  Rows<std::int32_t> out(n), gathered(n * all);
  g.reduce_scatter(s, out.tensor(), in.tensor(), Reduce::sum).wait();
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(out.v[static_cast<std::size_t>(i)], sum(g.rank() * n + i));
  x = mine(g.rank(), n);
  g.all_gather(s, gathered.tensor(), x.tensor()).wait();
  for (std::int64_t i = 0; i < n * all; ++i)
    ASSERT_EQ(gathered.v[static_cast<std::size_t>(i)], static_cast<std::int32_t>(i / n + i % n));
  g.broadcast(s, x.tensor(), all - 1).wait();
  EXPECT_TRUE(x == mine(all - 1, n));
  g.barrier(s).wait();
}

/// More ranks than one sweep through shared memory sums.
TEST(choice, more_than_64_ranks_of_a_host_have_all_collectives) {
  constexpr int kRanks = 100;
  for (const int on_second : {0, 3}) {
    std::vector<int> layout(kRanks - on_second, 0);
    layout.resize(kRanks, 1);
    run_ranks(
        kRanks,
        [&](Group g) {
          Cpu cpu;
          for (const std::int64_t n : {1, 300}) exchange_integers(g, cpu.stream, n);
        },
        on_hosts(layout));
  }
}

TEST(choice, by_measurement_is_the_same_on_all_ranks) {
  algo::Policy p;
  p.replace({{Collective::all_reduce, 3, 1, false, 1000, Algorithm::star},
             {Collective::all_reduce, 3, 1, false, 100000, Algorithm::ring}});
  p.replace({{Collective::all_reduce, 3, 2, false, 1000, Algorithm::shared}});
  EXPECT_EQ(algo::Policy::parse(p.text() + "nonsense\nall_reduce 3 ranks\n").rows, p.rows);
  const auto choice = [&](std::int64_t bytes, int hosts) {
    return p.choose({.what = Collective::all_reduce, .bytes = bytes, .ranks = 3, .hosts = hosts});
  };
  EXPECT_EQ(choice(4, 1), Algorithm::star);
  EXPECT_EQ(choice(1000, 1), Algorithm::star);
  EXPECT_EQ(choice(1001, 1), Algorithm::ring);
  EXPECT_EQ(choice(1 << 28, 1), Algorithm::ring);
  EXPECT_NE(choice(4, 2), Algorithm::shared) << "two hosts share no memory";
  run_ranks(3, [&](Group g) {
    Cpu cpu;
    algo::adopt(g, g.rank() == 0 ? p : algo::Policy{});
    const auto before = g.counters().wire_bytes;
    Rows<float> x(g.rank(), 100);
    g.blocking().all_reduce(cpu.stream, x.tensor());
    EXPECT_EQ(g.counters().wire_bytes - before, g.rank() == 0 ? 800 : 400) << "wrong number of bytes for a star";
    EXPECT_EQ(wrong(x, 0, 3, Reduce::sum), "");
  });
}

/// The total bytes that all ranks send, for any number of ranks and elements: for a tensor of S bytes 2 (p-1) S to sum
/// it for all, (p-1) S to sum, gather or exchange parts of it. The counters agree to the byte. Halving sends more where
/// that is faster: short tensors whole, and parts twice if the number of ranks is not a power of two.
TEST(algorithms, send_what_the_formulas_say) {
  using enum Algorithm;
  for (const int n : {2, 3, 4, 5, 8})
    for (const std::int64_t count : {1L, 40L, 40007L})
      run_ranks(n, [&](Group g) {
        Cpu cpu;
        const auto sent = [&](auto&& call) {
          const auto before = g.counters().wire_bytes;
          call(g.blocking());
          std::int64_t total = g.counters().wire_bytes - before;
          g.blocking().all_reduce(cpu.stream, Tensor(&total, Spec{Shape{1}, DType::i64}), Reduce::sum, tree);
          return total;
        };
        Rows<float> part(g.rank(), count), whole(g.rank(), count * n), other(count * n);
        const std::int64_t one = 4 * count * (n - 1), all = one * n;  // (p-1) S for a part and for the whole
        for (const auto a : {ring, ring_blocking, halving, tree, star})
          if (a != halving || count > 1000) {
            EXPECT_EQ(sent([&](Group b) { b.all_reduce(cpu.stream, part.tensor(), Reduce::sum, a); }), 2 * one)
                << algorithm_name(a) << ' ' << n << ' ' << count;
          }
        for (const auto a : {ring, ring_blocking, halving, pairwise}) {
          if (a == halving && (n & (n - 1)) != 0) continue;
          EXPECT_EQ(sent([&](Group b) { b.reduce_scatter(cpu.stream, part.tensor(), whole.tensor(), Reduce::max, a); }),
                    all)
              << algorithm_name(a) << ' ' << n << ' ' << count;
          EXPECT_EQ(sent([&](Group b) { b.all_gather(cpu.stream, whole.tensor(), part.tensor(), a); }), all)
              << algorithm_name(a) << ' ' << n << ' ' << count;
        }
        EXPECT_EQ(sent([&](Group b) { b.all_to_all(cpu.stream, other.tensor(), whole.tensor(), pairwise); }), all)
            << n << ' ' << count;
        EXPECT_EQ(sent([&](Group b) { b.all_reduce(cpu.stream, part.tensor(), Reduce::max, shared); }), 0)
            << "memory is no wire";
      });
}

TEST(choice, that_is_impossible_says_what_there_is) {
  for (const auto& e : rank_errors(2, [](Group g) {
         Cpu cpu;
         Rows<float> x(4), y(4);
         g.blocking().all_to_all(cpu.stream, y.tensor(), x.tensor(), Algorithm::tree);
       }))
    EXPECT_NE(e.find("pairwise, shared, native"), std::string::npos) << e;
  for (const auto& e : rank_errors(
           2,
           [](Group g) {
             Cpu cpu;
             Rows<float> x(4);
             g.blocking().all_reduce(cpu.stream, x.tensor(), Reduce::sum, Algorithm::shared);
           },
           on_hosts({0, 1})))
    EXPECT_NE(e.find("one host"), std::string::npos) << e;
}

}  // namespace
}  // namespace hpcdl::comm
