#include "hpcdl/infer/follow.h"

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

namespace {

template <class T> T item_of(const Order& order) {
  static_assert(std::is_trivially_copyable_v<T>);
  T item;
  require(order.body.size() == sizeof item, "engine", "expected an order of {} bytes from rank 0, found {}",
          sizeof item, order.body.size());
  std::memcpy(&item, order.body.data(), sizeof item);
  return item;
}

}  // namespace

void follow(const models::LanguageModel& model, Pool& pool, RankLink& ranks, const ChooseWays& choose_ways) {
  std::optional<PassRunner> runner;
  for (;;) {
    const auto order = ranks.next();
    if (order.kind == Order::Kind::end) {
      if (runner) ranks.wait(runner->stream());
      return;
    }
    if (order.kind == Order::Kind::open) {
      runner.reset();
      runner.emplace(model, pool, item_of<PassRunner::Sizes>(order));
      if (choose_ways) runner->stream().set_ways(choose_ways(*runner));
      continue;
    }
    require(runner.has_value(), "engine", "rank 0 has told a step before the sizes of the engine");
    switch (order.kind) {
      case Order::Kind::step: runner->start(ReadStep(order.body).step()); break;
      case Order::Kind::repeat: runner->repeat(); break;
      case Order::Kind::deliver: runner->deliver(item_of<int>(order)); break;
      case Order::Kind::copy_page: {
        const auto [to, from] = item_of<std::array<PagePair, 2>>(order);
        runner->copy_page(to, from);
        break;
      }
      case Order::Kind::warm: runner->warm(); break;
      default: fail("engine", "rank 0 has told an order of the unknown kind {}", static_cast<int>(order.kind));
    }
  }
}

}  // namespace hpcdl::infer
