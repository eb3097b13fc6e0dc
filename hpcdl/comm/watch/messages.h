#pragma once
// Messages between watchdogs: one byte of Said and its contents.

#include <cstring>
#include <string>
#include <string_view>

#include "hpcdl/comm/watch/report.h"

namespace hpcdl::comm {

enum class Said : char {
  beat = 'b',      // to rank 0, and from it to all: a periodic report
  stuck = 's',     // to rank 0: a wait has failed; peer, report, why
  ask = 'a',       // from rank 0
  report = 'r',    // to rank 0: the answer
  failed = 'f',    // to rank 0: this rank ends by an error; words
  finished = 'e',  // to rank 0, and from it to all: this rank's run is over
  verdict = 'v',   // from rank 0; words
  heard = 'h',     // to rank 0: the verdict has come
};

inline std::string said(Said what, std::string_view rest) {
  return std::string(1, static_cast<char>(what)).append(rest);
}

inline std::string pack_stuck(int peer, const Report& report, std::string_view why) {
  return std::string(reinterpret_cast<const char*>(&peer), sizeof peer) + pack(report) + std::string(why);
}

struct StuckMessage {
  int peer = -1;
  Report report = {};
  std::string why = {};
};

inline StuckMessage unpack_stuck(std::string_view text) {
  StuckMessage m;
  if (text.size() < sizeof m.peer + sizeof m.report) return m;
  std::memcpy(&m.peer, text.data(), sizeof m.peer);
  m.report = unpack_report(text.substr(sizeof m.peer, sizeof m.report));
  m.why = text.substr(sizeof m.peer + sizeof m.report);
  return m;
}

}  // namespace hpcdl::comm
