#pragma once
// What was seen of a run: plain data, steps of program runs of record times. Times are nanoseconds of CLOCK_MONOTONIC,
// which all processes of one host share.

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "hpcdl/graph/plan.h"
#include "hpcdl/train/observer.h"

namespace hpcdl::lab {

inline std::int64_t ns_of(std::chrono::steady_clock::time_point t) {
  return std::chrono::nanoseconds(t.time_since_epoch()).count();
}
inline std::int64_t now_ns() { return ns_of(std::chrono::steady_clock::now()); }

struct RecordTime {
  std::int64_t begin = 0, end = 0;
};

/// A kernel, copy or fill on a GPU.
struct DeviceSpan {
  std::int64_t begin = 0, end = 0;
  enum class Kind : unsigned char { kernel, copy, fill } kind = Kind::kernel;
  std::string_view name;      // lives as long as the process
  int run = -1, record = -1;  // of the step's runs, and of that program; -1: of no record
};

/// A record that other threads went on with, while the program's other records ran.
struct ExchangeSpan {
  std::int64_t begin = 0, end = 0;
  int record = 0;
};

/// One run of one program.
struct ProgramRun {
  int program = 0;                // index into the recorder's programs
  RecordTime host;                // on a GPU: while it was queued; else empty
  std::vector<RecordTime> times;  // per record
  /// Working time of each thread within each record, [record * threads + thread]; empty where it was not measured.
  std::vector<std::int64_t> busy;
  std::vector<ExchangeSpan> exchanges;  // CPU, many ranks
};

struct StageTime {
  train::Stage stage;
  std::int64_t begin = 0, end = 0;
};

/// One optimizer step. `recorded` false: only begin and end were looked at, to know what looking closer costs.
struct StepTrace {
  std::int64_t step = 0;
  std::int64_t begin = 0, end = 0;
  bool recorded = false;
  std::int64_t interruptions = 0;  // times that the system took the CPU away from one of our threads
  std::deque<StageTime> stages;
  std::deque<ProgramRun> runs;     // a deque: a timer may fill a run in later
  std::vector<DeviceSpan> device;  // what a GPU did, by begin; empty where it is not known
};

/// A program that was run, and what is known of it without a clock.
struct ProgramFacts {
  const Instance* identity = nullptr;  // never followed: the program may be gone
  train::Stage stage = train::Stage::pass;
  Program program;
  Plan plan;
  std::vector<std::int64_t> live_bytes;  // of the arena, while each record runs
  bool on_gpu = false;
};

/// "linear.backward", "linear": op and phase of a record in one word.
std::string record_name(const Record& record);
/// The scope with its numbers taken out: "layers.3.mlp.c_fc" -> "layers.*.mlp.c_fc".
std::string folded_scope(std::string_view scope);
/// First two parts of a scope that numbers a layer, else the first: "layers.3", "head".
std::string layer_scope(const std::string& scope);

/// Records of one layer and phase that follow each other in a run.
struct LayerSpan {
  std::string layer;
  Phase phase;
  std::int64_t begin, end;  // of the first and of the last of them, nanoseconds
};
std::vector<LayerSpan> layer_spans(const Program& program, const ProgramRun& run);
/// "linear.backward layers.3.mlp.c_fc".
std::string record_label(const Program& program, const Record& record);
std::string_view stage_name(train::Stage stage);
/// Records that wait for other ranks. By name: whatever transport moves the bytes.
bool is_collective(std::string_view op);

}  // namespace hpcdl::lab
