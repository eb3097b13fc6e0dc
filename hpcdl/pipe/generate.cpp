#include "hpcdl/pipe/generate.h"

#include <fmt/format.h>

#include <array>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"

namespace hpcdl::pipe {
namespace {

constexpr std::array<ScheduleKind, 6> kKinds = {{
    {"gpipe", "all forwards, then all backwards", 1, kMostChunks, gpipe},
    {"1f1b", "one forward, one backward: less memory than gpipe", 1, 1, one_f_one_b},
    {"interleaved", "1f1b with several chunks on each rank: less waiting", 2, kMostChunks, interleaved},
    {"zero_bubble", "1f1b with backward in two halves (ZB-H1): less waiting", 1, 1, zero_bubble},
    {"zbv", "two chunks in the form of a V, backward in two halves", 2, 2, zbv},
    {"round_robin", "stages in host memory, dealt to the ranks in turn", 1, kMostChunks, round_robin},
}};

void require_within(const char* option, int value, int most) {
  if (value < 1 || value > most) fail_usage("pipe", "{}: expected 1 to {}, got {}", option, most, value);
}

void require_chunks(const ScheduleKind& kind, int chunks) {
  if (chunks >= kind.least_chunks && chunks <= kind.most_chunks) return;
  const auto fits = kind.least_chunks == kind.most_chunks ? fmt::format("--chunks {}", kind.least_chunks)
                                                          : fmt::format("--chunks {} or more", kind.least_chunks);
  std::string others;
  for (const auto& other : kKinds)
    if (chunks >= other.least_chunks && chunks <= other.most_chunks)
      others += (others.empty() ? "" : ", ") + std::string(other.name);
  fail_usage("pipe", "schedule {} needs {}, got {}; with --chunks {} choose one of {}", kind.name, fits, chunks, chunks,
             others);
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() { return kKinds; }

const ScheduleKind& schedule_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& kind : kKinds) {
    if (kind.name == name) return kind;
    names.emplace_back(kind.name);
  }
  fail_usage("pipe", "unknown schedule \"{}\"{}; there are {}", name, io::did_you_mean(name, names),
             fmt::join(names, ", "));
}

Schedule make_schedule(const ScheduleKind& kind, const PipeShape& shape) {
  require_within("--stages", shape.ranks, kMostRanks);
  require_within("--chunks", shape.chunks, kMostChunks);
  require_within("--micros", shape.micros, kMostMicros);
  require_chunks(kind, shape.chunks);
  if (const auto most = kMostCells / shape.stages(); shape.micros > most)
    fail_usage("pipe", "{} stages and {} micro-batches are too many: with so many stages, --micros {} at most",
               shape.stages(), shape.micros, most);
  return kind.make(shape);
}

std::string few_micros_warning(int ranks, int micros) {
  if (micros >= ranks) return {};
  return fmt::format("{} micro-batch{} cannot occupy {} ranks at a time: use at least {} (train.accumulate)", micros,
                     micros == 1 ? "" : "es", ranks, ranks);
}

}  // namespace hpcdl::pipe
