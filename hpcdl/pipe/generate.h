#pragma once
// The schedules that can be chosen by name. Each is a pure function of the shape of the pipeline; its lists contain
// only actions that compute.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

struct PipeShape {
  int ranks = 2;
  int chunks = 1;  // stages per rank
  int micros = 4;
  int ahead = 0;  // forwards that 1f1b, interleaved and zero_bubble compute earlier than they must, if so many are left
  int stages() const { return ranks * chunks; }
};
inline constexpr int kMostRanks = 256, kMostChunks = 64, kMostMicros = 4096;
/// More would take more memory than a schedule is worth.
inline constexpr std::int64_t kMostCells = std::int64_t{1} << 20;  // stages times micro-batches

struct ScheduleKind {
  std::string_view name;
  std::string_view summary;
  int least_chunks, most_chunks;
  Schedule (*make)(const PipeShape&);
};

std::span<const ScheduleKind> schedule_kinds();
/// Throws UsageError, with the nearest name.
const ScheduleKind& schedule_kind(std::string_view name);
/// Throws UsageError that says what would fit.
Schedule make_schedule(const ScheduleKind& kind, const PipeShape& shape);

/// A sentence if there are so few micro-batches that ranks have to wait; else empty.
std::string few_micros_warning(int ranks, int micros);

/// All forwards, then all backwards. With chunks a rank computes all micro-batches of a chunk before the next one.
/// Huang et al., "GPipe", 2019; Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2023.
Schedule gpipe(const PipeShape& shape);
/// A rank begins a backward as soon as it can, so that rank p keeps at most ranks - p micro-batches.
/// Narayanan et al., "PipeDream", 2019.
Schedule one_f_one_b(const PipeShape& shape);
/// 1F1B with several chunks on each rank: the pipeline fills and drains in steps of one chunk.
/// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021.
Schedule interleaved(const PipeShape& shape);
/// ZB-H1: backward in two halves. The gradients of weights fill the time in which 1F1B waits, with the memory that its
/// first rank takes on every rank. Qi et al., "Zero Bubble Pipeline Parallelism", 2023.
Schedule zero_bubble(const PipeShape& shape);
/// Two chunks in the form of a V: the first rank holds the first and the last stage. Memory is the same on all ranks.
/// Qi et al., "Pipeline Parallelism with Controllable Memory", 2024.
Schedule zbv(const PipeShape& shape);
/// No rank owns a stage: forwards and backwards of stages are dealt to the ranks in turn, for as many micro-batches at a
/// time as there are ranks. Weights and what forward keeps are in host memory.
Schedule round_robin(const PipeShape& shape);

}  // namespace hpcdl::pipe
