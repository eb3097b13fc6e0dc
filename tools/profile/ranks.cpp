#include "tools/profile/ranks.h"

#include "hpcdl/io/group_ranks.h"
#include "hpcdl/pool.h"

namespace hpcdl::lab {

std::vector<Ping> ping_rank_zero(const comm::Group& world, int times) {
  Pool pool(1);
  const Stream host(pool);
  const auto group = world.blocking();
  const Spec reading{{1}, DType::i64};
  std::vector<Ping> pings;
  for (int r = 1; r < world.size(); ++r) {
    if (world.host(r) == world.host(0)) continue;
    for (int i = 0; i < times; ++i) {
      std::int64_t answered = 0, question = 0;
      if (world.rank() == r) {
        const auto sent = now_ns();
        group.send(host, View(&question, reading), 0);
        group.receive(host, Tensor(&answered, reading), 0);
        pings.push_back({sent, answered, now_ns()});
      } else if (world.rank() == 0) {
        group.receive(host, Tensor(&question, reading), r);
        answered = now_ns();
        group.send(host, View(&answered, reading), r);
      }
    }
  }
  return pings;
}

std::optional<Merged> merge_ranks(const comm::Group& world, const std::string& trace) {
  const auto all = io::GroupRanks(world).gather(trace);
  if (world.rank() > 0) return std::nullopt;
  std::vector<RankTrace> traces;
  for (std::size_t r = 0; r < all.size(); ++r)
    traces.push_back(parse_rank_trace(all[r], "the trace of rank " + std::to_string(r)));
  return merge(std::move(traces));
}

}  // namespace hpcdl::lab
