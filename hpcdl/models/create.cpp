#include "hpcdl/models/create.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "hpcdl/models/draw.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kWorthThreads = 1 << 18;

/// Draws the values of a model in any order and in any parts.
class Drawing {
 public:
  Drawing(const StateTable& table, std::uint64_t seed) : seed_(seed) {
    std::int64_t elements = 0;
    for (const auto* p : table.params()) {
      stream_.emplace(p, stream_.size() + 1);  // absent parameters also count
      elements += p->spec ? p->spec.size() : 0;
    }
    // Temporary: models are created where no pool is available.
    pool_ = std::make_unique<Pool>(elements < kWorthThreads ? 1 : 0);
  }

  /// Elements `range` of what this rank has, to `to`.
  void draw(const StateEntry& e, Interval range, const Tensor& to) const {
    const Rng rng{seed_, stream_.at(e.param)};
    const auto part = Part::flat(e.param->whole(), range, e.part);
    for_each_run(part, [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
      draw_values(*pool_, *e.param, rng, whole, count, to.ptr<float>() + at);
    });
  }

 private:
  std::uint64_t seed_;
  std::unordered_map<const nn::Param*, std::uint64_t> stream_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace

void draw_values(Pool& pool, const nn::Param& p, const Rng& rng, std::int64_t first, std::int64_t count, float* to) {
  const auto at = static_cast<std::uint64_t>(first);
  if (p.init == nn::Init::normal) draw_normal(pool, to, count, rng, at, p.std);
  else if (p.init == nn::Init::uniform) draw_uniform(pool, to, count, rng, at, p.std);
  else std::fill_n(to, count, p.init == nn::Init::ones ? 1.0f : 0.0f);
}

void create(StateTable& table, std::optional<std::uint64_t> seed, bool with_gradients, Values values) {
  if (!seed) {
    table.describe();
    return table.allocate(with_gradients);
  }
  const auto drawing = std::make_shared<const Drawing>(table, *seed);
  table.allocate(with_gradients,
                 [drawing](const StateEntry& e, Interval range, const Tensor& to) { drawing->draw(e, range, to); });
  for (const auto& e : table.buffers())
    if (e.role != StateRole::counter) drawing->draw(e, {0, e.memory.size()}, e.memory.reshaped({e.memory.size()}));
  if (values == Values::now) table.fill();
}

}  // namespace hpcdl::models
