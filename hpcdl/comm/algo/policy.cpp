#include "hpcdl/comm/algo/policy.h"

#include "hpcdl/comm/algo/algorithm.h"
#include "hpcdl/comm/algo/reduction.h"

namespace hpcdl::comm::algo {
namespace {

/// Whether the ranks of each host can use the memory that they share: one of their phases sums as many tensors
/// as there are ranks.
bool can_share(const Situation& s) {
  const int on_host = s.on_host > 0 ? s.on_host : (s.ranks + s.hosts - 1) / s.hosts;
  return s.shared && on_host <= kMostTogether;
}

bool can_be_shared(const Situation& s) { return s.hosts == 1 && can_share(s); }
bool can_be_hierarchical(const Situation& s) { return s.hosts > 1 && s.hosts < s.ranks && can_share(s); }

/// The algorithms on GPUs: NCCL, and our own all-reduce between those of one host.
bool is_for_gpus(Algorithm a, const Situation& s) {
  return a == Algorithm::native || (a == Algorithm::shared && s.shared && s.what == Collective::all_reduce);
}

/// Up to how many bytes our all-reduce between GPUs is faster than NCCL. On four H200s with NCCL 2.28 (ring;
/// bench/gpu/all_reduce_grid), microseconds of NCCL and of our kernels: 64 KB 13.9, 4.7; 256 KB 14.2, 8.2; 1 MB 20, 13.9;
/// 8 MB 60, 52; 16 MB 97, 94. On two: 9.8, 3.5; 10.6, 4.6; 16.4, 10.3; 48, 35; 76, 63. With more than four nothing has
/// been measured: there, only sizes at which our kernels are much faster.
constexpr std::int64_t most_between_gpus(int ranks) {
  return std::int64_t{1024} * (ranks > 4 ? 64 : ranks > 2 ? 8192 : 16384);
}

}  // namespace

std::vector<Algorithm> algorithms_of(Collective what) {
  std::vector<Algorithm> list;
  for (int i = 0; i < static_cast<int>(std::size(kAlgorithmNames)); ++i)
    if (const auto a = static_cast<Algorithm>(i); row_of(a).of(what)) list.push_back(a);
  return list;
}

std::vector<Algorithm> possible(const Situation& s, bool native) {
  const bool reduces = s.what == Collective::all_reduce || s.what == Collective::reduce_scatter;
  auto list = algorithms_of(s.what);
  std::erase_if(list, [&](Algorithm a) {
    const AlgorithmRow& row = row_of(a);
    if (s.gpus) return !is_for_gpus(a, s);
    if (reduces && s.ranks > row.most_ranks_to_reduce) return true;
    switch (row.needs) {
      case Needs::one_host: return !can_be_shared(s);
      case Needs::many_hosts: return !can_be_hierarchical(s);
      case Needs::library: return !native;
      case Needs::messages: break;
    }
    return false;
  });
  return list;
}

bool position_independent(Algorithm a, int ranks) {
  const Order order = row_of(a).order;
  return order == Order::of_ranks || (order == Order::of_place && ranks <= 2);
}

Algorithm default_choice(const Situation& s) {
  constexpr std::int64_t kFewBytes = 16 << 10;
  if (s.gpus) {
    const bool faster = s.bytes <= most_between_gpus(s.ranks);
    return faster && is_for_gpus(Algorithm::shared, s) ? Algorithm::shared : Algorithm::native;
  }
  if (can_be_shared(s)) return Algorithm::shared;
  const bool is_short = s.bytes <= kFewBytes, many = s.ranks > kMostTogether;
  // A ring of many ranks takes as many steps, each with a part of the tensor that is too small to be worth a step.
  const bool short_parts = many && s.bytes / s.ranks <= kFewBytes;
  switch (s.what) {
    case Collective::all_reduce:
      if (is_short) return Algorithm::halving;
      if (can_be_hierarchical(s)) return Algorithm::hierarchical;
      return short_parts ? Algorithm::halving : Algorithm::ring;
    case Collective::reduce_scatter:
    case Collective::all_gather:
      if (short_parts) return Algorithm::halving;
      return is_short && !many ? Algorithm::pairwise : Algorithm::ring;
    case Collective::all_to_all: return Algorithm::pairwise;
    case Collective::split: return many ? Algorithm::halving : Algorithm::pairwise;
    default: return Algorithm::tree;
  }
}

}  // namespace hpcdl::comm::algo
