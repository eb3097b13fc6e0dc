#pragma once
// Ranks as threads of this process, for tests of their cooperation. A rank that ends by an exception is lost: the
// others get PeerLost.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "hpcdl/comm/transport.h"
#include "hpcdl/io/ranks.h"

namespace hpcdl::io {

class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : size_(size), said_(static_cast<std::size_t>(size)) {}

  /// Thrown by a dying rank.
  struct Dies {};

  class Rank final : public Ranks {
   public:
    Rank(ThreadRanks& all, int rank, int calls_to_live) : all_(all), rank_(rank), calls_(calls_to_live) {}
    int rank() const override { return rank_; }
    int size() const override { return all_.size_; }
    std::vector<std::string> gather(const std::string& mine) override { return count(), all_.gather(rank_, mine); }
    void send(std::span<const std::byte> bytes, int to) override { count(), all_.put({rank_, to}, bytes); }
    void receive(std::span<std::byte> bytes, int from) override { count(), all_.take({from, rank_}, bytes); }

   private:
    void count() {
      if (calls_-- == 0) throw Dies{};
    }
    ThreadRanks& all_;
    int rank_, calls_;
  };

  /// Runs f(Ranks&) on every rank; rethrows the first Error, except those of dead ranks and PeerLost. Rank `dies` ends
  /// at its call number `at`.
  template <class F> static void run(int size, F f, int dies = -1, int at = -1) {
    ThreadRanks all(size);
    std::exception_ptr failed;
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
          Rank rank(all, r, r == dies ? at : -1);
          try {
            f(rank);
          } catch (...) {
            const std::lock_guard lock(all.mutex_);
            all.dead_ = true;
            all.changed_.notify_all();
            try {
              throw;
            } catch (const Dies&) {
            } catch (const comm::PeerLost&) {
            } catch (...) {
              if (!failed) failed = std::current_exception();
            }
          }
        });
    }
    if (failed) std::rethrow_exception(failed);
  }

 private:
  template <class Ready> void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    changed_.wait(lock, [&] { return dead_ || ready(); });
    if (!ready()) throw comm::PeerLost("[comm] a rank is gone");
  }
  std::vector<std::string> gather(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    said_[static_cast<std::size_t>(rank)] = mine;
    const auto round = round_;
    if (++arrived_ == size_) {
      answer_ = said_, arrived_ = 0, ++round_;
      changed_.notify_all();
    }
    wait(lock, [&] { return round_ != round; });
    return answer_;
  }
  void put(std::pair<int, int> way, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    mail_[way].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  void take(std::pair<int, int> way, std::span<std::byte> bytes) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return !mail_[way].empty(); });
    const auto message = std::move(mail_[way].front());
    mail_[way].pop_front();
    if (message.size() != bytes.size()) throw std::logic_error("a message of another length");
    std::copy(message.begin(), message.end(), bytes.begin());
  }

  int size_, arrived_ = 0, round_ = 0;
  bool dead_ = false;
  std::vector<std::string> said_, answer_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace hpcdl::io
