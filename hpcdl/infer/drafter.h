#pragma once
// Proposals for the next tokens of texts, which one pass of the model then checks together (Leviathan et al., 2023).

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

/// What it proposes depends on nothing but its calls.
class Drafter {
 public:
  struct Text {
    std::uint64_t id = 0;
    std::span<const std::int32_t> tokens;  // so far, its prompt included
    std::int64_t most = 0;                 // tokens to propose
    SampleRule rule = {};                  // of the next token
    std::vector<std::int32_t> proposed = {};
  };

  virtual ~Drafter() = default;
  /// Sets what it proposes for each text, which may be nothing.
  virtual void propose(std::span<Text> texts) = 0;
  /// The first `accepted` of its last proposal for this text, of at least one token, came true, and then another token.
  virtual void learn(std::uint64_t id, std::int64_t accepted) = 0;
  /// The text has ended, or goes on later.
  virtual void forget(std::uint64_t id) = 0;
};

}  // namespace hpcdl::infer
