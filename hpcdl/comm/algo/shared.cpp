#include "hpcdl/comm/algo/shared.h"

#include <chrono>
#include <cstring>

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/reach.h"

namespace hpcdl::comm::algo {

namespace {

/// Bytes up to which staging is faster than another phase: measured on 2 cores of a Xeon and, for threads, of a Zen 5.
constexpr std::int64_t kShortWindow = 256, kShortOfThreads = 1 << 20;
/// Bytes between two ranks from which one copy from process to process is faster than two through staging
/// memory: all-gathers of two ranks of a Xeon take 2.6 against 3.8 us at 16 KiB each, 3.7 against 6.2 at 32.
constexpr std::int64_t kLeastRead = 16 << 10;
/// Bytes from which data that are only moved bypass the caches.
constexpr std::int64_t kStream = 16 << 20;
/// Ranks up to which each sums the whole staged tensor itself, instead of a slice for all.
constexpr int kAlone = 4;
/// Bytes of one round through staging memory: the half that is in use, and the copied data, stay in a core's
/// second-level cache.
constexpr std::int64_t kRound = 128 << 10;
static_assert(kRound <= Phases::kHalf);
/// Bytes of a tensor from which sums are staged in rounds of the whole half: a sum of 1 MiB of two ranks of a Zen 4
/// takes 150, 105 and 55 us in rounds of 128, 256 and 512 KiB, one of 16 MiB 2.4, 1.9 and 1.6 ms. Data that a rank has
/// staged have left its second-level cache by the time the other reads them, and a line comes faster from the cache
/// that cores share than from that of another core. If other programs run, fewer rounds wait less often for a rank
/// without a processor.
constexpr std::int64_t kLong = 1 << 20;
/// Bytes that a rank reads from all others before it sums: they stay in a core's second-level cache. 128 KiB took 4 %
/// longer.
constexpr std::int64_t kReadRound = 512 << 10;

/// Bypasses the caches.
void stream_bytes(std::byte* to, const std::byte* from, std::int64_t n) {
  combine_all({DType::f32, Reduce::sum, 1}, std::span(&to, 1), std::span(&from, 1), n / 4,
              Sweep::stream);  // of one: a copy
  copy_bytes(to + n / 4 * 4, from + n / 4 * 4, n % 4);
}

void move_bytes(std::byte* to, const std::byte* from, std::int64_t n, std::int64_t of_all) {
  of_all < kStream || to == from ? copy_bytes(to, from, n) : stream_bytes(to, from, n);
}

/// The slice of a rank of n elements, in whole cache lines, so that no line is written by two ranks.
Range slice(std::int64_t n, std::int64_t width, int parts, int i) {
  const std::int64_t line = 64 / width, lines = (n + line - 1) / line;
  return {std::min(n, lines * i / parts * line), std::min(n, lines * (i + 1) / parts * line)};
}

/// One address for each rank, without the heap: short collectives take a few hundred nanoseconds.
class Rows {
 public:
  explicit Rows(int n) : n_(static_cast<std::size_t>(n)) {
    require(n <= kMostTogether, "comm", "expected at most {} ranks on one host, got {}", kMostTogether, n);
  }
  std::byte*& operator[](int k) { return at_[k]; }
  std::span<std::byte* const> out() const { return {at_, n_}; }
  std::span<const std::byte* const> in() const { return {const_cast<const std::byte* const*>(at_), n_}; }

 private:
  std::size_t n_;
  std::byte* at_[kMostTogether];
};

/// All tensors can be reached: each rank reduces its slice of them into all. Two neighbours move away from the border
/// between them: a processor that runs towards it prefetches lines of the other slice, which the other must then win
/// back before it can write them (496 against 293 ns for 4 KiB of two ranks on a Xeon, of which 290 are the two
/// phases).
void reduce_in_place(const Reduction& r, Phases& p, Rows& tensors, std::int64_t n) {
  const Range own = slice(n, r.bytes(1), p.size(), p.index());
  for (int k = 0; k < p.size(); ++k) tensors[k] += r.bytes(own.begin);
  combine_all(r, tensors.out(), tensors.in(), own.count(), p.index() % 2 == 0 ? Sweep::down : Sweep::up);
}

/// Every rank stages, round by round, what others need of its `parts` parts of n elements, `stride` bytes apart; one
/// whose `in` is null only uses. use(at, count, staged): elements [at, at + count) of all parts; staged(rank, part) is
/// where a rank has them.
template <class Use>
void staged_rounds(Phases& p, int parts, std::int64_t n, std::int64_t width, const std::byte* in, std::int64_t stride,
                   bool only_others, Use&& use, std::int64_t round_bytes = kRound) {
  const std::int64_t round = std::max<std::int64_t>(1, round_bytes / width / parts / 64 * 64);
  for (std::int64_t at = 0; at < n; at += round) {
    const std::int64_t count = std::min(round, n - at), bytes = count * width;
    for (int k = 0; in && k < parts; ++k)
      if (!only_others || k != p.index())
        copy_bytes(p.staging(p.index()) + k * bytes, in + k * stride + at * width, bytes);
    p.meet();
    use(at, count, [&](int rank, int part) { return p.staged(rank) + part * bytes; });
  }
}

/// Each rank sums what all ranks have staged into its own tensor.
void sum_alone(const Reduction& r, Phases& p, std::byte* x, std::int64_t count) {
  Rows in(p.size());
  for (int k = 0; k < p.size(); ++k) in[k] = k == p.index() ? x : p.staged(k);
  combine_all(r, std::span(&x, 1), in.in(), count);
}

/// Each rank sums a slice of the staged data into its own staging memory, from which all ranks copy it.
void sum_slices(const Reduction& r, Phases& p, std::byte* x, std::int64_t count) {
  Rows in(p.size());
  const Range own = slice(count, r.bytes(1), p.size(), p.index());
  for (int k = 0; k < p.size(); ++k) in[k] = p.staged(k) + r.bytes(own.begin);
  std::byte* out = p.staging(p.index());
  combine_all(r, std::span(&out, 1), in.in(), own.count());
  p.meet();
  for (int k = 0; k < p.size(); ++k) {
    const Range theirs = slice(count, r.bytes(1), p.size(), k);
    copy_bytes(x + r.bytes(theirs.begin), p.staged(k), r.bytes(theirs.count()));
  }
}

void sum_staged(const Reduction& r, Phases& p, std::byte* x, std::int64_t count) {
  p.size() <= kAlone ? sum_alone(r, p, x, count) : sum_slices(r, p, x, count);
}

/// Every rank reads its slice of the others' tensors into memory that stays in its core's cache,
/// sums it into its own tensor, and reads the other slices when all are done: a few phases for any length. If a rank
/// was refused at its first read, returns false on all ranks and changes nothing.
bool reduce_by_reading(const Reduction& r, Ground& g, Phases& p, std::byte* x, std::int64_t n) {
  const int size = p.size(), own = p.index();
  const Range mine = slice(n, r.bytes(1), size, own);
  const std::int64_t round = std::max<std::int64_t>(1, kReadRound / r.bytes(1) / (size - 1) / 64 * 64);
  std::byte* const parts = g.scratch.bytes((size - 1) * r.bytes(round));
  p.meet(reinterpret_cast<std::uint64_t>(x));
  std::uint64_t theirs[kMostTogether] = {};
  for (int k = 0; k < size; ++k) theirs[k] = p.told(k);
  Rows in(size);
  // Elements [at, at + count) of all ranks into `in`.
  const auto read = [&](std::int64_t at, std::int64_t count) {
    bool done = true;
    std::byte* part = parts;
    for (int k = 0; k < size; ++k) {
      in[k] = k == own ? x + r.bytes(at) : part;
      if (k == own) continue;
      done = done && read_from(g, k, part, theirs[k] + static_cast<std::uint64_t>(r.bytes(at)), r.bytes(count));
      part += r.bytes(round);
    }
    return done;
  };
  const auto count_at = [&](std::int64_t at) { return std::min(round, mine.end - at); };
  // Whether all ranks could read. The phase finds a rank that is gone.
  const auto all_done = [&](bool done) {
    p.meet(done);
    for (int k = 0; k < size; ++k) done = done && p.told(k) == 1;
    return done;
  };
  const auto expect_all_done = [&](bool done) {
    require(all_done(done), "comm",
            "the system first let the ranks of this host read each other's memory, and then refused it during "
            "of a sum");
  };
  if (!all_done(mine.count() == 0 || read(mine.begin, count_at(mine.begin)))) {
    may_read_sums(g, false);
    return false;
  }
  bool done = true;
  for (std::int64_t at = mine.begin; at < mine.end && done; at += round) {
    const std::int64_t count = count_at(at);
    if (at > mine.begin) done = read(at, count);
    std::byte* out = x + r.bytes(at);
    if (done) combine_all(r, std::span(&out, 1), in.in(), count);
  }
  expect_all_done(done);
  for (int step = 1; step < size && done; ++step) {
    const int k = (own + step) % size;
    const Range other = slice(n, r.bytes(1), size, k);
    const auto at = r.bytes(other.begin);
    done = read_from(g, k, x + at, theirs[k] + static_cast<std::uint64_t>(at), r.bytes(other.count()));
  }
  expect_all_done(done);
  return true;
}

/// Each round fills the whole half, and two rounds form a stretch. The time of a stretch begins when all
/// ranks have staged its first round. The ranks tell each other this time in their next phase.
void reduce_staged_long(const Reduction& r, Ground& g, Phases& p, std::byte* x, std::int64_t n) {
  const std::int64_t round = Phases::kHalf / r.bytes(1), stretch = 2 * round;
  StagingTrials& trials = g.shared->trials;
  for (std::int64_t begin = 0; begin < n; begin += stretch) {
    const std::int64_t end = std::min(n, begin + stretch);
    if (trials.apart.reading_pays((n - begin) / stretch) && may_read_sums(g, p)) {
      trials.apart.read();
      if (reduce_by_reading(r, g, p, x + r.bytes(begin), n - begin)) return;
    }
    const bool past_caches = trials.choice.begin();
    Deadline since;
    for (std::int64_t at = begin; at < end; at += round) {
      const std::int64_t count = std::min(round, end - at);
      std::byte* const part = x + r.bytes(at);
      (past_caches ? stream_bytes : copy_bytes)(p.staging(p.index()), part, r.bytes(count));
      if (at > begin) {
        p.meet();
      } else {
        p.meet(static_cast<std::uint64_t>(trials.nanoseconds));
        std::int64_t slowest = 0;
        for (int k = 0; k < p.size(); ++k) slowest = std::max(slowest, static_cast<std::int64_t>(p.told(k)));
        if (slowest > 0) trials.choice.took_before(slowest), trials.apart.took(slowest, p.size());
        since = Clock::now();
      }
      sum_staged(r, p, part, count);
    }
    trials.nanoseconds = end - begin < stretch ? 0 : std::chrono::nanoseconds(Clock::now() - since).count();
  }
}

void reduce_staged(const Reduction& r, Ground& g, Phases& p, std::byte* x, std::int64_t n) {
  if (r.bytes(n) >= kLong) return reduce_staged_long(r, g, p, x, n);
  staged_rounds(p, 1, n, r.bytes(1), x, 0, false,
                [&](std::int64_t at, std::int64_t count, auto&&) { sum_staged(r, p, x + r.bytes(at), count); });
}

Rows addresses(const decltype(Call::in_place)& place, int size) {
  Rows list(size);
  for (int k = 0; k < size; ++k) list[k] = place.at(k);
  return list;
}

/// The addresses of the tensors of all ranks of one process. Valid until the next phase.
Rows addresses(Phases& p, const std::byte* mine) {
  p.meet(reinterpret_cast<std::uint64_t>(mine));
  Rows list(p.size());
  for (int k = 0; k < p.size(); ++k) list[k] = reinterpret_cast<std::byte*>(p.told(k));
  return list;
}

/// Calls use(rows) with the addresses of all ranks' tensors, which no rank changes until all have returned from
/// it.
template <class Use> void with_inputs(const Call& c, Phases& p, Use&& use) {
  if (c.in_place) p.meet();
  Rows rows = c.in_place ? addresses(c.in_place, p.size()) : addresses(p, c.in);
  use(rows);
  p.meet();
}

/// How ranks access each other's data; the same on all ranks.
enum class Way : std::uint8_t { staging, reading, addresses };

/// `bytes`: of the tensor; `move`: from one rank to another if nothing is reduced, otherwise 0.
Way way(const Call& c, Ground& g, Phases& p, std::int64_t bytes, std::int64_t move) {
  if (c.in_place) return bytes <= kShortWindow ? Way::staging : Way::addresses;
  const bool reads = move >= kLeastRead;
  if (bytes <= kShortOfThreads && !reads) return Way::staging;
  const Reach r = reach(p, g);
  if (r == Reach::addresses && bytes > kShortOfThreads) return Way::addresses;
  return r == Reach::reading && reads ? Way::reading : Way::staging;
}

/// Copies n bytes of the input of every other rank k, from `offset` on, to to(k). False on all ranks if one of them was
/// refused: pages of a device, for example, cannot be read by other processes.
template <class To>
bool read_others(const Call& c, Ground& g, Phases& p, std::int64_t offset, std::int64_t n, To&& to) {
  p.meet(reinterpret_cast<std::uint64_t>(c.in));
  bool done = true;
  for (int step = 1; step < p.size(); ++step) {
    const int k = (p.index() + step) % p.size();
    done = done && read_from(g, k, to(k), p.told(k) + static_cast<std::uint64_t>(offset), n);
  }
  p.meet(done);
  for (int k = 0; k < p.size(); ++k) done = done && p.told(k) == 1;
  if (!done) remember(g, Reach::staging);
  return done;
}

/// The data of rank k for this rank go to out + k * part. `in` holds a part for each rank, or one part for all ranks.
void gather(const Call& c, Ground& g, bool parts) {
  Phases p(g);
  const int size = p.size(), own = p.index();
  const std::int64_t part = c.bytes(), all = part * size, offset = parts ? own * part : 0;
  const auto place = [&](int k) { return c.out + k * part; };
  move_bytes(place(own), c.in + offset, part, all);
  switch (way(c, g, p, parts ? all : part, part)) {
    case Way::reading:
      if (read_others(c, g, p, offset, part, place)) return;
      [[fallthrough]];
    case Way::staging:
      return staged_rounds(p, parts ? size : 1, part, 1, c.in, part, parts,
                           [&](std::int64_t at, std::int64_t n, auto&& staged) {
                             for (int k = 0; k < size; ++k)
                               if (k != own) move_bytes(place(k) + at, staged(k, parts ? own : 0), n, all);
                           });
    case Way::addresses:
      return with_inputs(c, p, [&](Rows& rows) {
        for (int step = 1; step < size; ++step) {
          const int k = (own + step) % size;
          move_bytes(place(k), rows[k] + offset, part, all);
        }
      });
  }
}

void shared_all_reduce(const Call& c, Ground& g) {
  Phases p(g);
  const Reduction r = reduction_of(c, g);
  if (way(c, g, p, c.bytes(), 0) == Way::staging) return reduce_staged(r, g, p, c.out, c.count);
  with_inputs(c, p, [&](Rows& tensors) { reduce_in_place(r, p, tensors, c.count); });
}

void shared_reduce_scatter(const Call& c, Ground& g) {
  Phases p(g);
  const Reduction r = reduction_of(c, g);
  const int size = p.size(), index = p.index();
  std::byte* mine = const_cast<std::byte*>(c.in) + index * c.bytes();
  Rows in(size);
  if (way(c, g, p, c.bytes() * size, 0) == Way::staging)
    return staged_rounds(
        p, size, c.count, r.bytes(1), c.in, c.bytes(), true, [&](std::int64_t at, std::int64_t count, auto&& staged) {
          for (int k = 0; k < size; ++k) in[k] = k == index ? mine + r.bytes(at) : staged(k, index);
          std::byte* out = c.out + r.bytes(at);
          combine_all(r, std::span(&out, 1), in.in(), count, c.bytes() * size >= kStream ? Sweep::stream : Sweep::up);
        });
  with_inputs(c, p, [&](Rows& rows) {
    for (int k = 0; k < size; ++k) in[k] = rows[k] + index * c.bytes();
    combine_all(r, std::span(&c.out, 1), in.in(), c.count);
  });
}

void shared_broadcast(const Call& c, Ground& g) {
  const auto ranks = g.shared->ranks();
  shared_copy_from(g, static_cast<int>(std::find(ranks.begin(), ranks.end(), c.peer) - ranks.begin()), c.out,
                   c.bytes());
}

}  // namespace

const AlgorithmRow shared_row{.needs = Needs::one_host,
                              .all_reduce = shared_all_reduce,
                              .reduce_scatter = shared_reduce_scatter,
                              .all_gather = [](const Call& c, Ground& g) { gather(c, g, false); },
                              .all_to_all = [](const Call& c, Ground& g) { gather(c, g, true); },
                              .broadcast = shared_broadcast,
                              .barrier = [](const Call&, Ground& g) { Phases(g).meet(); }};

void shared_reduce_to_first(const Reduction& reduction, Ground& g, std::byte* x, std::int64_t n) {
  Phases p(g);
  const Reduction r{reduction.dtype, reduction.op == Reduce::max ? Reduce::max : Reduce::sum, reduction.ranks};
  Rows in(p.size());
  staged_rounds(
      p, 1, n, r.bytes(1), p.index() == 0 ? nullptr : x, 0, false,
      [&](std::int64_t at, std::int64_t count, auto&& staged) {
        if (p.index() != 0) return;
        std::byte* out = x + r.bytes(at);
        for (int k = 0; k < p.size(); ++k) in[k] = k == 0 ? out : staged(k, 0);
        combine_all(r, std::span(&out, 1), in.in(), count);
      },
      // There may be more ranks than cores: a phase is expensive, and the link between hosts is slower than memory.
      Phases::kHalf);
}

void shared_copy_from(Ground& g, int root, std::byte* x, std::int64_t bytes) {
  Phases p(g);
  for (std::int64_t at = 0; at < bytes; at += Phases::kHalf) {
    const std::int64_t n = std::min(Phases::kHalf, bytes - at);
    if (p.index() == root) copy_bytes(p.staging(root), x + at, n);
    p.meet();
    if (p.index() != root) copy_bytes(x + at, p.staged(root), n);
  }
}

}  // namespace hpcdl::comm::algo
