#include "hpcdl/core/ways.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl {

std::uint64_t hash_of(std::string_view op, std::span<const std::int64_t> fields) {
  std::uint64_t h = 0xcbf29ce484222325u;  // FNV-1a, then the mixing step of splitmix64 for each field
  for (const char c : op) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  for (const auto f : fields) {
    h += static_cast<std::uint64_t>(f) + 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    h ^= h >> 31;
  }
  return h;
}

std::map<std::string, std::string> parse_preferred_ways(std::string_view text, std::string_view where) {
  std::map<std::string, std::string> all;
  std::string* name = nullptr;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    const auto word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    const auto equals = word.find('=');
    if (equals == std::string_view::npos && name && !name->empty()) {  // names may have spaces
      *name += fmt::format(" {}", word);
      continue;
    }
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size())
      fail_usage("ways", "{}: expected op=way, such as attention=cudnn, got \"{}\" in \"{}\"", where, word, text);
    const auto [it, fresh] = all.emplace(word.substr(0, equals), word.substr(equals + 1));
    if (!fresh) fail_usage("ways", "{}: {} is named twice in \"{}\"", where, it->first, text);
    name = &it->second;
  }
  return all;
}

Ways::Ways(WayNames names) : names_(std::move(names)) {
  for (const auto& [key, name] : names_.calls) calls_.try_emplace(hash_of(key.op, key.fields), name);
  for (const auto& [op, name] : names_.preferred) preferred_.try_emplace(op, name);
}

void WayNotes::begin_record(int record) {
  const std::lock_guard lock(mutex_);
  record_ = record;
}

void WayNotes::add(const WayKey& key, WayNote note) {
  const std::lock_guard lock(mutex_);
  const auto it = notes_.try_emplace(key, std::move(note)).first;
  if (record_ >= 0) it->second.records.insert(record_);
}

std::map<WayKey, WayNote> WayNotes::all() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

}  // namespace hpcdl
