#pragma once
// The trace of one rank, read back: its events, and what is needed to lay it beside the others.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/lab/profile/trace.h"

namespace hpcdl::lab {

/// Something a rank did, in order, on one row: a record or a wait for data. Times in microseconds of the trace.
struct RankWork {
  double begin = 0, end = 0;
  std::string name;          // "linear.backward layers.3.mlp.c_fc"
  std::string match;         // collectives: the same on every rank that takes part, e.g. "all_reduce#12"; else empty
  std::vector<int> members;  // ranks that take part; empty: all
};

struct RankTrace {
  std::string file;
  io::Json json;  // as it was read
  int rank = 0, world = 1;
  TraceClock clock;
  std::vector<RankWork> work;        // by begin
  std::map<int, double> step_begin;  // by number of the step
};

/// Throws Error when `path` is no trace of ours.
RankTrace read_rank_trace(const std::filesystem::path& path);
/// The same for text that is at hand.
RankTrace parse_rank_trace(std::string_view json, const std::string& file);

}  // namespace hpcdl::lab
