#pragma once
// What watchdogs say to each other: one byte of Said and what belongs to it.

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/comm/watch/report.h"

namespace hpcdl::comm {

enum class Said : char {
  beat = 'b',      // to rank 0, and from it to all: a report, unasked
  stuck = 's',     // to rank 0: a wait came to its deadline; peer, report
  ask = 'a',       // from rank 0
  report = 'r',    // to rank 0: the answer
  failed = 'f',    // to rank 0: this rank ends by an error; words
  finished = 'e',  // to all: this rank's run is over
  verdict = 'v',   // from rank 0; words
  heard = 'h',     // to rank 0: the verdict has come
};

inline std::string said(Said what, std::string_view rest) {
  return std::string(1, static_cast<char>(what)).append(rest);
}

inline std::string pack_stuck(int peer, const Report& report) {
  return std::string(reinterpret_cast<const char*>(&peer), sizeof peer) + pack(report);
}

inline std::pair<int, Report> unpack_stuck(std::string_view text) {
  int peer = -1;
  if (text.size() < sizeof peer) return {peer, {}};
  std::memcpy(&peer, text.data(), sizeof peer);
  return {peer, unpack_report(text.substr(sizeof peer))};
}

}  // namespace hpcdl::comm
