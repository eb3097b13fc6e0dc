#pragma once
// Captured work in turns on a GPU, for programs that compare several ways to do the same.

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/stream.h"

namespace hpcdl::bench {

struct Side {
  std::string name;
  std::function<void()> queue;
  Capture graph = {};
  std::vector<double> us = {};
};

inline double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + std::ssize(v) / 2, v.end());
  return v[v.size() / 2];
}

class Clock {
 public:
  explicit Clock(Stream& s) : s_(s) {
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate"), cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Clock() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
  Clock(const Clock&) = delete;
  /// Microseconds of a launch.
  double time(const Capture& graph, int launches) {
    graph.launch(s_);
    cudaEventRecord(begin_, cuda::queue(s_));
    for (int i = 0; i < launches; ++i) graph.launch(s_);
    cudaEventRecord(end_, cuda::queue(s_));
    s_.synchronize();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e3 / launches;
  }

 private:
  Stream& s_;
  cudaEvent_t begin_, end_;
};

/// Appends a time of about `microseconds` per round to each side, in random order within a round.
inline void measure(Stream& s, std::vector<Side>& sides, int rounds = 9, double microseconds = 4000) {
  Clock clock(s);
  for (auto& side : sides) {
    side.queue();  // not captured, to load what is loaded lazily
    s.synchronize();
    Capture::begin(s);
    side.queue();
    side.graph = Capture::end(s);
  }
  std::mt19937 random(1);
  std::vector<Side*> order;
  for (auto& side : sides) order.push_back(&side);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (Side* side : order) {
      const double expected = side->us.empty() ? clock.time(side->graph, 3) : side->us.back();
      side->us.push_back(clock.time(side->graph, std::max(3, static_cast<int>(microseconds / expected))));
    }
  }
}

}  // namespace hpcdl::bench
