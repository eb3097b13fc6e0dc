#pragma once
// A roofline as data, as a table and as files.

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/machine/machine.h"
#include "tools/disturbance.h"
#include "tools/roofline/rows.h"
#include "tools/words.h"

namespace hpcdl::lab::roofline {

struct Report {
  Machine machine;
  std::string device = "cpu";
  std::string gpu;  // its name; empty: ran on the CPU
  int threads = 1;
  std::string date;  // UTC, "2026-11-21"
  Roofs roofs;
  std::vector<Row> rows;    // seed first, then cases
  std::vector<Row> step;    // records of a training step
  std::string config;       // the config of that step
  double seconds = 0;       // duration of the measurement
  Disturbance disturbance;  // while it was measured

  /// "AMD EPYC"; "2 threads, avx512".
  std::string title() const { return gpu.empty() ? machine.cpu : gpu; }
  std::string details() const {
    return gpu.empty() ? plural(threads, "thread") + ", " + machine.isa : "each kernel a captured graph";
  }
  /// All rows, with those of the step last.
  std::vector<const Row*> all() const;
  /// The number of rows that are faster than light.
  int faults() const;
};

std::string today();

nlohmann::ordered_json to_json(const Report& report);
std::string to_csv(const Report& report);
/// For a terminal; with colours only if requested.
std::string to_text(const Report& report, bool colour);

/// Three digits and a unit: "11.1 ms", "47.6 GB/s", "437 GFLOP/s".
std::string show_seconds(double s);
std::string show_rate(double per_second, const char* unit);
/// The rate by which a row is compared with its roof: operations if arithmetic bounds it, otherwise bytes.
std::string show_rate(const Row& row, double seconds);
/// "0.083", "0.63", "683".
std::string show_intensity(double flops_per_byte);
/// "94 %".
std::string show_share(const Row& row);
/// What a table says of a row: op and scope, shape, type, pass, intensity, bound, light; if it was measured, also time,
/// rate and share.
std::vector<std::string> cells(const Row& row);

}  // namespace hpcdl::lab::roofline
