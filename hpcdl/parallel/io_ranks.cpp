#include "hpcdl/parallel/io_ranks.h"

#include <algorithm>
#include <cstring>

namespace hpcdl::parallel {

namespace {
constexpr std::int64_t kMessage = std::int64_t{64} << 20;  // bytes at a time
}

std::vector<std::string> IoRanks::gather(const std::string& mine) {
  const auto n = static_cast<std::size_t>(size());
  if (n == 1) return {mine};
  const auto all = [&](const void* bytes, void* to, std::int64_t each) {
    group_.blocking().all_gather(host_, Tensor(to, {{each * size()}, DType::u8}), View(bytes, {{each}, DType::u8}));
  };
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(n);
  all(&length, lengths.data(), sizeof length);
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = mine, everybody(n * static_cast<std::size_t>(longest), '\0');
  padded.resize(static_cast<std::size_t>(longest));
  if (longest > 0) all(padded.data(), everybody.data(), longest);
  std::vector<std::string> list;
  for (std::size_t r = 0; r < n; ++r) list.push_back(everybody.substr(r * static_cast<std::size_t>(longest), static_cast<std::size_t>(lengths[r])));
  return list;
}

void IoRanks::send(std::span<const std::byte> bytes, int to) {
  for (std::int64_t at = 0; at < std::ssize(bytes); at += kMessage)
    group_.blocking().send(host_, View(bytes.data() + at, {{std::min(kMessage, std::ssize(bytes) - at)}, DType::u8}), to);
}

void IoRanks::receive(std::span<std::byte> bytes, int from) {
  for (std::int64_t at = 0; at < std::ssize(bytes); at += kMessage)
    group_.blocking().receive(host_, Tensor(bytes.data() + at, {{std::min(kMessage, std::ssize(bytes) - at)}, DType::u8}), from);
}

}  // namespace hpcdl::parallel
