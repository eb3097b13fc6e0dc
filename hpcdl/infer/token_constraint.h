#pragma once

#include <cstdint>
#include <span>

namespace hpcdl::infer {

/// What the tokens of one text may be, such as those of a grammar. An engine calls it between the passes over a model,
/// so that its time is time of the text and of all texts beside it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Sets all words: bit i % 32 of word i / 32 says whether token i may come next. There is a bit for every token that
  /// the engine may take; those after the last one do not matter. Tokens that end a text are tokens like others: they may
  /// come only where this says so.
  virtual void mask(std::span<std::uint32_t> allowed) = 0;
  /// The next token of the text, one that the last mask allowed.
  virtual void accept(std::int32_t id) = 0;
};

}  // namespace hpcdl::infer
