#include "hpcdl/infer/ngram_index.h"

#include <algorithm>

namespace hpcdl::infer {

namespace {

constexpr int kCandidates = 16;           // that are compared
constexpr std::int64_t kLongEnough = 64;  // tokens of a match that no other one has to beat
static_assert(NgramIndex::kShortest == 2, "two ids are one key");

std::uint64_t key_before(std::span<const std::int32_t> text, std::int64_t place) {
  const auto* end = text.data() + place;
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(end[-2])) << 32 | static_cast<std::uint32_t>(end[-1]);
}

std::int64_t common_before(std::span<const std::int32_t> text, std::int64_t a, std::int64_t b) {
  std::int64_t n = 0;
  while (n < std::min({a, b, kLongEnough}) &&
         text[static_cast<std::size_t>(a - n - 1)] == text[static_cast<std::size_t>(b - n - 1)])
    ++n;
  return n;
}

}  // namespace

void NgramIndex::add_until(std::span<const std::int32_t> text, std::int64_t end) {
  earlier_.resize(std::max<std::size_t>(earlier_.size(), kShortest), -1);
  for (auto place = std::ssize(earlier_); place < end; ++place) {
    const auto [at, first] = latest_.try_emplace(key_before(text, place), -1);
    earlier_.push_back(at->second);
    at->second = static_cast<std::int32_t>(place);
  }
}

NgramIndex::Match NgramIndex::find(std::span<const std::int32_t> text) {
  const auto end = std::ssize(text);
  if (end < kShortest) return {};
  add_until(text, end);
  Match best;
  const auto found = latest_.find(key_before(text, end));
  auto place = found == latest_.end() ? -1 : found->second;
  for (int i = 0; i < kCandidates && place >= 0 && best.length < kLongEnough; ++i) {
    if (const auto n = common_before(text, place, end); n > best.length) best = {place, n};
    place = earlier_[static_cast<std::size_t>(place)];
  }
  return best;
}

}  // namespace hpcdl::infer
