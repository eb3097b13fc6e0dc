#include "hpcdl/data/images/batch_queue.h"

#include <algorithm>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"

namespace hpcdl::data {

std::size_t BatchQueue::slots(int workers, int prefetch) {
  return workers == 0 ? 1 : static_cast<std::size_t>(std::max(prefetch, workers)) + 1;
}

BatchQueue::BatchQueue(std::int64_t batches, int workers, int prefetch, Make make)
    : batches_(batches), make_(std::move(make)) {
  require(workers >= 0 && workers <= 256, "data", "expected 0 to 256 loader workers, found {}", workers);
  require(prefetch >= 0 && prefetch <= 4096, "data", "expected 0 to 4096 batches ahead, found {}", prefetch);
  slots_.resize(slots(workers, prefetch));
  for (int w = 0; w < workers; ++w) threads_.emplace_back([this, w] { work(static_cast<std::size_t>(w)); });
}

BatchQueue::~BatchQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  taken_cv_.notify_all();
  for (auto& t : threads_) t.join();
}

void BatchQueue::work(std::size_t worker) {
  for (;;) {
    std::int64_t b;
    {
      std::unique_lock lock(mutex_);
      const auto room = static_cast<std::int64_t>(slots_.size()) - 1;  // one slot is used by the reader
      taken_cv_.wait(lock, [&] { return stop_ || begun_ >= batches_ || begun_ - taken_ < room; });
      if (stop_ || begun_ >= batches_) return;
      b = begun_++;
    }
    const auto slot = static_cast<std::size_t>(b) % slots_.size();
    std::exception_ptr error;
    try {
      make_(b, slot, worker);
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    slots_[slot] = {b, error};
    made_cv_.notify_one();
  }
}

std::size_t BatchQueue::next() {
  const auto slot = static_cast<std::size_t>(taken_) % slots_.size();
  const auto begin = Clock::now();
  const auto wait = [&] { waited_ += seconds_since(begin); };
  if (threads_.empty()) {
    make_(taken_, slot, 0);
    ++taken_;
    wait();
    return slot;
  }
  {
    std::unique_lock lock(mutex_);
    if (slots_[slot].made != taken_) {
      made_cv_.wait(lock, [&] { return slots_[slot].made == taken_; });
      wait();
    }
    if (slots_[slot].error) std::rethrow_exception(slots_[slot].error);
    ++taken_;
  }
  taken_cv_.notify_one();
  return slot;
}

}  // namespace hpcdl::data
