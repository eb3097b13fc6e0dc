#pragma once
// The ranks that share the layers of a model: rank 0 decides what runs, the others hear of it and run the same.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/stream.h"

namespace hpcdl::infer {

/// What rank 0 tells the others; `body` is as the kind has it (follow.cpp).
struct Order {
  enum class Kind : std::int32_t { idle, open, step, repeat, deliver, copy_page, warm, end };
  Kind kind = Kind::idle;
  std::vector<std::byte> body = {};
};

/// Rank 0 uses it from one thread. Where it has nothing to say it says so, so that no wait of the others reaches its
/// deadline. A rank that is lost makes all calls throw comm::PeerLost, and so does whatever goes wrong on rank 0 after
/// the others have heard of it: they are then no longer in step.
class RankLink {
 public:
  /// Collective over the ranks that share a model. `silence`: the longest time between two orders.
  explicit RankLink(const comm::Group& ranks, std::chrono::milliseconds silence = std::chrono::seconds(1));
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  bool leads() const { return orders_.rank() == 0; }
  const comm::Group& ranks() const { return sharing_->group(); }
  /// For the model, which shares its layers among these ranks.
  const std::shared_ptr<const parallel::TensorParallel>& sharing() const { return sharing_; }

  /// Rank 0: tells the others, and does its own part by f().
  template <class F> void lead(const Order& order, F&& f) {
    const std::lock_guard lock(mutex_);
    expect_ranks();
    try {
      tell(order);
      f();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }
  /// Rank 0: the others return from follow().
  void end() {
    lead({Order::Kind::end}, [this] { ended_ = true; });
  }
  /// Rank 0, between two orders: throws if the ranks are no longer in step.
  void check();
  /// The others: waits for the next order that is not idle.
  Order next();
  /// Waits for a stream with exchanges between the ranks. Throws comm::PeerLost if one of them is lost.
  void wait(const Stream& s);

 private:
  void tell(const Order& order);
  void expect_ranks() const;
  void keep_alive();

  std::shared_ptr<const parallel::TensorParallel> sharing_;
  comm::Group orders_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;  // of what follows, and of the order of exchanges
  std::condition_variable changed_;
  std::exception_ptr failure_;
  std::chrono::steady_clock::time_point told_;  // the last order
  bool ended_ = false, stops_ = false;
  std::thread thread_;
};

}  // namespace hpcdl::infer
