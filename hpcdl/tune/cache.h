#pragma once
// Choices on disk: one JSON file for each GPU, driver and version, written to a temporary file, synced and renamed.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hpcdl/core/ways.h"

namespace hpcdl::lab::tune {

/// Choices hold only for the same hardware and software.
struct Identity {
  std::string device, driver, version;  // "NVIDIA H200", "580.95", version and build of hpcdl
  bool operator==(const Identity&) const = default;
};

struct Entry {
  WayKey key;
  std::string dtype, shape;  // of the tuned call
  std::string candidate;     // the name of the way
  double seconds = 0, built_in_seconds = 0;
  bool operator==(const Entry&) const = default;
};

struct Cache {
  Identity identity;
  std::vector<Entry> entries;  // one for each key
  std::string warning = {};    // why the file was ignored
  const Entry* find(const WayKey& key) const;
  /// Replaces the entry of the same key.
  void put(Entry e);
  std::map<WayKey, std::string> choices() const;
};

/// $XDG_CACHE_HOME/hpcdl/tune/DEVICE-driver-DRIVER-VERSION.json, or the same under ~/.cache.
std::filesystem::path cache_file(const Identity& identity);
/// No entries if there is no file; no entries and a warning if it is damaged or belongs to another GPU.
Cache read_cache(const std::filesystem::path& file, const Identity& identity);
/// Throws Error if the file cannot be written.
void write_cache(const std::filesystem::path& file, const Cache& cache);

std::string to_text(const Cache& cache);
/// Throws Error that names `where` as the source.
Cache parse_cache(const std::string& text, const std::string& where);

}  // namespace hpcdl::lab::tune
