#pragma once
// A profile as a Chrome trace (opens in Perfetto and chrome://tracing): one process per rank; in it one row each for
// steps, stages, layers and records, on a GPU also of its kernels and of the host that queues them, with many ranks
// also of the reductions that run in parallel with the records, and counters for planned memory. Times in microseconds
// from the trace's base.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/profile/report.h"

namespace hpcdl::lab {

/// One exchange of clock readings with rank 0: sent and received on this rank's clock, answered on that of rank 0.
struct Ping {
  std::int64_t sent = 0, answered = 0, received = 0;  // ns
};

/// How the times of a trace can be aligned with those of another rank.
struct TraceClock {
  std::string host;            // identifies the kernel whose CLOCK_MONOTONIC was read: equal hosts have one clock
  std::int64_t base = 0;       // ns of that clock at ts = 0
  std::int64_t unix_base = 0;  // ns since 1970 at ts = 0
  std::vector<Ping> pings;     // empty: not needed between ranks of one host
};

/// This process's host, and the wall clock that corresponds to `base`.
TraceClock trace_clock(std::int64_t base);

struct TraceOptions {
  std::int64_t limit = 256 << 20;  // bytes of text; whole steps beyond it are omitted
  std::vector<Ping> pings;
};

struct TraceText {
  std::string json;
  std::int64_t steps = 0, left_out = 0;  // recorded steps
};

TraceText trace_text(const Profile& profile, const Roofs& roofs, const TraceOptions& options = {});

/// Writes `json` unchanged, or compressed if the name ends in .gz.
void write_trace(const std::filesystem::path& path, const std::string& json);
/// The text of a trace, decompressed if necessary.
std::string read_trace(const std::filesystem::path& path);

/// Rows of a process in the trace.
enum class Track : int { steps = 1, stages = 2, layers = 3, records = 4, kernels = 5, queue = 6, exchange = 7 };

}  // namespace hpcdl::lab
