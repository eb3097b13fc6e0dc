#pragma once
// What one rank reports of itself when the ranks ask each other what they are doing.

#include <cstdint>
#include <string>
#include <string_view>

#include "hpcdl/comm/ledger.h"

namespace hpcdl::comm {

/// In both lines `since` is not a time but an age in nanoseconds, so that clocks of several hosts need not agree.
struct Report {
  LedgerEntry work, collective;

  bool in_collective() const { return collective.phase == Phase::collective; }
};

/// The report of this moment.
Report report_of(const Ledger& ledger);
std::string pack(const Report& report);
/// An empty report if the text is not a packed report.
Report unpack_report(std::string_view text);

/// What is known about a rank when a verdict is made.
struct RankState {
  enum class Kind : std::uint8_t {
    answers,  // it has reported what it is doing
    silent,   // it was asked and has not answered
    gone,     // its connection broke
    failed,   // it reported that it ends by its own error
    finished  // it reported that its run is over
  };
  Kind kind = Kind::silent;
  std::string host;
  std::string why;        // gone, failed: in words
  Report report;          // the last that came from it
  double heard_ago = -1;  // seconds; -1: never
};

}  // namespace hpcdl::comm
