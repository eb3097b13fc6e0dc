#pragma once
// Text from a language model, token by token.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/model.h"
#include "hpcdl/pool.h"

namespace hpcdl {

namespace infer {
class Engine;
}

/// How the next token is chosen. The default takes the most likely one.
struct Sampling {
  float temperature = 0;   // 0: greedy
  int top_k = 0;           // keep the k most likely tokens; 0: all
  float top_p = 1;         // keep the smallest set with at least this probability; 1: all
  std::uint64_t seed = 0;  // the same seed gives the same text
};

/// Generates one sequence at a time.
class Generator {
 public:
  /// Room for `capacity` tokens, prompt included; 0: the model's context. Model and pool must outlive it.
  Generator(const Model& model, Pool& pool, std::int64_t capacity = 0);
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Up to `tokens` new ids. `on_token` hears each, and returns false to stop. Throws Error if they do not fit the
  /// capacity, or if an id is not in the vocabulary.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt, int tokens, const Sampling& sampling = {},
                                     const std::function<bool(std::int32_t id)>& on_token = {});

 private:
  std::unique_ptr<infer::Engine> engine_;
};

}  // namespace hpcdl
