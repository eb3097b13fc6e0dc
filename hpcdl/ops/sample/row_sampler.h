#pragma once
// How one token is chosen on the host.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace hpcdl {

/// Which tokens of a row may be drawn, in the order of these rules, each with its probability among those that the rules
/// before it left.
struct SampleRule {
  std::uint64_t seed = 0, index = 0;  // the draw is a function of both
  float temperature = 0;              // 0: always the most likely token
  float top_p = 1;                    // the smallest set of the most likely tokens with at least this probability
  float min_p = 0;                    // tokens with at least this share of the probability of the most likely one
  float typical_p = 1;                // the tokens whose information is nearest to the entropy, up to this probability
  std::int32_t top_k = 0;             // the k most likely tokens, the first of equal ones; 0: all
  std::int32_t unused = 0;
};

/// Instead of a token, where all logits are -infinity.
inline constexpr std::int32_t kNoToken = std::numeric_limits<std::int32_t>::min();

/// The place of the largest logit, the first of equal ones; -1 - the place of the first NaN or +infinity; or kNoToken.
std::int64_t largest_logit(std::span<const float> logits);

/// Keeps its memory between calls.
class RowSampler {
 public:
  struct Candidate {
    std::int32_t id;
    double weight;  // unnormalised probability; 1 for the most likely token
  };

  /// `best` is largest_logit(), which is no negative number.
  std::int32_t sample(std::span<const float> logits, std::int64_t best, const SampleRule& rule);

 private:
  void collect(std::span<const float> logits, std::size_t most, double top, double temperature);
  void keep_typical(double share);
  template <class Before> void keep_first(double share, Before before);
  double total() const;

  std::vector<Candidate> kept_;
};

}  // namespace hpcdl
