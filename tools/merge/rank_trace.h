#pragma once
// Reads the trace of one rank: its events, and what is needed to align it with the others.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/json.h"
#include "tools/profile/trace.h"

namespace hpcdl::lab {

/// Work of a rank, in order, on one row: a record or a wait for data. Times in microseconds of the trace.
struct RankWork {
  double begin = 0, end = 0;
  std::string name;   // "linear.backward layers.3.mlp.c_fc"
  std::string match;  // collectives: the same on every rank that takes part, e.g. "all_reduce#12"; otherwise empty
  std::vector<int> members;  // ranks that take part; empty: all
};

struct RankTrace {
  std::string file;
  io::Json json;  // the original event
  int rank = 0, world = 1;
  TraceClock clock;
  std::vector<RankWork> work;        // by begin
  std::map<int, double> step_begin;  // by number of the step
};

/// Throws Error if `path` is not a trace of hpcdl profile.
RankTrace read_rank_trace(const std::filesystem::path& path);
/// The same for text in memory.
RankTrace parse_rank_trace(std::string_view json, const std::string& file);

}  // namespace hpcdl::lab
