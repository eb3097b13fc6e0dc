#pragma once
// Batches made ahead by worker threads and returned in order. The result does not depend on the thread: batch b lies in
// slot b % slots and is a function of b only.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcdl::data {

class BatchQueue {
 public:
  /// Makes batch `b` in `slot`; `worker` is the number of the thread. Called by several threads at once, for different
  /// slots.
  using Make = std::function<void(std::int64_t b, std::size_t slot, std::size_t worker)>;

  /// Batches [0, batches). No workers: each is made when it is requested. Otherwise up to `prefetch` batches are made
  /// ahead, `workers` at a time; a slot is kept for the batch that the reader holds.
  BatchQueue(std::int64_t batches, int workers, int prefetch, Make make);
  BatchQueue(const BatchQueue&) = delete;
  ~BatchQueue();
  static std::size_t slots(int workers, int prefetch);

  /// The slot of the next batch, which is valid until the next call. Throws the error of making it, now and at every
  /// call after. Precondition: fewer than `batches` have been taken.
  std::size_t next();
  std::int64_t taken() const { return taken_; }
  double waited_seconds() const { return waited_; }

 private:
  struct State {
    std::int64_t made = -1;  // the batch that lies in the slot
    std::exception_ptr error;
  };
  void work(std::size_t worker);

  std::int64_t batches_;
  Make make_;
  double waited_ = 0;
  std::vector<State> slots_;
  std::mutex mutex_;
  std::condition_variable made_cv_, taken_cv_;
  std::int64_t begun_ = 0, taken_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hpcdl::data
