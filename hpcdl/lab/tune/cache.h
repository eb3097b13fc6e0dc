#pragma once
// Choices on disk: one JSON file for each GPU, driver and version, written aside, synced and renamed.

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/lab/tune/tuner.h"

namespace hpcdl::lab::tune {

/// Choices of one are no choices of another.
struct Identity {
  std::string device, driver, version;  // "NVIDIA H200", "580.95", version and build of hpcdl
  bool operator==(const Identity&) const = default;
};

struct Entry {
  Key key;
  std::string dtype, shape;  // of the call that was tuned
  int id = -1;
  std::string candidate;  // its name
  double seconds = 0, built_in_seconds = 0;
  bool operator==(const Entry&) const = default;
};
Entry entry_of(const Outcome& o);

struct Cache {
  Identity identity;
  std::vector<Entry> entries;  // one for each key
  std::string warning = {};    // of reading: why the file counts for nothing
  const Entry* find(const Key& key) const;
  /// Replaces the entry of the same key.
  void put(Entry e);
  std::map<Key, int> choices() const;
};

/// $XDG_CACHE_HOME/hpcdl/tune/DEVICE-driver-DRIVER-VERSION.json, or the same under ~/.cache.
std::filesystem::path cache_file(const Identity& identity);
/// No entries when there is no file; no entries and a warning when it is damaged or another GPU's.
Cache read_cache(const std::filesystem::path& file, const Identity& identity);
/// Throws Error when the file cannot be written.
void write_cache(const std::filesystem::path& file, const Cache& cache);

std::string to_text(const Cache& cache);
/// Throws Error; `where` names the source in it.
Cache parse_cache(const std::string& text, const std::string& where);

}  // namespace hpcdl::lab::tune
