#include "hpcdl/models/create.h"

#include <algorithm>
#include <map>

#include "hpcdl/models/draw.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kWorthThreads = 1 << 18;

void draw(Pool& pool, const StateEntry& e, const Rng& rng) {
  const auto fill = [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    draw_values(pool, *e.param, rng, whole, count, e.memory.ptr<float>() + at);
  };
  if (e.part.all()) fill(0, 0, e.memory.size());
  else for_each_run(e.part, fill);
}

void draw_all(const StateTable& table, std::uint64_t seed) {
  std::int64_t values = 0;
  std::map<const nn::Param*, const StateEntry*> entries;
  for (const auto part : {table.parameters(), table.buffers()})
    for (const auto& e : part) values += e.memory.size(), entries[e.param] = &e;
  Pool pool(values < kWorthThreads ? 1 : 0);  // temporary: models are created where no pool is available
  std::uint64_t stream = 0;
  for (const auto* p : table.params()) {
    const Rng rng{seed, ++stream};  // absent parameters also count
    if (const auto it = entries.find(p); it != entries.end() && it->second->role != StateRole::counter)
      draw(pool, *it->second, rng);
  }
}

}  // namespace

void draw_values(Pool& pool, const nn::Param& p, const Rng& rng, std::int64_t first, std::int64_t count, float* to) {
  const auto at = static_cast<std::uint64_t>(first);
  if (p.init == nn::Init::normal) draw_normal(pool, to, count, rng, at, p.std);
  else if (p.init == nn::Init::uniform) draw_uniform(pool, to, count, rng, at, p.std);
  else std::fill_n(to, count, p.init == nn::Init::ones ? 1.0f : 0.0f);
}

void create(StateTable& table, std::optional<std::uint64_t> seed, bool with_gradients) {
  if (!seed) table.describe();
  table.allocate(with_gradients);
  if (seed) draw_all(table, *seed);
}

}  // namespace hpcdl::models
