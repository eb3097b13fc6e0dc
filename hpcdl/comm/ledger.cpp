#include "hpcdl/comm/ledger.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstring>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {
namespace {

thread_local std::string_view label;
thread_local std::uint64_t label_hash = 0;

/// FNV-1a, because std::hash may differ between builds.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return text.empty() ? 0 : h;
}

}  // namespace

void Ledger::Line::write(const LedgerEntry& e) {
  const auto words = std::bit_cast<std::array<std::uint64_t, kWords>>(e);
  const auto version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  // Release stores instead of a fence, because thread sanitizers do not understand fences. They cost nothing on x86.
  for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

LedgerEntry Ledger::Line::read() const {
  std::array<std::uint64_t, kWords> words;
  for (;;) {
    const auto before = version_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
  }
  return std::bit_cast<LedgerEntry>(words);
}

void Ledger::Line::phase(Phase p, std::int64_t since) {
  constexpr std::size_t kPhase = offsetof(LedgerEntry, phase) / 8, kSince = offsetof(LedgerEntry, since) / 8;
  auto word = std::bit_cast<std::array<std::uint8_t, 8>>(words_[kPhase].load(std::memory_order_relaxed));
  word[offsetof(LedgerEntry, phase) % 8] = static_cast<std::uint8_t>(p);
  const auto version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  words_[kPhase].store(std::bit_cast<std::uint64_t>(word), std::memory_order_release);
  words_[kSince].store(static_cast<std::uint64_t>(since), std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

void Ledger::enter(Phase phase) { work_.phase(phase, ticks()); }

LedgerEntry Ledger::in_time(LedgerEntry e) const {
  e.since = e.since == 0 ? 0 : clock_.nanoseconds_at(e.since);
  return e;
}

Label::Label(std::string_view name) : before_(label), hash_before_(label_hash) {
  label = name, label_hash = hash_of(name);
}
Label::~Label() { label = before_, label_hash = hash_before_; }
std::string_view Label::current() { return label; }
std::uint64_t Label::current_hash() { return label_hash; }

bool is_sound(const LedgerEntry& e) {
  // Read as numbers, because an enum with an unknown value has no name.
  const auto in = [](const auto& value, auto last) {
    std::uint8_t number;
    static_assert(sizeof value == sizeof number);
    std::memcpy(&number, &value, sizeof number);
    return number <= static_cast<std::uint8_t>(last);
  };
  const auto ends = [](const auto& name) { return std::memchr(name, 0, sizeof name) != nullptr; };
  return in(e.phase, Phase::idle) && in(e.what, Collective::split) && in(e.op, Reduce::avg) &&
         in(e.algorithm, std::size(kAlgorithmNames) - 1) && in(e.dtype, kDTypeCount - 1) && ends(e.group) &&
         ends(e.tensor);
}

std::string describe(const LedgerEntry& e) {
  std::string text = fmt::format("{} number {} of group {}", collective_name(e.what), e.number, e.group);
  if (e.what == Collective::all_reduce || e.what == Collective::reduce_scatter)
    text += fmt::format(", {} of {} {}", reduce_name(e.op), e.count, dtype_name(e.dtype));
  else if (e.what != Collective::barrier && e.what != Collective::split)
    text += fmt::format(", {} {}", e.count, dtype_name(e.dtype));
  if (e.what == Collective::send) text += fmt::format(" to {}", e.peer);
  if (e.what == Collective::receive) text += fmt::format(" from {}", e.peer);
  if (e.what == Collective::broadcast) text += fmt::format(" from {}", e.peer);
  if (e.tensor[0]) text += fmt::format(", {}", e.tensor);
  return text;
}

}  // namespace hpcdl::comm
