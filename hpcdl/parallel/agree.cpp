#include "hpcdl/parallel/agree.h"

#include <algorithm>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/lowest_cpu.h"
#include "hpcdl/pool.h"

namespace hpcdl::parallel {

std::vector<double> sum_over_ranks(const comm::Group& group, std::span<const double> values) {
  if (group.size() == 1) return {values.begin(), values.end()};
  constexpr std::int64_t kWords = sizeof(double) / sizeof(std::int32_t);  // doubles are sent as pairs of integers
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<double> mine(values.begin(), values.end()), all(values.size() * static_cast<std::size_t>(group.size())),
      sum(values.size());
  Pool pool(1);
  const comm::Label label("numbers that ranks tell each other");
  group.blocking().all_gather(Stream(pool), Tensor(all.data(), {{group.size() * n * kWords}, DType::i32}),
                              View(mine.data(), {{n * kWords}, DType::i32}));
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
  return sum;
}

double sum_over_ranks(const comm::Group& group, double value) { return sum_over_ranks(group, std::span(&value, 1))[0]; }

std::vector<std::int32_t> of_first_rank(const comm::Group& group, std::vector<std::int32_t> mine) {
  if (group.size() == 1) return mine;
  Pool pool(1);
  const comm::Label label("numbers that rank 0 tells the others");
  auto count = static_cast<std::int32_t>(mine.size());
  group.blocking().broadcast(Stream(pool), Tensor(&count, {{1}, DType::i32}), 0);
  mine.resize(static_cast<std::size_t>(count));
  group.blocking().broadcast(Stream(pool), Tensor(mine.data(), {{count}, DType::i32}), 0);
  return mine;
}

bool any_rank(const comm::Group& group, bool mine) { return sum_over_ranks(group, mine ? 1.0 : 0.0) > 0; }

void wait_for_all(const comm::Group& group, const std::function<bool(std::chrono::milliseconds)>& done) {
  constexpr std::chrono::milliseconds kTurn{200};
  while (any_rank(group, !done(kTurn))) {}
}

bool first_of_host(const comm::Group& group) {
  for (int r = 0; r < group.rank(); ++r)
    if (group.host(r) == group.host(group.rank())) return false;
  return true;
}

int threads_per_rank(const comm::Group& group) {
  const auto me = static_cast<std::size_t>(group.rank());
  std::vector<double> processors(static_cast<std::size_t>(group.size()));
  processors[me] = lowest_cpu();
  processors = sum_over_ranks(group, processors);
  int sharing = 0;
  for (int r = 0; r < group.size(); ++r)
    sharing += group.host(r) == group.host(group.rank()) && processors[static_cast<std::size_t>(r)] == processors[me];
  return std::max(1, usable_cpus() / sharing);
}

}  // namespace hpcdl::parallel
