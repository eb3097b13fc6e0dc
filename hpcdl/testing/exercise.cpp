#include "hpcdl/testing/exercise.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/core/element.h"
#include "hpcdl/pool.h"

namespace hpcdl::testing {
namespace {

using comm::Collective;
using comm::Group;
using comm::Reduce;

/// Exact in every dtype, also after a sum over 16 ranks.
std::int64_t value(int rank, std::int64_t i, int salt) { return (rank * 3 + i * 7 + salt) % 11; }

struct Shape1 {
  Collective what;
  DType dtype;
  Reduce op;
  std::int64_t count;
  int salt, root;
  bool later, shared;
};

/// A collective that is under way, with its tensors.
struct Job {
  const Group& group;
  Shape1 c;
  OwnedTensor in, out;
  Tensor x, y;  // memory of the collective: in, out, or shared memory
  comm::Work work, other;

  Job(const Group& g, const Shape1& shape, std::byte* shared_memory) : group(g), c(shape) {
    const bool wide_in = c.what == Collective::reduce_scatter || c.what == Collective::all_to_all;
    const bool wide_out = c.what == Collective::all_gather || c.what == Collective::all_to_all;
    in = OwnedTensor(Spec{Shape{wide_in ? c.count * g.size() : c.count}, c.dtype});
    out = OwnedTensor(Spec{Shape{wide_out ? c.count * g.size() : c.count}, c.dtype});
    x = shared_memory ? Tensor(shared_memory, in.tensor.spec()) : in.tensor;
    y = out.tensor;
    visit_number(c.dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < x.size(); ++i) x.ptr<T>()[i] = T(static_cast<float>(value(g.rank(), i, c.salt)));
    });
  }

  void start(const Stream& s) {
    const Group g = c.later ? group : group.blocking();
    switch (c.what) {
      case Collective::all_reduce: work = g.all_reduce(s, x, c.op); break;
      case Collective::reduce_scatter: work = g.reduce_scatter(s, y, x, c.op); break;
      case Collective::all_gather: work = g.all_gather(s, y, x); break;
      case Collective::all_to_all: work = g.all_to_all(s, y, x); break;
      case Collective::broadcast: work = g.broadcast(s, x, c.root); break;
      case Collective::send:
        if (g.size() == 1) break;
        work = group.send(s, x, (g.rank() + 1) % g.size());
        other = group.receive(s, y, (g.rank() + g.size() - 1) % g.size());
        break;
      default: work = g.barrier(s);
    }
  }

  std::int64_t expected(std::int64_t i) const {
    const int size = group.size(), me = group.rank();
    const auto reduced = [&](std::int64_t at) {
      std::int64_t sum = 0, max = 0;
      for (int r = 0; r < size; ++r) {
        sum += value(r, at, c.salt);
        max = std::max(max, value(r, at, c.salt));
      }
      return c.op == Reduce::max ? max : sum;
    };
    switch (c.what) {
      case Collective::all_reduce: return reduced(i);
      case Collective::reduce_scatter: return reduced(me * c.count + i);
      case Collective::all_gather: return value(static_cast<int>(i / c.count), i % c.count, c.salt);
      case Collective::all_to_all: return value(static_cast<int>(i / c.count), me * c.count + i % c.count, c.salt);
      case Collective::broadcast: return value(c.root, i, c.salt);
      default: return value((me + size - 1) % size, i, c.salt);
    }
  }

  void check() {
    work.wait();
    other.wait();
    if (c.what == Collective::barrier || (c.what == Collective::send && group.size() == 1)) return;
    const Tensor& result = c.what == Collective::all_reduce || c.what == Collective::broadcast ? x : y;
    visit_number(c.dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < result.size(); ++i) {
        const auto got = static_cast<double>(static_cast<float>(result.ptr<T>()[i]));
        require(got == static_cast<double>(expected(i)), "exercise",
                "{} of {} {} on rank {} of {} of {}: element {}: expected {}, got {}", collective_name(c.what), c.count,
                dtype_name(c.dtype), group.rank(), group.size(), group.name(), i, expected(i), got);
      }
    });
  }
};

Shape1 draw(std::mt19937_64& rng, int size) {
  constexpr Collective whats[] = {Collective::all_reduce, Collective::all_reduce, Collective::reduce_scatter,
                                  Collective::all_gather, Collective::all_to_all, Collective::broadcast,
                                  Collective::barrier,    Collective::send};
  constexpr DType dtypes[] = {DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16,
                              DType::i64, DType::i32, DType::i16, DType::u8};
  constexpr std::int64_t counts[] = {0, 1, 7, 64, 1023, 4096, 20011, 70001};
  const auto pick = [&](const auto& from) { return from[rng() % std::size(from)]; };
  Shape1 c{};
  c.what = pick(whats);
  c.dtype = pick(dtypes);
  c.op = rng() % 3 == 0 ? Reduce::max : Reduce::sum;
  c.count = pick(counts);
  c.salt = static_cast<int>(rng() % 11);
  c.root = static_cast<int>(rng() % static_cast<std::uint64_t>(size));
  c.later = rng() % 2 == 0;
  c.shared = rng() % 3 == 0;
  return c;
}

}  // namespace

void exercise(const Group& world, std::uint64_t seed, int iterations) {
  Pool pool(1);
  const Stream s(pool);
  constexpr std::int64_t kWindow = 1 << 20;
  // Halves of different size, neighbours in reverse order, and all ranks; including groups of one rank.
  const Group groups[] = {world, world.split(world.rank() % 3 == 0, world.rank(), "thirds"),
                          world.split(world.rank() / 2, -world.rank(), "pairs")};
  std::shared_ptr<comm::Window> windows[3];
  for (int g = 0; g < 3; ++g) windows[g] = groups[g].share(kWindow);
  std::mt19937_64 rng(seed);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int k = 0; k < iterations; ++k) {
    const auto g = static_cast<std::size_t>(rng() % 3);
    Shape1 c = draw(rng, 1 << 20);
    c.root %= groups[g].size();
    const std::int64_t bytes =
        c.count * world.size() * dtype_bytes(c.dtype);  // at most, so that all ranks make the same decision
    // One job at a time may have the window.
    const bool shared = c.shared && windows[g] && bytes <= kWindow && jobs.empty();
    std::byte* memory = shared ? windows[g]->block(groups[g].local_rank()) : nullptr;
    jobs.push_back(std::make_unique<Job>(groups[g], c, memory));
    jobs.back()->start(s);
    const bool gather_up =
        rng() % 4 == 0;  // drawn by all ranks, needed or not, so that their random numbers stay the same
    if (shared || gather_up) {
      for (auto& job : jobs) job->check();
      jobs.clear();
    }
  }
  for (auto& job : jobs) job->check();
  world.barrier(s).wait();
}

}  // namespace hpcdl::testing
