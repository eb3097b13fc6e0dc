#pragma once
// One result, as a line on stdout that bench/peers/collect.py puts into the machine's file.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace hpcdl::bench {

inline void emit(const std::string& key, const nlohmann::ordered_json& row) {
  std::printf("%s\n", nlohmann::ordered_json({{"key", key}, {"row", row}}).dump().c_str());
  std::fflush(stdout);
}

}  // namespace hpcdl::bench
