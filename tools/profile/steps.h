#pragma once
// The observations of a run as plain data: steps of program runs of record times. Times are nanoseconds of
// CLOCK_MONOTONIC, which all processes of one host share.

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "hpcdl/instance.h"
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
  int run = -1, record = -1;  // index of the step's run, and of the record in its program; -1: no record
};

/// A record that other threads continued while the program's other records ran.
struct ExchangeSpan {
  std::int64_t begin = 0, end = 0;
  int record = 0;
};

/// One run of one program.
struct ProgramRun {
  int program = 0;                // index into the recorder's programs
  RecordTime host;                // on a GPU: the time while it was queued; otherwise empty
  std::vector<RecordTime> times;  // per record
  /// Working time of each thread within each record, [record * threads + thread]; empty if it was not measured.
  std::vector<std::int64_t> busy;
  std::vector<ExchangeSpan> exchanges;  // CPU, many ranks
};

struct StageTime {
  train::Stage stage;
  std::int64_t begin = 0, end = 0;
};

/// One optimizer step. `recorded` false: only beginning and end were observed, to measure the cost of recording.
struct StepTrace {
  std::int64_t step = 0;
  std::int64_t begin = 0, end = 0;
  bool recorded = false;
  std::int64_t interruptions = 0;  // number of times that the system took the CPU away from one of our threads
  std::deque<StageTime> stages;
  std::deque<ProgramRun> runs;     // a deque, because a timer may complete a run later
  std::vector<DeviceSpan> device;  // the GPU's activities, by begin; empty if unknown
};

/// A program that was run, and its facts that do not depend on time.
struct ProgramFacts {
  const Instance* identity = nullptr;  // never dereferenced: the program may have been destroyed
  train::Stage stage = train::Stage::pass;
  Program program;
  Plan plan;
  std::vector<std::int64_t> live_bytes;  // of the arena, during each record
  bool on_gpu = false;
};

/// "linear.backward", "linear": op and phase of a record in one word.
std::string record_name(const Record& record);
/// The scope without its numbers: "layers.3.mlp.c_fc" -> "layers.*.mlp.c_fc".
std::string folded_scope(std::string_view scope);
/// First two parts of a scope that numbers a layer, otherwise the first: "layers.3", "head".
std::string layer_scope(const std::string& scope);

/// Consecutive records of one layer and phase in a run.
struct LayerSpan {
  std::string layer;
  Phase phase;
  std::int64_t begin, end;  // of the first and of the last of them, nanoseconds
};
std::vector<LayerSpan> layer_spans(const Program& program, const ProgramRun& run);
/// "linear.backward layers.3.mlp.c_fc".
std::string record_label(const Program& program, const Record& record);
std::string_view stage_name(train::Stage stage);
/// Whether the record waits for other ranks. Decided by name, for any transport.
bool is_collective(std::string_view op);

}  // namespace hpcdl::lab
