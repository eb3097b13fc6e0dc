#include "hpcdl/infer/ngram_drafter.h"

namespace hpcdl::infer {

void NgramDrafter::propose(std::span<Text> texts) {
  for (auto& t : texts) {
    auto& known = texts_[t.id];
    const auto match = known.index.find(t.tokens);
    known.proposed = std::min(match.length > 0 ? known.trust.tokens(match.length) : 0, t.most);
    const auto there = std::ssize(t.tokens);
    for (std::int64_t i = 0; i < known.proposed; ++i) {  // a period shorter than the proposal goes on in it
      const auto from = match.next + i;
      t.proposed.push_back(from < there ? t.tokens[static_cast<std::size_t>(from)]
                                        : t.proposed[static_cast<std::size_t>(from - there)]);
    }
  }
}

void NgramDrafter::learn(std::uint64_t id, std::int64_t accepted) {
  auto& known = texts_.at(id);
  known.trust.learn(known.proposed, accepted);
}

}  // namespace hpcdl::infer
