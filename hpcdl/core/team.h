#pragma once
// The threads of a Pool and the rules by which they share a job.
//
// Each worker has a seat, whose state is one word: the caller offers a share there, and the thread that changes the
// word from `offered` has claimed it. The worker of the seat does so when it runs; a thread that is done with its own
// share does so for workers that have not come. Only a share that was begun is waited for.
//
// A worker that another program keeps off its processor costs time if it has begun a share and is stopped in the
// middle. Such a worker is left out for a while: the others take its share, and it sleeps. Each time that it is late
// again soon after its return it stays out twice as long.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <thread>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/pool.h"

namespace hpcdl {

class Team {
 public:
  struct Job {
    void (*f)(void*, int) = nullptr;
    void* context = nullptr;
    Pool::Busy* busy = nullptr;  // by share; null: not measured
  };

  /// The caller and threads - 1 workers; at least two threads.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(const Job& job);
  /// Runs each share on the thread of its number.
  void run_on_each(const Job& job);

 private:
  enum State : std::uint32_t { idle, offered, offered_to_owner, at_work, asleep, stop };

  struct alignas(64) Seat {
    std::atomic<std::uint32_t> state{idle};
    std::atomic<std::uint32_t> signs{0};  // of life: grows when the worker begins a share, goes to sleep, wakes up
    alignas(64) std::atomic<bool> left{false};  // the others take its share
  };
  /// What the caller knows about a worker.
  struct Record {
    clockid_t clock{};
    bool has_clock = false, out = false;
    std::uint32_t signs = 0;
    Clock::time_point silent_since{}, until{};  // until: it is left out
    Clock::duration pause{};                    // the last one
    std::chrono::nanoseconds used{};            // processor time when the wait for it began
  };

  Seat& seat(int thread) { return seats_[static_cast<std::size_t>(thread)]; }
  Record& record(int thread) { return records_[static_cast<std::size_t>(thread)]; }

  void dismiss();
  void work(int thread);
  void sleep(Seat& own);
  void share(int number);
  void finish();
  void help(int thread);

  void offer(int thread, State how);
  void take_back();
  bool claim(int thread);
  void wait();
  void missed(int thread);
  void judge(Clock::time_point since);
  void leave_out(int thread, Clock::time_point now);
  void readmit();

  int threads_;
  Job job_;
  std::vector<Seat> seats_;                               // by thread; that of the caller is not used
  std::vector<Record> records_;                           // likewise
  int out_ = 0;                                           // workers that are left out
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // shares but the caller's; kWaiting: the caller sleeps
  std::atomic<int> unclaimed_{0};                         // number of shares that others than the owner may take
  std::vector<std::thread> workers_;
};

}  // namespace hpcdl
