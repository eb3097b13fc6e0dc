#include "hpcdl/tune/cache.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/machine/remembered.h"

namespace hpcdl::lab::tune {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kFormat = 1;  // older files also have an "id" in each choice, which is ignored
constexpr std::int64_t kLimit = 16 << 20;

double time_of(const Json& j, const char* key) {
  const double s = j.at(key).get<double>();
  require(std::isfinite(s) && s >= 0 && s < 1e6, "tune", "{} is {}: expected seconds of at least 0", key, s);
  return s;
}

Entry parse_entry(const Json& j) {
  Entry e{.key = {.op = j.at("op").get<std::string>(), .fields = j.at("key").get<std::vector<std::int64_t>>()},
          .dtype = j.at("dtype").get<std::string>(),
          .shape = j.at("shape").get<std::string>(),
          .candidate = j.at("candidate").get<std::string>(),
          .seconds = time_of(j, "seconds"),
          .built_in_seconds = time_of(j, "built_in_seconds")};
  require(!e.candidate.empty(), "tune", "{} {} has no candidate", e.key.op, e.shape);
  return e;
}

}  // namespace

const Entry* Cache::find(const WayKey& key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

void Cache::put(Entry e) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& old) { return old.key == e.key; });
  if (found == entries.end()) entries.push_back(std::move(e));
  else *found = std::move(e);
}

std::map<WayKey, std::string> Cache::choices() const {
  std::map<WayKey, std::string> all;
  for (const auto& e : entries) all[e.key] = e.candidate;
  return all;
}

std::filesystem::path cache_file(const Identity& identity) {
  std::string name = fmt::format("{}-driver-{}-{}", identity.device, identity.driver, identity.version);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return cache_folder() / "tune" / (name + ".json");
}

std::string to_text(const Cache& cache) {
  Json j{{"format", kFormat},
         {"device", cache.identity.device},
         {"driver", cache.identity.driver},
         {"version", cache.identity.version},
         {"choices", Json::array()}};
  for (const auto& e : cache.entries)
    j["choices"].push_back({{"op", e.key.op},
                            {"dtype", e.dtype},
                            {"shape", e.shape},
                            {"key", e.key.fields},
                            {"candidate", e.candidate},
                            {"seconds", e.seconds},
                            {"built_in_seconds", e.built_in_seconds}});
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Cache parse_cache(const std::string& text, const std::string& where) try {
  io::parse_json(text, where);  // duplicate keys, depth
  const auto j = Json::parse(text);
  require(j.at("format").get<int>() == kFormat, "tune", "the file has format {}; expected {}", j.at("format").dump(),
          kFormat);
  Cache cache{.identity = {j.at("device").get<std::string>(), j.at("driver").get<std::string>(),
                           j.at("version").get<std::string>()},
              .entries = {}};
  std::set<WayKey> seen;
  for (const auto& c : j.at("choices")) {
    auto e = parse_entry(c);
    require(seen.insert(e.key).second, "tune", "{} {} is listed twice", e.key.op, e.shape);
    cache.entries.push_back(std::move(e));
  }
  return cache;
} catch (const Error& e) {
  fail("tune", "{}: {}", where, e.what());
} catch (const nlohmann::json::exception& e) {
  fail("tune", "{}: {}", where, e.what());
}

Cache read_cache(const std::filesystem::path& file, const Identity& identity) {
  Cache none{.identity = identity, .entries = {}};
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return none;
  try {
    auto cache = parse_cache(io::read_file(file, kLimit), file.string());
    if (cache.identity == identity) return cache;
    none.warning =
        fmt::format("{} was written for {}, driver {}, hpcdl {}: its choices are ignored here and measured again",
                    file.string(), cache.identity.device, cache.identity.driver, cache.identity.version);
  } catch (const Error& e) {
    none.warning = fmt::format("{}; the file is damaged: its choices are ignored and measured again", e.what());
  }
  return none;
}

void write_cache(const std::filesystem::path& file, const Cache& cache) {
  io::make_folder(file.parent_path());
  io::write_file_atomic(file, to_text(cache));
}

}  // namespace hpcdl::lab::tune
