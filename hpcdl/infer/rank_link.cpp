#include "hpcdl/infer/rank_link.h"

#include <algorithm>
#include <array>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/pool.h"

namespace hpcdl::infer {

namespace {

/// The first message of an order; a body that has no room in it follows as a second one.
struct Head {
  Order::Kind kind = Order::Kind::idle;
  std::int32_t unused = 0;
  std::int64_t bytes = 0;
  std::array<std::byte, 496> body = {};

  bool holds_body() const { return bytes <= std::ssize(body); }
};

void broadcast(const comm::Group& ranks, void* data, std::int64_t bytes) {
  Pool pool(1);
  const comm::Label label("the next step of rank 0");
  ranks.blocking().broadcast(Stream(pool), Tensor(data, {{bytes}, DType::u8}), 0);
}

}  // namespace

RankLink::RankLink(const comm::Group& ranks, std::chrono::milliseconds silence)
    : sharing_(std::make_shared<parallel::TensorParallel>(ranks)),
      orders_(ranks.split(0, ranks.rank(), "orders")),
      silence_(silence) {
  if (leads() && ranks.size() > 1) thread_ = std::thread([this] { keep_alive(); });
}

RankLink::~RankLink() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RankLink::tell(const Order& order) {
  Head head{.kind = order.kind, .bytes = std::ssize(order.body)};
  if (head.holds_body()) std::ranges::copy(order.body, head.body.begin());
  broadcast(orders_, &head, sizeof head);
  if (!head.holds_body()) broadcast(orders_, const_cast<std::byte*>(order.body.data()), head.bytes);
  told_ = std::chrono::steady_clock::now();
}

void RankLink::expect_ranks() const {
  if (failure_) std::rethrow_exception(failure_);
}

void RankLink::check() {
  const std::lock_guard lock(mutex_);
  expect_ranks();
}

Order RankLink::next() {
  for (;;) {
    Head head;
    broadcast(orders_, &head, sizeof head);
    if (head.kind == Order::Kind::idle) continue;
    Order order{head.kind, std::vector<std::byte>(static_cast<std::size_t>(head.bytes))};
    if (head.holds_body()) std::copy_n(head.body.begin(), order.body.size(), order.body.begin());
    else broadcast(orders_, order.body.data(), head.bytes);
    return order;
  }
}

void RankLink::wait(const Stream& s) {
  try {
    comm::synchronize(ranks(), s);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    throw;
  }
}

void RankLink::keep_alive() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    changed_.wait_for(lock, silence_, [this] { return stops_; });
    if (stops_ || ended_ || failure_ || std::chrono::steady_clock::now() - told_ < silence_) continue;
    try {
      tell({});
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
}

}  // namespace hpcdl::infer
