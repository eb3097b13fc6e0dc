#pragma once
// What a server counts, in the text format of Prometheus.

#include <array>
#include <cstdint>
#include <string>

#include "hpcdl/infer/engine.h"

namespace hpcdl::serve {

/// Seconds, in buckets with fixed limits.
class Histogram {
 public:
  void add(double seconds);
  void print(std::string& to, const char* name, const char* help) const;

 private:
  static constexpr std::array kLimits{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                      0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
  std::array<std::uint64_t, kLimits.size() + 1> counts_{};
  double sum_ = 0;
};

/// Used on the thread of the server.
struct Metrics {
  Histogram first_token, between_tokens;
  std::uint64_t new_tokens = 0, texts = 0, cancelled = 0, failed = 0, refused = 0, prefix_hits = 0;

  void add(const infer::End& end);
  /// `waiting` and `running`: texts without and with a first token.
  std::string text(std::size_t waiting, std::size_t running, std::size_t connections,
                   const infer::EngineState& engine) const;
};

}  // namespace hpcdl::serve
